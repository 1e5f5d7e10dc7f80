"""A worker of the simulation: the product's client, request and L1 in the hands of a model of a forward pass.

It does what a connector does: begin a request, look up in L1 and L2, compute what is missing on top, keep it in L1, store it
in L2. What it computes is the number of an Instance, so that whoever is served it can tell what it truly was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cache_l1.cache import L1Cache
from inference_worker.request import Request
from inference_worker.weights import Announced, FollowedVersion
from kv_types.ids import KEY_BYTES
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, PutOutcome, Refused, RefuseReason
from tests.sim.client_process import ClientProcess, Invoked
from tests.sim.environment import PAGE_BYTES
from tests.sim.sidecar import SimulatedSidecar
from tests.sim.spaces import Path, chain, namespace, packed
from tests.sim.truth import Instance

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

L1_PAGES = 6
SWITCHES_MAX = 4


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


@dataclass(eq=False)
class Pass:
    """A request under way: what it reuses, and what it has computed on top."""

    space: Namespace
    path: Path
    pages: list[Instance] = field(default_factory=list)
    """One for each page of the chain, from the root on, found or computed."""
    own: list[int] = field(default_factory=list)
    """Indices of those that it has computed."""
    life: Life | None = None
    """The sidecar's life that it told of itself; None: it could not, so it stores nothing, and nobody waits for it."""

    @property
    def used(self) -> frozenset[Instance]:
        return frozenset(self.pages)

    @property
    def first_own(self) -> int:
        """Index of the first page that was not found, behind the last one when all were."""
        return self.own[0] if self.own else len(self.path)

    @property
    def reused(self) -> list[Instance]:
        """The pages that it was given."""
        return [page for index, page in enumerate(self.pages) if index not in self.own]


