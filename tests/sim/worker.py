"""A worker of the simulation: the product's client, request and L1 in the hands of a model of a forward pass.

It does what a connector does: begin a request, look up in L1 and L2, compute what is missing on top, keep it in L1, store it
in L2. What it computes is the number of an Instance, so that whoever is served it can tell what it truly was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cache_l1.cache import L1Cache
from cache_l2.attach_messages import Welcome
from cache_l2.reader import AttachedArena
from inference_worker.absent import AbsentPages
from inference_worker.client import Client
from inference_worker.lease import Home
from inference_worker.local import LocalArena
from inference_worker.namespaces import RegisteredNamespace
from inference_worker.settings import ClientSettings
from kv_types.errors import ClosedError, DeadlineExceededError, SidecarUnreachableError
from kv_types.ids import KEY_BYTES
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, MissReason, PutOutcome
from tests.sim.clockwork import MS
from tests.sim.environment import PAGE_BYTES
from tests.sim.sidecar import Attachment, SimulatedSidecar
from tests.sim.spaces import Path, chain, packed
from tests.sim.truth import Instance

if TYPE_CHECKING:
    from tests.sim.world import World

L1_PAGES = 6


class L1Memory:
    """The bytes of an L1; stands for cache_l1.device_pages.DevicePages."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        self.capacity, self.page_bytes = L1_PAGES, PAGE_BYTES
        self._pages = [b""] * L1_PAGES
        self._give_way = give_way

    def write(self, page: int, source: Any) -> None:
        self._give_way()
        self._pages[page] = bytes(source)

    def read(self, page: int, destination: Any) -> None:
        destination[:] = self._pages[page]
        self._give_way()


class SimulatedLink:
    """A client's connection; stands for inference_worker.link.Link, whose threads a simulation has no use for."""

    wants_shared_memory = False

    def __init__(self, name: str) -> None:
        self.settings = ClientSettings(name=name, deadline_s=0.5)
        self.closed = False
        self.home = Home()
        self.arena: LocalArena | None = None
        self.namespaces: dict[Namespace, RegisteredNamespace] = {}

    def close(self) -> None:
        """Nothing here outlives the simulation."""

    def register(self, identity: Namespace) -> RegisteredNamespace:
        """Return the one object of this identity."""
        known = self.namespaces.get(identity)
        if known is None:
            known = self.namespaces[identity] = RegisteredNamespace(self, identity, page_bytes=PAGE_BYTES)
            known.absent = AbsentPages(known, lambda *_: MissReason.UNREACHABLE, deadline_s=0.5)
            known.pages = known.absent
        return known


@dataclass(eq=False)
class Pass:
    """A request under way: what it reuses, and what it has computed on top."""

    space: Namespace
    path: Path
    invoked_fences: int
    invoked_ns: int
    begun: int
    pages: list[Instance] = field(default_factory=list)
    """One for each page of the chain, from the root on, found or computed."""
    found: int = 0

    @property
    def used(self) -> frozenset[Instance]:
        return frozenset(self.pages)


