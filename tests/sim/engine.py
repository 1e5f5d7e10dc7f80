"""An engine of the simulation: a scheduler with an index of its own prefixes that serves from it without asking (rule R18).

The models follow docs/engines.md. An index that can't be gated claims at each step boundary until when it may serve, applies
what the ring says, and then serves: without limit, as soon as the log knows of it, if it keeps its pages. One that is gated
and keeps its pages claims nothing while the header is fresh: each look-up asks the header whether what the boundary has
applied still is all, and past freshness claims for the time of that look-up alone. In either, a request that began before a
record which selects part of its chain is tainted: nothing of it is hashed, kept or stored any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_l1.follower import ViewFollower
from inference_worker.request import Request
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.namespace import Namespace
from kv_types.validity import EngineMode, ObservedView
from tests.sim.client_process import ClientProcess
from tests.sim.clockwork import MS
from tests.sim.spaces import Path, chain, packed
from tests.sim.truth import Instance

if TYPE_CHECKING:
    from tests.sim.sidecar import SimulatedSidecar
    from tests.sim.world import World

FOR_EVER = (1 << 64) - 1
BLOCKS_MAX = 12


@dataclass(eq=False)
class Running:
    """A request that the scheduler has admitted."""

    space: Namespace
    path: Path
    request: Request
    view: ObservedView | None
    position: tuple[bytes, int]
    pages: list[Instance]
    until_ns: int
    begun: int
    from_ms: int

    @property
    def keys(self) -> tuple[PageKey, ...]:
        return chain(self.space, self.path)


class Engine(ClientProcess):
    """One scheduler process. Mode keep serves on while the log is out of reach; mode drop serves nothing past its claim."""

    def __init__(
        self, world: World, sidecar: SimulatedSidecar, number: int, mode: EngineMode, *, is_gated: bool
    ) -> None:
        super().__init__(world, sidecar, f"{sidecar.node.name}e{number}", engine=mode)
        self._is_gated = is_gated
        self._index: dict[PageKey, Instance] = {}
        self.running: list[Running] = []
        self._follower: ViewFollower | None = None
        self.is_done = False
        """Whether it has taken its last step."""
        self._claimed_ns = 0

    def run(self) -> None:
        """Take steps until the world is quiet."""
        world = self.world
        while not world.is_quiet:
            world.clockwork.sleep(world.between((2 * MS, 80 * MS)) if world.chance(0.95) else world.pass_ns())
            if self.link.arena is None:
                self.connect()
            self._step()
        while self.running:
            self.running.pop().request.end()
        self.is_done = True

    def _step(self) -> None:
        """One step of the scheduler: admit, apply, finish what is done."""
        world = self.world
        wanted = world.wish() if len(self.running) < 3 and world.chance(0.5) else None
        request = None
        if wanted is not None and self.link.arena is not None:
            request = self.client.begin(self.registered(wanted[0]))  # before anything is reused (rule R1)
        view = self._apply()
        if wanted is not None:
            if world.chance(
                0.25
            ):  # a scheduler is busy with others first, and does not look again within its step
                world.clockwork.sleep(world.pass_ns())
            self._admit(*wanted, request, view)
        for one in [one for one in self.running if one.until_ns <= world.clockwork.now_ns]:
            self._finish(one)
            self.running.remove(one)

    def _apply(self) -> ObservedView | None:
        """Claim, then apply what was published: in this order, so that either we see an event or the sidecar the claim."""
        if self.link.header is None:
            return None  # what was claimed of the life before still runs
        if self._follower is None:
            self._follower = ViewFollower(self.client.validity)
        claimed_ns = 0
        if not self._is_gated:
            claimed_ns, _ = self.client.validity.claim_freshness(
                None if self.engine is EngineMode.DROP else FOR_EVER
            )
        verdict = self._follower.follow()
        if verdict.observed is None:
            return None
        if verdict.everything:
            self._index.clear()
        for key in verdict.pages:
            for one in [one for one, page in self._index.items() if key in page.chain]:
                del self._index[one]
        self._claimed_ns = claimed_ns
        self._follower.confirm(verdict.observed)
        return verdict.observed

    def _look_up(self, keys: tuple[PageKey, ...], applied: ObservedView | None) -> list[Instance]:
        """What the engine has of a chain, where it may serve that; a step has applied what was published by `applied`."""
        pages: list[Instance] = []
        for key in keys if self._may_serve(applied) else ():
            page = self._index.get(key)
            if page is None:
                break
            pages.append(page)
        if self._is_gated:
            self.client.validity.claim_freshness(0)
        return pages

    def _may_serve(self, applied: ObservedView | None) -> bool:
        if not self._is_gated:
            return self.node.now_ns() < self._claimed_ns
        validity = self.client.validity
        until_ns, life, view = validity.freshness_ns, validity.life, validity.view  # F first (rule R16)
        if self.node.now_ns() >= until_ns:
            until_ns, view = validity.claim_freshness(FOR_EVER)
            life = validity.life
        return applied == ObservedView(life, view) and self.node.now_ns() < until_ns

    def _admit(
        self, space: Namespace, path: Path, request: Request | None, view: ObservedView | None
    ) -> None:
        """Decide what a request reuses of the engine's own, and of L2 behind it."""
        world, keys, fences = self.world, chain(space, path), len(self.world.truth.fenced)
        pages = self._look_up(keys, view)
        if pages:
            world.truth.check_fence(pages, fences, self.name)
            world.note(self.name, f"serves {pages} of its own")
        if request is None:
            return
        if pages:  # what its pages rest on is none of the arena's
            request.reused(packed(space, path)[: len(pages) * KEY_BYTES])
        position = world.position_of(self)
        if len(pages) < len(keys) and world.chance(0.5):
            with request.lease(packed(space, path), start=len(pages)) as lease:
                for at, words in enumerate(lease, start=len(pages)):
                    number = int.from_bytes(words[:8], "little"), int.from_bytes(words[8:16], "little")
                    pages.append(world.truth.check_whole(number, keys[: at + 1], space, self.name))
            world.served(self, pages, fences, None, from_l1=0, wanted=len(keys))
        self.running.append(
            Running(
                space, path, request, view, position, pages, world.clockwork.now_ns + world.pass_ns(),
                len(world.truth.appends), world.true_wall_ms(),
            )
        )  # fmt: skip

    def _finish(self, one: Running) -> None:
        """Hash the blocks of a request that is done, and store them, unless it is tainted."""
        world, stamp = self.world, one.request.stamp
        pages, used, found = list(one.pages), frozenset(one.pages), len(one.pages)
        for index in range(found, len(one.path)):
            page = Instance(
                number=len(world.truth.instances) + 1, namespace=one.space, chain=one.keys[: index + 1], begun=one.begun,
                incarnation=one.position[0], revision=0 if stamp is None else stamp.revision, producer=self.producer,
                tags=(), from_ms=one.from_ms, until_ms=world.true_wall_ms(), weights=world.weights,
            )  # fmt: skip
            used = used.union((world.truth.computed(page, used),))
            pages.append(page)
        if self._is_tainted(one):
            world.note(self.name, f"keeps nothing of {one.path}: tainted")
        else:
            self._hash(pages)
            if len(pages) > found and world.chance(0.7):
                words = [page.number.to_bytes(8, "little") * 2 for page in pages[found:]]
                one.request.put(packed(one.space, one.path), words, start=found)
        one.request.end()

    def _is_tainted(self, one: Running) -> bool:
        """Whether a record since it began selects part of its chain, or its sidecar's life is over."""
        if self._follower is None:
            return True
        return not self._follower.admits(one.keys, one.view)

    def _hash(self, pages: list[Instance]) -> None:
        for page in pages:
            self._index.setdefault(page.key, page)
        while len(self._index) > BLOCKS_MAX:
            self._index.pop(next(reversed(self._index)))

    def kill(self) -> None:
        super().kill()
        self._index.clear()
