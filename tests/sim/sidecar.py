"""A sidecar of the simulation: the product's store, log, shell, watch and administration on a simulated process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cache_l2.attach_channel import ConnectionBroken, DeadlinePassed
from cache_l2.attach_messages import Abort, CancelLoad, Detach, Done, Failed, Load, ReservedPages
from cache_l2.store import ArenaConfig, ArenaStore
from invalidation.compaction import CompactionLimits
from invalidation.listing import Listings
from invalidation.log import FenceState, LogLimits
from invalidation.notes import MemberNote
from invalidation.redis.log import RedisLog, RedisLogSettings
from invalidation.timing import Timing
from invalidation.validity import Validity
from kv_types.errors import StrataError
from kv_types.ids import LifeId
from kv_types.outcomes import PutStatus
from kv_types.validity import EngineMode
from sidecar.admin.administration import Administration
from sidecar.attach.loads import ClientLoads, LoadUnderWay
from sidecar.attach.requests import carry_out
from sidecar.log.directory import FleetDirectory
from sidecar.log.shell import LogShell, ShellTiming
from sidecar.log.watch import LogWatch
from tests.sim.arena import ModelArena
from tests.sim.arena_reader import ModelReader
from tests.sim.clockwork import MS, US, Clockwork, Process, Signal
from tests.sim.loop import SimulatedLoop
from tests.sim.redis_client import SimulatedAddress
from tests.sim.redis_server import RedisServer
from tests.sim.shared_pages import SharedPages

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass
class Attached:
    """A client as the sidecar has it; stands for sidecar.attach.connection.AttachedProcess."""

    row: int
    writable: bool
    registered: set[int]
    loads: dict[int, LoadUnderWay] = field(default_factory=dict)
    page_bytes: int = 0


class WatchedLog(RedisLog):
    """A sidecar's log, of which is known when it was asked last who is in the fleet."""

    def __init__(self, clockwork: Clockwork, settings: RedisLogSettings, **rest: Any) -> None:
        super().__init__(settings, **rest)
        self.looked_ns = 0
        """True time before the look that was answered last."""
        self._clockwork = clockwork

    async def fence(self, *, deadline_ns: int) -> FenceState:
        """See RedisLog."""
        sent_ns = self._clockwork.now_ns
        state = await super().fence(deadline_ns=deadline_ns)
        self.looked_ns = sent_ns
        return state


class Life:
    """One life of a sidecar: everything in it goes with its process."""

    def __init__(self, world: World, sidecar: SimulatedSidecar) -> None:
        plan, clockwork, node = world.plan, world.clockwork, sidecar.node
        self.sidecar = sidecar
        self.process: Process = node.process("sidecar")
        self.loop = SimulatedLoop(
            clockwork, node, self.process, turn_ns=lambda: int(clockwork.random.random() * plan.turn_ns)
        )
        self.clients: list[Any] = []
        self.id = LifeId(clockwork.random.randbytes(16))
        self.ended = False
        self._world = world
        timing = Timing(lease_ns=plan.lease_ns, pause_ns=plan.pause_ns, drift=plan.drift)
        addresses: Any = self.addresses_of(world.servers)
        self.log = WatchedLog(
            clockwork,
            RedisLogSettings(
                addresses=addresses, fleet="fleet", replicas=plan.replicas, limits=_limits(*plan.log_limits)
            ),
            clock=node,
            random=clockwork.random.randbytes,
        )
        _, _, *caps = plan.log_limits
        self.validity = Validity(skew_ms=plan.skew_ms, limits=_compaction(*caps))
        world.starting = sidecar
        self.store = ArenaStore(
            _config(plan.ring_records, plan.skew_ms, plan.reservation_s),
            clock=node,
            judge=self.validity,
            life=self.id,
        )
        self.arena: ModelArena = world.arenas[self.id]
        self.shell = LogShell(
            self.log,
            self.store,
            self.validity,
            clock=node,
            timing=ShellTiming(lease_ns=plan.lease_ns, settle_ns=timing.window_ns(), call_ns=plan.call_ns),
            note=MemberNote(lease_ns=plan.lease_ns, engines_keep=0, host=node.name),
        )
        directory = FleetDirectory(self.log, self.store, Listings(), clock=node, call_ns=plan.call_ns)
        directory.follow(self.shell)
        self.watch = LogWatch(self.shell, self.log, directory, clock=node, call_ns=plan.call_ns)
        self.administration = Administration(
            self.shell, self.log, self.store, timing=timing, clock=node,
            wall_ms=lambda: node.wall_ns() // 1_000_000,
        )  # fmt: skip
        self.pages = SharedPages(world, self)
        self.client_loads = ClientLoads(self.store, self.pages, clock=node)

    def run(self) -> None:
        """Begin."""
        self.spawn(self.shell.run())
        self.spawn(self.watch.run())
        self.spawn(self._tick())
        self.spawn(self.pages.start())

    def addresses_of(self, servers: Sequence[RedisServer]) -> list[Any]:
        """Servers that stand for each other, as this life is told of them; not all are told in the same order."""
        world, number = self._world, self.sidecar.number % len(servers)
        route = world.clockwork, world.network, self.sidecar.node, self.process
        addresses = [SimulatedAddress(*route, server) for server in servers]
        if world.plan.replicas_named_apart:
            addresses = addresses[number:] + addresses[:number]
        return addresses

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task on the sidecar's loop; what goes wrong in it ends the simulation."""
        task: asyncio.Task[Any] = self.loop.create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self.loop.failures.append(failure)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.4)
            self.store.tick()

    async def goodbye(self) -> None:
        """Close the header first, then deregister (rule R13)."""
        self.store.drain()
        self.administration.end()
        for process in self.clients:
            self.client_loads.close(process)
        await self.pages.end()
        await self.shell.leave()
        self.ended = True


