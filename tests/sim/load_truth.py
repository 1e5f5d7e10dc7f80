"""What is true of loads: what was there while they ran, and when they had to be answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from kv_types.ids import KEY_BYTES
from kv_types.loading import ComputeCost, LoadChoice, LoadDecision
from kv_types.outcomes import MissReason
from sidecar.l3.loads import LoadRow, RowLoaded
from tests.sim.clockwork import MS
from tests.sim.truth import BrokenPromiseError

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

TURNS = 12
"""Turns of an event loop in which an answer that is due is given: the thread's, the store's, the planner's, the waiter's."""
_LEAVES = (LoadChoice.COMPUTE, LoadChoice.TRIAL, LoadChoice.STOPPED)
_SURE = 0.8
"""A load that is expected to take this part of what computing does, or less, is always done."""


@dataclass(eq=False, slots=True)
class LoadCheck:
    """A load that somebody waits for."""

    life: Life
    rows: Sequence[LoadRow]
    deadline_ns: int
    is_group: bool
    begun_ns: int
    away_ns: int
    """True time, and how long its process had not run by then."""
    compute: ComputeCost | None = None
    """What whoever asks has said of its speed."""


class LoadTruth:
    """All loads under way, of all sidecars."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.waiting: set[LoadCheck] = set()

    def begun(
        self,
        life: Life,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        is_group: bool,
        compute: ComputeCost | None = None,
    ) -> LoadCheck:
        """Somebody asks."""
        check = LoadCheck(
            life, rows, deadline_ns, is_group, self._world.clockwork.now_ns, life.process.away_ns, compute
        )
        self.waiting.add(check)
        return check

    def given_up(self, check: LoadCheck) -> None:
        """Nobody waits any more."""
        self.waiting.discard(check)

    def answered(
        self, check: LoadCheck, told: Sequence[RowLoaded], decision: LoadDecision | None = None
    ) -> None:
        """Whoever waits is told this."""
        self.waiting.discard(check)
        late_ns = self.late_ns(check)
        if late_ns > 0:
            self._broken("BrokeDeadline", check, f"was answered {late_ns / MS:.1f} ms late")
        self.told(check, told, decision)
        if any(row.pending for row in told):
            self._broken("BrokeLoad", check, "was told of pages that are pending, though its wait is over")

    def late_ns(self, check: LoadCheck) -> int:
        """How much later than it may be answered it is now; not by what its machine did to its process meanwhile."""
        process, plan = check.life.process, self._world.plan
        away_ns = process.away_ns - check.away_ns
        allowed_ns = int((away_ns + TURNS * plan.turn_ns) * (1 + plan.drift)) + 5 * MS
        return check.life.sidecar.node.now_ns() - check.deadline_ns - allowed_ns

    def told(self, check: LoadCheck, told: Sequence[RowLoaded], decision: LoadDecision | None = None) -> None:
        """What is told was there at some moment since it was asked for, the part that is said to be L3's by a load."""
        arena = self._world.arenas[check.life.id]
        if len(told) != len(check.rows):
            self._broken("BrokeLoad", check, f"was told of {len(told)} rows")
        for row, loaded in zip(check.rows, told, strict=True):
            keys = [row.keys[at : at + KEY_BYTES] for at in range(0, len(row.keys), KEY_BYTES)]
            is_whole = loaded.pages + loaded.pending == len(keys)
            if not 0 <= loaded.from_l3 <= loaded.pages <= len(keys) or (
                loaded.reason is MissReason.NONE and not is_whole
            ):
                self._broken("BrokeLoad", check, f"was told {loaded} of {len(keys)} pages")
            for index, key in enumerate(keys[: loaded.pages]):
                if not arena.was_there(key, check.begun_ns):
                    self._broken(
                        "BrokeLoad",
                        check,
                        f"was told of {loaded.pages} pages; number {index} was never there",
                    )
                # Those after the first may have been put meanwhile, on top of it.
                if index == loaded.from_l3 and arena.loaded_ns.get(key, -1) < check.begun_ns:
                    self._broken(
                        "BrokeLoad", check, f"was told that page {index} came from L3, which nobody loaded"
                    )
        if check.is_group and len({loaded.pages for loaded in told}) > 1:
            self._broken(
                "BrokeLoad", check, f"was told of unequal rows of a group: {[one.pages for one in told]}"
            )

        if any(loaded.reason is MissReason.COMPUTE_IS_FASTER for loaded in told):
            self._is_faster(check, decision)

    def _is_faster(self, check: LoadCheck, decision: LoadDecision | None) -> None:
        """A row ends since computing takes less time: so it was said, and by estimates that say so."""
        if check.compute is None:
            self._broken(
                "BrokeChoice", check, "is left to be computed, by whom has not said how fast that is"
            )
        if decision is None or decision.choice not in _LEAVES or decision.pages_chosen >= decision.pages:
            self._broken("BrokeChoice", check, f"is left to be computed by the decision {decision}")
        # Of rows that are decided apart, and of parts of a row, the decision is a sum; of nothing that is loaded it is one.
        is_one = (check.is_group or len(check.rows) == 1) and not decision.pages_chosen
        if is_one and decision.choice is LoadChoice.COMPUTE and decision.load_s <= _SURE * decision.compute_s:
            self._broken("BrokeChoice", check, f"is left to be computed, and takes longer so: {decision}")

    def _broken(self, name: str, check: LoadCheck, what: str) -> NoReturn:
        raise BrokenPromiseError(name, f"a load of {check.life.sidecar.node} {what}")

    def check_none_lost(self) -> None:
        """When all is quiet nobody waits any more, but at sidecars that have died."""
        for check in self.waiting:
            if not check.life.ended and self.late_ns(check) > 0:
                self._broken("BrokeDeadline", check, "is never answered")
