"""A world: one seed's fleet, servers, network and truth, put together and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from invalidation.records import LogEntry
from kv_types.events import Selected
from kv_types.ids import LifeId, PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.validity import EngineMode
from tests.sim import environment
from tests.sim.arena import ModelArena
from tests.sim.arena_entries import VISIBLE, Entry, ancestors, subtree
from tests.sim.client_process import ClientProcess, Invoked
from tests.sim.clockwork import MS, Clockwork, S, Signal
from tests.sim.engine import Engine
from tests.sim.faults import Faults
from tests.sim.leftovers import check_nothing_left
from tests.sim.load_truth import LoadTruth
from tests.sim.network import Network
from tests.sim.nodes import Node
from tests.sim.operator import Operator
from tests.sim.plan import Plan
from tests.sim.redis_server import RedisServer
from tests.sim.scripts import LUA, renewal_of, settle, tip_of
from tests.sim.sidecar import SimulatedSidecar
from tests.sim.spaces import Path, namespace
from tests.sim.truth import BrokenPromiseError, Grant, Instance, Truth
from tests.sim.worker import Worker

TRUE_EPOCH_MS = 1_700_000_000_000
POSTED_WAIT_NS = 20 * MS
POSTED_PAUSE_NS = MS // 10


class TrackedArena(ModelArena):
    """An arena that tells the truth what becomes visible in it."""

    world: World
    published: dict[bytes, int]
    who: str
    loaded_ns: dict[bytes, int]
    """When the page under a key was loaded last, in true time."""
    gone_ns: dict[bytes, int]
    """When the page under a key was seen last before it went."""

    def await_settled(self, key: bytes) -> bool:
        clockwork = self.world.clockwork
        until_ns = clockwork.now_ns + POSTED_WAIT_NS
        while clockwork.now_ns < until_ns and not self.closed:
            Signal(clockwork).wait(POSTED_PAUSE_NS)
            if not self.is_posted(key):
                return True
        return False

    def was_there(self, key: bytes, since_ns: int) -> bool:
        """Whether a page could be found under a key at some time since then."""
        entry = self.index.get(key)
        return (entry is not None and entry.state == VISIBLE) or self.gone_ns.get(key, -1) >= since_ns

    def publish_loaded(self, **terms: Any) -> tuple[int, int]:
        entry = self._reserved_by(terms["row"], terms["reservation"])
        key = b"" if entry is None else entry.key
        outcome = super().publish_loaded(**terms)
        if outcome[0] == PutStatus.STORED:
            assert entry is not None, "it was reserved"
            self.loaded_ns[key] = self.world.clockwork.now_ns
            with self.world.watching():
                self.world.loaded(self, entry)
        return outcome

    def publish_event(self, *, incarnation: bytes, revision: int, kind: int, payload: bytes) -> int:
        view = super().publish_event(incarnation=incarnation, revision=revision, kind=kind, payload=payload)
        self.published[incarnation] = revision
        return view

    def _publish(self, entry: Entry) -> None:
        super()._publish(entry)
        with self.world.watching():
            self.world.published(self, entry)

    def _hide_subtree(self, top: Entry, reason: RefuseReason) -> int:
        for entry in subtree(top):
            if entry.state == VISIBLE:
                self.gone_ns[entry.key] = self.world.clockwork.now_ns
                with self.world.watching():
                    self.world.truth.check_bytes(entry.birth, (entry.place[0], entry.place[1]), self.who)
        if reason is RefuseReason.INVALIDATED and self.world.plan.is_plain:
            for entry in subtree(top):
                if entry.state == VISIBLE:
                    with self.world.watching():
                        self.world.hidden(self, entry)
        return super()._hide_subtree(top, reason)


class World:
    """Made of a plan; `run` lives through it and raises BrokenPromiseError on what must never be."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clockwork = Clockwork(plan.seed)
        self.truth = Truth()
        self.loads = LoadTruth(self)
        self.damaged = 0
        """Pages whose bytes were changed on servers."""
        self.history: list[tuple[int, str, str]] = []
        self.network = Network(self.clockwork)
        self.arenas: dict[LifeId, TrackedArena] = {}
        self.is_quiet = False
        self._healed_ns: list[int] = []
        """When all faults had ended, by the clock of each sidecar's machine."""
        self.starting: SimulatedSidecar | None = None
        """Whose life begins now."""
        self.superseded: set[RedisServer] = set()
        self._chance = self.clockwork.random.random
        environment.enter(self.clockwork, plan, self._make_arena)
        self.clockwork.often(plan.give_way_every, self._interruption_ns)
        self.servers = self._servers("r", plan.servers)
        self.page_servers = self.servers if plan.l3 == "log" else self._servers("p", plan.page_servers)
        """Those of L3."""
        self.sidecars = [SimulatedSidecar(self, number) for number in range(plan.sidecars)]
        self.spaces = [namespace(*names) for names in plan.spaces]
        self.workers: list[Worker] = []
        self.engines: list[Engine] = []
        self.weights = "1"
        """The version of the weights that whoever starts now is given."""
        self.faults = Faults(self)
        self.operator = Operator(self)

    def node(self, name: str) -> Node:
        """Make a machine; those of sidecars have their own clocks."""
        number = int(name[1:])
        is_redis = name.startswith(("r", "p"))
        rate_ppm = 0 if is_redis else self.plan.rates_ppm[number]
        node = Node(
            self.clockwork, name, rate_ppm=rate_ppm, boot_ns=self.clockwork.random.randrange(1, 1000) * S
        )
        node.wall_offset_ns = TRUE_EPOCH_MS * MS
        if not is_redis:
            node.wall_offset_ns += self.plan.wall_errors_ms[number] * MS
        return node

    def _servers(self, letter: str, count: int) -> list[RedisServer]:
        """A primary, and replicas that follow it."""
        servers = [self._server(f"{letter}{number}") for number in range(count)]
        for server in servers[1:]:
            server.follow(servers[0])
        return servers

    def _server(self, name: str) -> RedisServer:
        server = RedisServer(self.clockwork, self.network, self.node(name), LUA, on_write=self._wrote)
        server.on_script = self._renewed
        if self.plan.repeats:
            server.repeat_ns = self._repeat_ns
        return server

    def _repeat_ns(self) -> int:
        if self._chance() >= self.plan.repeats:
            return 0
        return int(self.clockwork.random.expovariate(1 / 0.4) * S) + 1

    def _make_arena(self, config: Any, life: bytes) -> ModelArena:
        sidecar = self.starting
        assert sidecar is not None, "only a sidecar's life makes an arena"
        arena = TrackedArena(
            life=life, entries=self.plan.arena_entries, ring_records=config.ring_records, now_ns=sidecar.node.now_ns,
            give_way=self.clockwork.give_way,
        )  # fmt: skip
        arena.world, arena.published, arena.who = self, {}, sidecar.node.name
        arena.loaded_ns, arena.gone_ns = {}, {}
        self.arenas[LifeId(life)] = arena
        return arena

    # --- what product and models tell ---

    def note(self, who: str, what: str) -> None:
        """A line of the history."""
        self.history.append((self.clockwork.now_ns, who, what))

    def _wrote(self, server: RedisServer, name: bytes, arguments: tuple[bytes, ...]) -> None:
        if name != b"XADD":
            return
        entry = LogEntry.decode(arguments[3])
        state = server.keyspace.values[arguments[0].replace(b":stream", b":state")]
        incarnation = bytes.fromhex(state[b"incarnation"].decode())
        revision = int(arguments[1].partition(b"-")[0])
        selector = entry.event.selector if isinstance(entry.event, Selected) else None
        append = self.truth.appended(
            server.node.name, incarnation, revision, selector, true_ns=self.clockwork.now_ns
        )
        self.note(
            server.node.name, f"append {append.number}: {_said(entry)} at {incarnation.hex()[:4]}:{revision}"
        )

    def _renewed(self, server: RedisServer, arguments: tuple[bytes, ...], reply: Any, sent_ns: int) -> None:
        """A server ran a script; a renewal by the true primary lets its member vouch for what it has."""
        renewal = renewal_of(arguments, reply)
        if renewal is None:
            return
        member, incarnation, tip = renewal
        self.truth.renewed(member, incarnation, true_ns=self.clockwork.now_ns)
        if server not in self.superseded:
            self.truth.granted(member, Grant(sent_ns + self.plan.lease_ns, incarnation, tip))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A broken promise that is seen from within product code ends the simulation, whatever that code makes of it."""
        try:
            yield
        except BrokenPromiseError as error:
            self.clockwork.fail(error)
            raise

    def published(self, arena: TrackedArena, entry: Entry) -> None:
        """A page became visible."""
        page = self.truth.instances.get(entry.place[0])
        if page is not None:
            incarnation, revision = self._position(arena)
            self.truth.check_published(page, incarnation, revision, arena.who)
            self.truth.born(entry.birth, page)

    def loaded(self, arena: TrackedArena, entry: Entry) -> None:
        """A page was loaded: its bytes are those of the page of its key, and it is the page that it says it is."""
        words = (entry.place[0], entry.place[1])
        keys = tuple(PageKey(one.key) for one in ancestors(entry))[::-1]
        space = self.truth.space_of(words[0])
        page = self.truth.check_whole(words, keys, space, f"the arena of {arena.who}")
        self.note(arena.who, f"loaded {page} of {len(keys)}")

    def hidden(self, arena: TrackedArena, entry: Entry) -> None:
        """A page was hidden by an invalidation, where nothing else befalls the fleet."""
        life = next(one.life for one in self.sidecars if one.life is not None and one.life.arena is arena)
        read = life.validity.position
        assert read is not None, "an invalidation hid it"
        chain = [
            (self.truth.instances[one.place[0]], one.lineage_unknown, one.from_ms, one.until_ms)
            for one in ancestors(entry)
        ]
        _, _, *limits = self.plan.log_limits
        self.truth.check_spared(
            chain, read.incarnation, read.revision, limits=(limits[0], limits[1], limits[2]), skew_ms=self.plan.skew_ms,
            who=arena.who,
        )  # fmt: skip

    def position_of(self, worker: ClientProcess) -> tuple[bytes, int]:
        """What the header that a worker looks at says now."""
        attachment = worker.attachment
        return (bytes(16), 0) if attachment is None else self._position(self.arenas[attachment.life.id])

    @staticmethod
    def _position(arena: ModelArena) -> tuple[bytes, int]:
        _, incarnation, revision, *_ = arena.ring[arena.view % len(arena.ring)]
        return incarnation, revision

    def served(
        self,
        worker: ClientProcess,
        pages: list[Instance],
        fences: int,
        invoked: Invoked | None,
        *,
        from_l1: int,
        wanted: int,
    ) -> None:
        """A look-up returned. Another thread may have attached to another life meanwhile: either may have served it."""
        if pages:
            self.truth.check_fence(pages, fences, worker.name)
            if invoked is not None and worker.attachment is not None:
                lives = dict.fromkeys(
                    one.life for one in (invoked.attachment, worker.attachment) if one is not None
                )
                members = [(life.shell.member, self.arenas[life.id].published) for life in lives]
                self.truth.check_freshness(members, invoked_ns=invoked.own_ns, who=worker.name)
        self.note(worker.name, f"served {pages} of {wanted}, {from_l1} from L1")

    # --- choices ---

    def chance(self, probability: float) -> bool:
        """Draw."""
        return self._chance() < probability

    def between(self, bounds: tuple[int, int]) -> int:
        """Draw a time, short ones more often."""
        low, high = bounds
        return low + int((high - low) * self._chance() ** 2)

    def think_ns(self) -> int:
        return self.between(self.plan.think_ns)

    def pass_ns(self) -> int:
        if self.is_quiet:
            return 2 * MS
        return self.between(self.plan.pass_ns)

    def _interruption_ns(self) -> int:
        """How long somebody loses the processor in the middle of something: mostly not for long."""
        draw = self._chance()
        if draw < 0.9:
            return int(draw * 5 * MS)
        return int(self._chance() * (1.5 * self.plan.lease_ns if draw > 0.97 else 300 * MS))

    def wish(self) -> tuple[Namespace, Path]:
        """What somebody is asked to compute next."""
        return self.clockwork.random.choice(self.spaces), self.clockwork.random.choice(self.plan.paths)

    @staticmethod
    def tags_of(path: Path) -> tuple[bytes, ...]:
        """Tags that a request gives its pages."""
        return (b"odd",) if len(path) % 2 else ()

    def true_wall_ms(self) -> int:
        """Unix time, as nobody here knows it exactly."""
        return TRUE_EPOCH_MS + self.clockwork.now_ns // MS

    # --- a life ---

    def run(self) -> None:
        """Live through the plan, then see whether everything heals."""
        plan, clockwork = self.plan, self.clockwork
        try:
            clockwork.run(50 * MS)  # replicas attach
            if plan.is_settled:
                settle(self.servers[0], clockwork.random.randbytes(16), plan.replicas)
            for sidecar in self.sidecars:
                clockwork.after(int(self._chance() * 100 * MS), sidecar.start)
                for number in range(plan.workers):
                    self.add_worker(sidecar, number)
                for number in range(plan.engines):
                    self.add_engine(sidecar, number)
            self.operator.schedule(plan.wishes)
            if plan.switches_weights:
                clockwork.at(plan.weights_at_ns, self.operator.load_weights)
            self.faults.schedule(plan.faults)
            clockwork.run(clockwork.now_ns + plan.duration_ns)
            self._quiet()
        finally:
            clockwork.end()
            environment.leave()

    def add_worker(self, sidecar: SimulatedSidecar, number: int) -> Worker:
        """Start a worker."""
        worker = Worker(self, sidecar, number)
        self.workers.append(worker)
        for _ in range(self.plan.threads):
            self.clockwork.spawn(worker.process, worker.run, delay_ns=int(self._chance() * 100 * MS))
        return worker

    def add_engine(self, sidecar: SimulatedSidecar, number: int) -> Engine:
        """Start an engine."""
        mode = EngineMode.KEEP if self.plan.engine_mode == "keep" else EngineMode.DROP
        engine = Engine(self, sidecar, number, mode, is_gated=mode is EngineMode.KEEP and number % 2 == 0)
        self.engines.append(engine)
        self.clockwork.spawn(engine.process, engine.run, delay_ns=int(self._chance() * 200 * MS))
        return engine

    def _quiet(self) -> None:
        """All faults end; then every prefix can be computed, stored and served again on every node (I9)."""
        self.note("world", "quiet")
        self.is_quiet = True
        for (
            server
        ) in self.page_servers:  # or a page from before could take the place of one that is looked for
            server.is_calm = True
        self.faults.heal()
        self.operator.end()
        clockwork = self.clockwork
        self._healed_ns = [sidecar.node.now_ns() for sidecar in self.sidecars]
        clockwork.often(0.0, self._interruption_ns)
        limit_ns = clockwork.now_ns + 20 * self.plan.window_ns
        while not self._is_healed() and clockwork.now_ns < limit_ns:
            clockwork.run(clockwork.now_ns + 50 * MS)
        if not self._is_healed():
            raise BrokenPromiseError("BrokeRecreate", f"the fleet did not heal: {self._ailing()}")
        self._drain_writes()
        finished: list[bool] = []
        clockwork.spawn(None, lambda: self._recreate(finished))
        limit_ns = clockwork.now_ns + 60 * S
        while not finished and clockwork.now_ns < limit_ns:
            clockwork.run(clockwork.now_ns + 20 * MS)
        if not finished:
            raise BrokenPromiseError("BrokeRecreate", "requests hang although everything is well")
        check_nothing_left(self)

    def _drain_writes(self) -> None:
        """What waits to be written to L3 is written, or given up."""
        limit_ns = self.clockwork.now_ns + 30 * S
        while self.clockwork.now_ns < limit_ns:
            lives = [one.life for one in self.sidecars if one.life is not None]
            if all(life.pages.is_idle and not life.arena.posting_rows() for life in lives):
                return
            self.clockwork.run(self.clockwork.now_ns + 50 * MS)
        raise BrokenPromiseError("BrokeRecreate", "pages wait to be stored in L3 although everything is well")

    def _is_healed(self) -> bool:
        return not self._ailing()

    def _ailing(self) -> list[str]:
        ailing = []
        tip = tip_of(self.faults.primary())
        for sidecar in self.sidecars:
            life = sidecar.life
            if life is None:
                ailing.append(f"{sidecar.node} is dead")
                continue
            position = life.shell.position
            follows = position is not None and (position.incarnation, position.revision) == tip
            # not by what was granted before: that may run out before the log is heard of again
            fresh_ns = max(sidecar.node.now_ns(), self._healed_ns[sidecar.number] + self.plan.lease_ns - 1)
            if not follows or life.store.reader.freshness_ns() <= fresh_ns:
                ailing.append(f"{sidecar.node} is {life.shell.state().phase}")
        ailing += [
            f"{worker.name} is busy" for worker in self.workers if worker.process.alive and worker.passes
        ]
        ailing += [f"{one.name} is busy" for one in self.engines if one.process.alive and not one.is_done]
        ailing += [f"{life.sidecar.node} still fences" for life in self.operator.waiting if not life.ended]
        return ailing

    def _recreate(self, finished: list[bool]) -> None:
        """On each node in turn: whatever is missing can be computed and is a hit afterwards."""
        from tests.sim.recreation import recreate

        recreate(self)
        finished.append(True)


def _said(entry: LogEntry) -> str:
    return entry.event.selector.describe() if isinstance(entry.event, Selected) else str(entry.event)


Check = Callable[[World], None]
