"""Operators of the simulation: invalidations through the product's administration on some sidecar, and what they may conclude."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from invalidation.fence import Wait
from kv_types.errors import LogUnreachableError
from kv_types.namespace import Namespace
from kv_types.selectors import Selector
from sidecar.fencing import FenceResult
from tests.sim.clockwork import MS, S
from tests.sim.plan import Wish
from tests.sim.spaces import chain
from tests.sim.truth import Append, BrokenPromiseError

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World


class Operator:
    """Whoever runs `stratakv invalidate`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.purged: list[tuple[Namespace, Selector]] = []
        self.waiting: list[Life] = []
        """Through whom an invalidation is under way."""

    def schedule(self, wishes: list[Wish]) -> None:
        """Ask for all of this in its time."""
        for wish in wishes:
            self._world.clockwork.at(wish.at_ns, partial(self._ask, wish))

    def load_weights(self) -> None:
        """Give every worker new weights, and then say so: in this order (rule R5)."""
        world = self._world
        if not world.is_quiet:
            world.weights = "2"
            world.clockwork.spawn(None, self._load_weights)

    def _load_weights(self) -> None:
        world = self._world
        while old := [one for one in world.workers if one.process.alive and one.weights == "1"]:
            for worker in old:
                world.clockwork.sleep(int(world.clockwork.random.random() * 50 * MS))
                if not worker.process.stops:
                    worker.weights = "2"
        world.note("operator", "has loaded weights 2 everywhere")
        lives = [one.life for one in world.sidecars if one.life is not None]
        if lives and not world.is_quiet:
            life = world.clockwork.random.choice(lives)
            self.waiting.append(life)
            life.loop.call_soon(lambda: life.spawn(self._announce(life)))

    async def _announce(self, life: Life) -> None:
        world = self._world
        old = Selector(model="m", weights_version="1")
        try:
            result = await life.administration.announce(
                "m", "2", invalidate_version="1", reason="", author="", wait=Wait.HIDDEN,
                timeout_s=3.0 * world.plan.window_ns / S, request_id=world.clockwork.random.randbytes(16),
            )  # fmt: skip
        except LogUnreachableError as error:
            world.note("operator", f"is told that nothing was announced: {error}")
        else:
            stamps = result.stamps[1:]
            self._returned(replace(result, stamps=stamps), old, "hidden")
        finally:
            self.waiting.remove(life)

    def end(self) -> None:
        """Wait for nothing any more, and ask for nothing more."""
        for life in self.waiting:
            if not life.ended:
                life.loop.call_soon(life.administration.end)

    def _ask(self, wish: Wish) -> None:
        world = self._world
        lives = [one.life for one in world.sidecars if one.life is not None]
        if not lives or world.is_quiet:
            return
        life = lives[int(wish.pick * len(lives))]
        selector = self._selector(wish.selector)
        world.note(
            "operator", f"invalidates {selector.describe()} through {life.sidecar.node}, waits: {wish.wait}"
        )
        self.waiting.append(life)
        life.loop.call_soon(lambda: life.spawn(self._invalidate(life, selector, wish.wait)))

    async def _invalidate(self, life: Life, selector: Selector, wait: str) -> None:
        world = self._world
        request_id = world.clockwork.random.randbytes(16)
        try:
            result = await life.administration.invalidate(
                [selector], reason="", author="", wait=None if wait == "none" else Wait(wait),
                timeout_s=3.0 * world.plan.window_ns / S, request_id=request_id,
            )  # fmt: skip
        except LogUnreachableError as error:
            world.note("operator", f"is told that nothing was appended: {error}")
        else:
            self._returned(result, selector, wait)
        finally:
            self.waiting.remove(life)

    def _returned(self, result: FenceResult, selector: Selector, wait: str) -> None:
        world = self._world
        if result.unconfirmed is not None:
            world.note("operator", f"is told: {result.unconfirmed}, {result.why}")
            return
        gone = "".join(f" {member.hex()[:4]}" for member in result.gone)
        world.note(
            "operator",
            f"is told that {selector.describe()} is {wait} at {result.stamps[-1].revision}"
            + (f", gone:{gone}" if gone else ""),
        )
        stamps = [(bytes(stamp.incarnation), stamp.revision) for stamp in result.stamps]
        for record in world.truth.fence_returned(stamps, [selector]):
            if wait == "drained":
                self._check_drained(record)

    def _check_drained(self, record: Append) -> None:
        """R19: no request that still runs anywhere holds what the record selects."""
        for worker in self._world.workers:
            if worker.process.alive:
                for now in worker.passes:
                    for page in now.pages if now.is_known else now.reused:
                        guilty = self._world.truth.selected_by(record, page)
                        if guilty is not None:
                            raise BrokenPromiseError(
                                "BrokeDrained",
                                f"append {record.number} drained while {worker.name} still used {page}",
                            )

    def _selector(self, kind: str) -> Selector:
        world = self._world
        draw = world.clockwork.random
        space = draw.choice(world.spaces)
        keys = chain(space, draw.choice(world.plan.paths))
        worker = draw.choice(world.workers)
        now_ms, past_ms = world.true_wall_ms(), draw.choice((100, 1000, 3000))
        revision = max((record.revision for record in world.truth.appends), default=0)
        made: dict[str, Callable[[], Selector]] = {
            "all": Selector,
            "namespace": lambda: Selector(namespace=space.id),
            "model": lambda: Selector(model=space.model),
            "tenant": lambda: Selector(tenant=space.tenant),
            "key": lambda: Selector(key=draw.choice(keys)),
            "producer": lambda: Selector(producer=worker.producer),
            "tag": lambda: Selector(tag=b"odd"),
            "since": lambda: Selector(since_ms=now_ms - past_ms, until_ms=draw.choice((None, now_ms))),
            "revisions": lambda: Selector(until_revision=revision),
            "key_producer": lambda: Selector(
                key=keys[0], producer=worker.producer, namespace=draw.choice((None, space.id))
            ),
        }
        found = made[kind]()
        self.purged.append((space, found))
        return found


assert MS