class Worker:
    """One worker process with one or more threads that share its L1."""

    def __init__(self, world: World, sidecar: SimulatedSidecar, number: int) -> None:
        self.world = world
        self.sidecar = sidecar
        self.name = f"{sidecar.node.name}w{number}"
        self.producer = self.name.encode()
        self.process = sidecar.node.process(self.name)
        self.link = SimulatedLink(self.name)
        self.client = Client(self.link)  # type: ignore[arg-type]
        self.attachment: Attachment | None = None
        self.weights = world.plan.weights
        self.passes: list[Pass] = []
        self._l1: dict[Namespace, L1Cache] = {}

    # --- the connection ---

    def connect(self) -> bool:
        """Attach, if a sidecar listens."""
        if self.link.arena is not None:
            return True
        attachment = self.sidecar.attach(self.process)
        if attachment is None:
            return False
        life = attachment.life
        welcome: Any = Welcome(
            version=1, layout_version=1, row=attachment.client.row, life=life.id, control_bytes=0, clients_bytes=0,
            data_bytes=0, batch_pages_max=64, reservation_ms=1000, time_namespace=0, boot_now_ns=0, attachment=1,
        )  # fmt: skip
        channel: Any = attachment
        reader: Any = attachment.reader
        arena = LocalArena(
            AttachedArena("", channel, welcome, reader, writable=True), self.link.settings, None
        )
        attachment.on_hang_up = lambda: self._withdraw(arena)
        self.attachment, self.link.arena = attachment, arena
        return True

    def _withdraw(self, arena: LocalArena) -> None:
        """As the client's supervisor does when the sidecar is gone."""
        if self.link.arena is arena:
            self.link.arena = None
            for namespace in self.link.namespaces.values():
                namespace.pages = namespace.absent
            arena.reader.close()

    def _registered(self, space: Namespace) -> RegisteredNamespace:
        from inference_worker.deadlines import Deadline

        registered = self.link.register(space)
        arena = self.link.arena
        if arena is not None and registered.pages is registered.absent:
            try:
                pages = arena.bind(registered, Deadline(0.5))
            except (DeadlineExceededError, SidecarUnreachableError, ClosedError):
                return registered  # stays absent, and the next request asks again
            if self.link.arena is arena:
                registered.pages = pages
        return registered

    def _cache(self, space: Namespace) -> L1Cache:
        cache = self._l1.get(space)
        if cache is None:
            memory = L1Memory(self.world.clockwork.give_way)
            cache = self._l1[space] = L1Cache(
                capacity_pages=L1_PAGES, page_bytes=PAGE_BYTES, namespace=space, memory=memory,
                clock=self.sidecar.node,
            )  # fmt: skip
        return cache

    # --- one request ---

    def serve(self, space: Namespace, path: Path) -> tuple[Pass, list[PutOutcome]]:
        """Look up a chain, compute what is missing, keep and store it; returns what came of it."""
        world, plan = self.world, self.world.plan
        registered, cache = self._registered(space), self._cache(space)
        keys = packed(space, path)
        now = Pass(space, path, len(world.truth.fenced), self.sidecar.node.now_ns(), len(world.truth.appends))
        self.passes.append(now)
        outcomes: list[PutOutcome] = []
        with self.client.begin(registered) as request:
            position = world.position_of(self)
            cache.synchronise(self.client.validity)
            view = cache.observe()
            self._look_up(now, request, cache, keys)
            if world.has_shelf_for(self, now) and len(now.pages) < len(path) and world.chance(0.7):
                self._fetch(now)
                self._look_up(now, request, cache, keys)
            now.found = len(now.pages)
            stamp = request.stamp
            while len(now.pages) < len(path):
                chunk = len(path) if world.chance(0.6) else len(now.pages) + 1
                self._compute(now, position, 0 if stamp is None else stamp.revision, until=chunk)
            words = [_bytes(page) for page in now.pages]
            if now.found < len(path):
                outcomes = request.put(keys, words[now.found :], start=now.found, tags=world.tags_of(now))
            if world.chance(plan.keep):
                cache.insert(keys, 0, words, view=view, instances=request.instances(keys))
            if world.chance(0.1):
                world.clockwork.sleep(world.pass_ns())
        self.passes.remove(now)
        return now, outcomes

    def _look_up(self, now: Pass, request: Any, cache: L1Cache, keys: bytes) -> None:
        """Look up in L1, then in L2 for the rest; what comes is held against the truth at once."""
        world = self.world
        fences, invoked_ns = len(world.truth.fenced), self.sidecar.node.now_ns()
        numbers = cache.match(keys)
        local = [bytearray(PAGE_BYTES) for _ in numbers]
        cache.read(numbers, local)
        request.reused(keys[: len(numbers) * KEY_BYTES], cache.instances(numbers))
        cache.release(numbers)
        wanted = len(now.path) - len(local)
        if world.chance(0.5):
            remote = [bytearray(PAGE_BYTES) for _ in range(wanted)]
            outcome = request.get(keys, remote, start=len(local))
            pages = [*local, *remote[: outcome.pages if isinstance(outcome, Hit) else 0]]
        else:
            with request.lease(keys, start=len(local)) as lease:
                pages = [*local, *(bytes(page) for page in lease)]
                self._served(now, pages, fences, invoked_ns, from_l1=len(local))
                if world.chance(0.5):
                    world.clockwork.sleep(world.pass_ns())
                    pages = [*local, *(bytes(page) for page in lease)]
                    self._served(now, pages, fences, None, from_l1=len(local))
            return
        self._served(now, pages, fences, invoked_ns, from_l1=len(local))

    def _served(
        self,
        now: Pass,
        pages: Sequence[bytes | bytearray],
        fences: int,
        invoked_ns: int | None,
        *,
        from_l1: int,
    ) -> None:
        keys = chain(now.space, now.path)
        found = [
            self.world.truth.check_whole(_words(page), keys[: index + 1], now.space, self.name)
            for index, page in enumerate(pages)
        ]
        self.world.served(self, found, fences, invoked_ns, from_l1=from_l1, wanted=len(now.path))
        now.pages = found

    def _fetch(self, now: Pass) -> None:
        keeper = self.attachment.life.keeper if self.attachment is not None else None
        if keeper is not None and self.attachment is not None and not self.attachment.is_hung_up:
            keeper.ask(now.space, chain(now.space, now.path)).wait(400 * MS)

    def _compute(self, now: Pass, position: tuple[bytes, int], revision: int, *, until: int) -> None:
        """A forward pass over the next pages; each rests on all that this request has before it."""
        world = self.world
        keys, wall_ns = chain(now.space, now.path), self.sidecar.node.wall_ns
        begun, from_ms = len(world.truth.appends), world.true_wall_ms()
        used = now.used
        world.clockwork.sleep(world.pass_ns())
        for index in range(len(now.pages), until):
            page = Instance(
                number=len(world.truth.instances) + 1, namespace=now.space, chain=keys[: index + 1], begun=begun,
                incarnation=position[0], revision=revision, producer=self.producer, tags=tuple(world.tags_of(now)),
                from_ms=from_ms, until_ms=world.true_wall_ms(), weights=self.weights,
            )  # fmt: skip
            used = used.union((world.truth.computed(page, used),))
            now.pages.append(page)
        assert wall_ns() > 0

    # --- life ---

    def run(self) -> None:
        """Serve requests for ever."""
        world = self.world
        while True:
            world.clockwork.sleep(world.think_ns())
            if world.is_quiet:
                return
            if self.connect():
                space, path = world.wish(self)
                self.serve(space, path)

    def kill(self) -> None:
        """End as by SIGKILL."""
        self.world.note(self.name, "worker dies")
        self.world.clockwork.kill(self.process)
        self.passes.clear()
        if self.attachment is not None and not self.attachment.is_hung_up:
            self.sidecar.client_died(self.attachment)


def _bytes(page: Instance) -> bytes:
    return page.number.to_bytes(8, "little") * 2


def _words(page: bytes | bytearray) -> tuple[int, int]:
    return int.from_bytes(page[:8], "little"), int.from_bytes(page[8:16], "little")
