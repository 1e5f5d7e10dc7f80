"""Operators of the simulation: invalidations through the product's administration on some sidecar, and what they may conclude."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from invalidation.fence import Wait
from kv_types.errors import LogUnreachableError
from kv_types.namespace import Namespace
from kv_types.selectors import Selector
from sidecar.admin.fencing import FenceResult
from tests.sim.clockwork import MS, S
from tests.sim.plan import Wish
from tests.sim.spaces import chain
from tests.sim.truth import Append, BrokenPromiseError, Instance

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World


@dataclass(frozen=True)
class _Call:
    """An invalidation that somebody waits for."""

    life: Life
    selectors: tuple[Selector, ...]
    wait: str
    request_id: bytes


class Operator:
    """Whoever runs `stratakv invalidate`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.purged: list[tuple[Namespace, Selector]] = []
        self.waiting: list[Life] = []
        """Through whom an invalidation is under way."""
        self._calls: list[_Call] = []

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
        life = self._somebody(world.clockwork.random.random())
        if life is not None and not world.is_quiet:
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
            self._returned(replace(result, stamps=stamps), [old], "hidden", life)
        finally:
            self.waiting.remove(life)

    def end(self) -> None:
        """Wait for nothing any more, and ask for nothing more."""
        for life in self.waiting:
            if not life.ended:
                life.loop.call_soon(life.administration.end)

    def set_replicas(self, count: int) -> None:
        """Lower or raise k, through whoever is there (rule R10)."""
        life = self._somebody(self._world.clockwork.random.random())
        if life is not None:
            self._world.note("operator", f"sets k to {count} through {life.sidecar.node}")
            life.loop.call_soon(lambda: life.spawn(self._set_replicas(life, count)))

    async def _set_replicas(self, life: Life, count: int) -> None:
        try:
            await life.administration.set_replicas(count)
        except LogUnreachableError as error:
            self._world.note("operator", f"is told that k stays: {error}")

    def lost(self, life: Life) -> None:
        """A sidecar died: whoever waited for it asks another one, under the same request id (rule R7)."""
        for call in [call for call in self._calls if call.life is life]:
            self._calls.remove(call)
            self._world.clockwork.after(
                int(self._world.clockwork.random.random() * 300 * MS), partial(self._again, call)
            )

    def _again(self, call: _Call) -> None:
        other = self._somebody(self._world.clockwork.random.random())
        if other is not None and not self._world.is_quiet:
            self._world.note("operator", f"asks again, through {other.sidecar.node}")
            self._begin(replace(call, life=other))

    def _somebody(self, pick: float) -> Life | None:
        lives = [one.life for one in self._world.sidecars if one.life is not None]
        return lives[int(pick * len(lives))] if lives else None

    def _ask(self, wish: Wish) -> None:
        world = self._world
        life = self._somebody(wish.pick)
        if life is None or world.is_quiet:
            return
        selectors = tuple(self._selector(wish.selector) for _ in range(2 if world.chance(0.15) else 1))
        told = " and then ".join(selector.describe() for selector in selectors)
        world.note("operator", f"invalidates {told} through {life.sidecar.node}, waits: {wish.wait}")
        self._begin(_Call(life, selectors, wish.wait, world.clockwork.random.randbytes(16)))

    def _begin(self, call: _Call) -> None:
        self.waiting.append(call.life)
        self._calls.append(call)
        call.life.loop.call_soon(lambda: call.life.spawn(self._invalidate(call)))

    async def _invalidate(self, call: _Call) -> None:
        world = self._world
        try:
            result = await call.life.administration.invalidate(
                call.selectors, reason="", author="", wait=None if call.wait == "none" else Wait(call.wait),
                timeout_s=3.0 * world.plan.window_ns / S, request_id=call.request_id,
            )  # fmt: skip
        except LogUnreachableError as error:
            world.note("operator", f"is told that nothing was appended: {error}")
        else:
            self._returned(result, call.selectors, call.wait, call.life)
        finally:
            self.waiting.remove(call.life)
            self._calls.remove(call)

    def _returned(
        self, result: FenceResult, selectors: Sequence[Selector], wait: str, evaluator: Life
    ) -> None:
        world = self._world
        if result.unconfirmed is not None:
            world.note("operator", f"is told: {result.unconfirmed}, {result.why}")
            return
        gone = "".join(f" {member.hex()[:4]}" for member in result.gone)
        world.note(
            "operator",
            f"is told that {selectors[-1].describe()} is {wait} at {result.stamps[-1].revision}"
            + (f", gone:{gone}" if gone else ""),
        )
        stamps = [(bytes(stamp.incarnation), stamp.revision) for stamp in result.stamps]
        for record in world.truth.fence_returned(stamps, selectors):
            if wait == "drained":
                self._check_drained(record, evaluator)

    def _check_drained(self, record: Append, evaluator: Life) -> None:
        """R19: no request that still runs anywhere holds what the record selects.

        Of members that the log lists: whose sidecar has not joined this incarnation by the last look may still compute,
        and reuses nothing. But not below the sidecar that says so itself.
        """
        for worker in self._world.workers:
            if worker.process.alive:
                for now in worker.passes:
                    is_awaited = now.life is not None and (
                        now.life is evaluator
                        or self._world.truth.is_listed(
                            now.life.shell.member, record.incarnation, by_ns=evaluator.log.looked_ns
                        )
                    )
                    self._check_unused(record, now.pages if is_awaited else now.reused, worker.name)
        for engine in self._world.engines:
            if engine.process.alive:
                for one in engine.running:
                    self._check_unused(record, one.pages, engine.name)

    def _check_unused(self, record: Append, pages: Sequence[Instance], who: str) -> None:
        for page in pages:
            if self._world.truth.selected_by(record, page) is not None:
                raise BrokenPromiseError(
                    "BrokeDrained", f"append {record.number} drained while {who} still used {page}"
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