class Worker(ClientProcess):
    """One worker process with one or more threads that share its L1."""

    def __init__(self, world: World, sidecar: SimulatedSidecar, number: int) -> None:
        super().__init__(world, sidecar, f"{sidecar.node.name}w{number}")
        self.weights = world.weights
        """The version of the weights that are truly loaded."""
        self.passes: list[Pass] = []
        self._followed = FollowedVersion(self.weights) if world.plan.switches_weights else None
        self._l1: dict[Namespace, L1Cache] = {}

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

    def serve(self, space: Namespace, path: Path, *, fetch: bool = False) -> tuple[Pass, list[PutOutcome]]:
        """Look up a chain, compute what is missing, keep and store it; returns what came of it.

        `fetch`: have loaded what is missing in any case, which else is left to chance.
        """
        attachment = self.attachment
        if self.world.plan.l3 and not self.world.is_quiet:
            self._ask_ahead(space, path)
        space, request, announced = self._begin(space)
        now = Pass(space, path)
        if request is None:  # it can't be told what weights these are: neither reused nor stored
            return now, []
        if request.stamp is not None and attachment is not None and attachment is self.attachment:
            now.life = attachment.life
        self.passes.append(now)
        try:
            with request:
                return now, self._carry_on(now, request, announced, fetch)
        finally:
            self.passes.remove(now)

    def _begin(self, space: Namespace) -> tuple[Namespace, Request | None, Announced | None]:
        """Begin a request, under the weights that are announced once the view is loaded (rules R1, R5)."""
        if self._followed is None:
            return space, self.client.begin(self.registered(space)), None
        for _ in range(SWITCHES_MAX):
            space = namespace(space.model, self._followed.version, space.tenant)
            request = self.client.begin(self.registered(space))
            announced = self.client.announced(space.model)
            problem = self._followed.observe(announced)
            if not problem and self._followed.version == space.weights.version:
                return space, request, announced
            request.end()
        return space, None, None

    def _carry_on(
        self, now: Pass, request: Request, announced: Announced | None, fetch: bool
    ) -> list[PutOutcome]:
        world, space, path = self.world, now.space, now.path
        cache, keys = self._cache(space), packed(space, path)
        cache.synchronise(self.client.validity)
        view = cache.observe()
        position = world.position_of(self)
        if (
            len(path) > 1 and not world.is_quiet and world.chance(0.25)
        ):  # a request that grows: some turns, each looked up anew
            self._look_up(now, request, cache, keys[:KEY_BYTES])
            self._compute(now, position, request, until=1)
            self._extend(now, request, keys)
        else:
            self._look_up(now, request, cache, keys, deadline_s=None if fetch else self._patience_s())
        while len(now.pages) < len(path):
            self._compute(
                now, position, request, until=len(path) if world.chance(0.6) else len(now.pages) + 1
            )
        if announced is not None and self.client.announced(space.model) != announced:
            return []  # weights were announced meanwhile: nobody knows which of them computed what (rule R5)
        return self._keep(now, request, cache, keys, view)

    def _keep(self, now: Pass, request: Request, cache: L1Cache, keys: bytes, view: Any) -> list[PutOutcome]:
        """Store and keep what was computed."""
        world = self.world
        words = [_bytes(page) for page in now.pages]
        outcomes: list[PutOutcome] = []
        if now.own:
            outcomes = self._store(request, keys, words, now)
        if world.chance(world.plan.keep):
            cache.insert(keys, 0, words, view=view, instances=request.instances(keys))
        if world.chance(0.1):
            world.clockwork.sleep(world.pass_ns())
        return outcomes

    def _store(self, request: Request, keys: bytes, words: list[bytes], now: Pass) -> list[PutOutcome]:
        """Store what was computed; from the root on where L2 has lost what L1 still had."""
        tags = self.world.tags_of(now.path)
        outcomes = request.put(keys, words[now.first_own :], start=now.first_own, tags=tags)
        first = outcomes[0]
        if now.first_own and isinstance(first, Refused) and first.reason is RefuseReason.PARENT_ABSENT:
            outcomes = request.put(keys, words, start=0, tags=tags)
        return outcomes

    def _ask_ahead(self, space: Namespace, path: Path) -> None:
        """What arrives is loaded before its turn, or called off; and ranks of a group may ask how much all of them have."""
        world, draw = self.world, self.world.clockwork.random.random()
        if draw < 0.2:
            asked = self.client.prefetch(
                self.registered(space), packed(space, path), deadline_s=self._patience_s()
            )
            world.clockwork.sleep(world.think_ns() // 4)
            if asked is not None and draw < 0.07:
                asked.cancel()
        elif draw < 0.3:
            others = [one for one in world.spaces if one is not space]
            shards = [(self.registered(one), packed(one, path)) for one in (space, *others[:1])]
            self.client.match_shards(shards, deadline_s=self._patience_s())

    def _patience_s(self) -> float | None:
        """How long it waits for what L2 lacks: not at all, too short, as long as it is used to."""
        draw = self.world.clockwork.random.random()
        return 0.0 if draw < 0.2 else 0.2 * draw if draw < 0.5 else None

    def _look_up(
        self, now: Pass, request: Request, cache: L1Cache, keys: bytes, *, deadline_s: float | None = 0.0
    ) -> None:
        """Look up in L1, then in L2 for the rest, and have loaded what that lacks; what comes is held against the truth."""
        world = self.world
        fences, invoked = len(world.truth.fenced), self.invoked()
        numbers = cache.match(keys)
        buffers = [bytearray(PAGE_BYTES) for _ in numbers]
        cache.read(numbers, buffers)
        local = [bytes(one) for one in buffers]
        request.reused(keys[: len(numbers) * KEY_BYTES], cache.instances(numbers))
        cache.release(numbers)
        if world.chance(0.5):
            remote = self._get(request, keys, len(local), deadline_s)
            self._served(now, [*local, *remote], fences, invoked, from_l1=len(local))
            return
        with request.lease(keys, start=len(local), deadline_s=deadline_s) as lease:
            self._served(now, [*local, *map(bytes, lease)], fences, invoked, from_l1=len(local))
            if world.chance(0.5):
                world.clockwork.sleep(world.pass_ns())
                self._served(now, [*local, *map(bytes, lease)], fences, None, from_l1=len(local))

    def _extend(self, now: Pass, request: Request, keys: bytes) -> None:
        """Look up what L2 has behind the pages that this request has already."""
        fences, invoked = len(self.world.truth.fenced), self.invoked()
        own = [_bytes(page) for page in now.pages]
        pages = [*own, *self._get(request, keys, len(own), self._patience_s())]
        self._served(now, pages, fences, invoked, from_l1=len(own), own=len(own))

    @staticmethod
    def _get(request: Request, keys: bytes, start: int, deadline_s: float | None) -> list[bytes]:
        pages = [bytearray(PAGE_BYTES) for _ in range(len(keys) // KEY_BYTES - start)]
        outcome = request.get(keys, pages, start=start, deadline_s=deadline_s)
        return [bytes(page) for page in pages[: outcome.pages if isinstance(outcome, Hit) else 0]]

    def _served(
        self,
        now: Pass,
        pages: Sequence[bytes],
        fences: int,
        invoked: Invoked | None,
        *,
        from_l1: int,
        own: int = 0,
    ) -> None:
        """Hold what a look-up returned, all but the first `own` pages, against the truth."""
        keys = chain(now.space, now.path)
        found = [
            self.world.truth.check_whole(_words(page), keys[: index + 1], now.space, self.name)
            for index, page in enumerate(pages)
        ]
        self.world.served(self, found[own:], fences, invoked, from_l1=from_l1, wanted=len(now.path))
        now.pages = found

    def load(self, space: Namespace, path: Path) -> int:
        """Have a chain loaded; returns how many of its pages are there afterwards."""
        outcome = self.client.match_shards([(self.registered(space), packed(space, path))], deadline_s=1.0)
        return outcome.pages if isinstance(outcome, Hit) else 0

    def _compute(self, now: Pass, position: tuple[bytes, int], request: Request, *, until: int) -> None:
        """A forward pass over the next pages; each rests on all that this request has before it."""
        world, stamp = self.world, request.stamp
        keys, used = chain(now.space, now.path), now.used
        begun, from_ms, weights = len(world.truth.appends), world.true_wall_ms(), self.weights
        made: list[Instance] = []
        for index in range(len(now.pages), until):
            page = Instance(
                number=len(world.truth.instances) + 1, namespace=now.space, chain=keys[: index + 1], begun=begun,
                incarnation=position[0], revision=0 if stamp is None else stamp.revision, producer=self.producer,
                tags=world.tags_of(now.path), from_ms=from_ms, until_ms=from_ms, weights=weights,
            )  # fmt: skip
            used = used.union((world.truth.computed(page, used),))
            now.pages.append(page)
            now.own.append(index)
            made.append(page)
        if made:
            world.clockwork.sleep(world.pass_ns())
        for page in made:
            page.until_ms = world.true_wall_ms()

    # --- life ---

    def run(self) -> None:
        """Serve requests until the world is quiet."""
        world = self.world
        while True:
            world.clockwork.sleep(world.think_ns())
            if world.is_quiet:
                return
            if self.connect():
                space, path = world.wish()
                self.serve(space, path)

    def kill(self) -> None:
        super().kill()
        self.passes.clear()


def _bytes(page: Instance) -> bytes:
    return page.number.to_bytes(8, "little") * 2


def _words(page: bytes) -> tuple[int, int]:
    return int.from_bytes(page[:8], "little"), int.from_bytes(page[8:16], "little")