class SimulatedSidecar:
    """A node's sidecar over all its lives."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.node = world.node(f"n{number}")
        self.life: Life | None = None
        self.lives = 0
        self.attachments: list[Attachment] = []

    def start(self) -> None:
        """Begin a life."""
        if self.life is None and not self.node.is_paused:
            self.lives += 1
            self.life = Life(self.world, self)
            self.world.note(self.node.name, "sidecar starts")
            self.life.run()

    def kill(self) -> None:
        """End as by SIGKILL."""
        life, self.life = self.life, None
        if life is None:
            return
        self.world.note(self.node.name, "sidecar dies")
        life.ended = True
        self.world.clockwork.kill(life.process)
        attachments, self.attachments = self.attachments, []
        for attachment in attachments:
            attachment.hang_up()
        self.world.operator.lost(life)

    def attach(self, process: Process, *, engine: EngineMode = EngineMode.NONE) -> Attachment | None:
        """Attach a client, in no time; None when nobody listens."""
        life = self.life
        if life is None or life.process.stops or life.store.is_draining or not life.pages.is_started:
            return None
        row = life.store.open_client(1000 + len(self.attachments), engine=engine)
        attachment = Attachment(self.world, life, row, process)
        self.attachments.append(attachment)
        return attachment

    def client_died(self, attachment: Attachment) -> None:
        """The pidfd of a client's process says that it is gone; the sidecar sees it in a moment."""
        life = attachment.life
        if attachment in self.attachments:
            self.attachments.remove(attachment)

        def end() -> None:
            life.client_loads.abandon(attachment.client)
            life.clients.remove(attachment.client)
            life.store.end_client(attachment.client.row)

        def notice() -> None:
            if not life.ended:
                life.loop.call_soon(end)

        self.world.clockwork.after(1 * MS, notice, life.process)


class Posted:
    """A request that was sent and not waited for."""

    def __init__(self, request: int, clockwork: Clockwork) -> None:
        self.request = request
        self.reply: Any = None
        self.has_come = Signal(clockwork)

    def arrive(self, reply: Any) -> None:
        """Its reply has come."""
        self.reply = reply
        self.has_come.set(reply)


class Attachment:
    """The connection between a client and one life, as the client's end of the socket sees it.

    Stands for cache_l2.attach_channel.AttachChannel: calls of several threads at a time, answered by the sidecar's loop.
    """

    def __init__(self, world: World, life: Life, row: int, process: Process) -> None:
        self.life = life
        self.reader = ModelReader(life.arena, row, ring=self._ring)
        self.client: Any = Attached(row, writable=True, registered=set())
        life.clients.append(self.client)
        self._requests = 0
        self._world = world
        self._process = process
        self._is_closed = False
        self._unwanted: list[int] = []
        """Reservations that came too late."""
        self.is_hung_up = False
        self.on_hang_up: Callable[[], None] = lambda: None

    # --- what AttachedArena calls ---

    @property
    def is_broken(self) -> bool:
        return self.is_hung_up or self._is_closed

    def fileno(self) -> int:
        return -1

    def draw_request(self) -> int:
        """A number that no request of this connection had."""
        self._requests += 1
        return self._requests

    def call(self, message: Any, *, deadline_s: float, request: int | None = None) -> Any:
        """Send a message and wait for its reply; raises as the real channel does."""
        reply, late = Signal(self._world.clockwork), list[bool]()

        def arrive(result: Any) -> None:
            if late:
                self._take_late(result)
            else:
                reply.set(result)

        self._send(message, arrive, request)
        own_ns = int(deadline_s * 1e9)
        if not reply.wait(self._process.node.true_delay_ns(own_ns)):
            late.append(True)
            if self.is_hung_up:
                raise ConnectionBroken("the sidecar is gone")
            raise DeadlinePassed(f"no reply in {deadline_s} s")
        return reply.value

    def post(self, message: Any, *, request: int | None = None) -> Posted:
        """Send a message and wait for nothing; raises as the real channel does."""
        posted = Posted(self.draw_request() if request is None else request, self._world.clockwork)
        self._send(message, posted.arrive, posted.request)
        return posted

    def wait(self, posted: Posted, *, deadline_s: float) -> Any:
        """Wait for the reply to what was posted; raises as the real channel does."""
        if posted.reply is None and self.is_broken:
            raise ConnectionBroken("the connection is gone")
        if not posted.has_come.wait(self._process.node.true_delay_ns(int(deadline_s * 1e9))):
            if self.is_hung_up:
                raise ConnectionBroken("the sidecar is gone")
            raise DeadlinePassed(f"no reply in {deadline_s} s")
        return posted.reply

    def forget(self, posted: Posted) -> None:
        """Nobody looks at its reply."""

    def poll(self) -> None:
        """Replies that have come are there already."""
        if self.is_broken:
            raise ConnectionBroken("the connection is gone")

    def _send(self, message: Any, arrive: Callable[[Any], None], request: int | None) -> None:
        if self.is_broken:
            raise ConnectionBroken("the connection is gone")
        clockwork, life = self._world.clockwork, self.life
        number = self.draw_request() if request is None else request
        unwanted, self._unwanted = tuple(self._unwanted), []

        def answer() -> None:
            if unwanted:
                self._answer(Abort(unwanted))
            self._take(message, number, send)

        def send(result: Any) -> None:
            clockwork.after(self._latency_ns(), functools.partial(arrive, result), self._process)

        clockwork.after(self._latency_ns(), lambda: life.loop.call_soon(answer), life.process)

    def _take_late(self, result: Any) -> None:
        """What nobody waits for any more; reservations among it go back with the next call, as the real channel has it."""
        if isinstance(result, ReservedPages):
            self._unwanted += [
                reservation
                for status, reservation in zip(result.statuses, result.reservations, strict=True)
                if status == PutStatus.STORED
            ]

    def give_back(self) -> None:
        """Have the client's next call come now, whatever it is for."""
        unwanted, self._unwanted = tuple(self._unwanted), []
        if unwanted and not self.is_broken:
            life = self.life
            self._world.clockwork.after(
                self._latency_ns(), lambda: life.loop.call_soon(self._answer, Abort(unwanted)), life.process
            )

    def ask(self, question: Callable[[Life], Any], *, deadline_s: float) -> Any:
        """Ask something of the sidecar's loop in another way than over this connection; None without an answer in time."""
        clockwork, life = self._world.clockwork, self.life
        reply = Signal(clockwork)

        def answer() -> None:
            result = question(life)
            clockwork.after(self._latency_ns(), functools.partial(reply.set, result), self._process)

        clockwork.after(self._latency_ns(), lambda: life.loop.call_soon(answer), life.process)
        reply.wait(self._process.node.true_delay_ns(int(deadline_s * 1e9)))
        return reply.value

    def _take(self, message: Any, request: int, send: Callable[[Any], None]) -> None:
        """As the attach server takes a message; `send` is called with the reply, now or later."""
        if not isinstance(message, Load | CancelLoad):
            send(self._answer(message))
            return
        loads = self.life.client_loads
        if isinstance(message, CancelLoad):
            loads.cancel(self.client, message.request)
            send(Done())
            return
        answer: Any
        try:
            answer = loads.begin(self.client, request, message, send)
        except StrataError as error:
            answer = Failed(error.code, str(error))
        if answer is not None:
            send(answer)

    def _answer(self, message: Any) -> Any:
        if isinstance(message, Detach):
            self.life.store.end_client(self.client.row)
            return None
        try:
            answer = carry_out(self.life.store, self.life.sidecar.node, self.client, message)
        except StrataError as error:
            return Failed(error.code, str(error))
        return answer

    def _ring(self) -> None:
        life = self.life
        self._world.clockwork.after(
            self._latency_ns(), lambda: life.loop.call_soon(life.store.settle_posts), life.process
        )

    def _latency_ns(self) -> int:
        return 20 * US + int(self._world.clockwork.random.random() * self._world.plan.socket_ns)

    def close(self) -> None:
        self._is_closed = True

    def abandon_in_child(self) -> None:
        """No process of a simulation forks."""

    # --- what befalls it ---

    def hang_up(self) -> None:
        """The sidecar is gone; the client's background thread notices in a while."""
        self.is_hung_up = True
        delay_ns = int(self._world.clockwork.random.random() * self._world.plan.notices_ns)
        self._world.clockwork.after(delay_ns, self._tell_hang_up, self._process)

    def _tell_hang_up(self) -> None:
        self.on_hang_up()


@functools.cache
def _config(ring_records: int, skew_ms: int, reservation_s: float) -> ArenaConfig:
    return ArenaConfig(
        arena_bytes=64 * 1024 * 1024,
        ring_records=ring_records,
        skew_bound_s=skew_ms / 1000,
        reservation_s=reservation_s,
    )


@functools.cache
def _compaction(per_scope: int, tombstones: int, scopes: int) -> CompactionLimits:
    return CompactionLimits(tombstones_per_scope=per_scope, tombstones=tombstones, scopes=scopes)


@functools.cache
def _limits(records: int, batch: int, per_scope: int, tombstones: int, scopes: int) -> LogLimits:
    return LogLimits(records=records, batch=batch, per_scope=per_scope, tombstones=tombstones, scopes=scopes)
