"""The validators of loads see what is wrong with an answer: what it tells, and when it comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kv_types.loading import ComputeCost, LoadChoice, LoadDecision
from kv_types.outcomes import MissReason
from sidecar.l3.loads import LoadRow, RowLoaded
from tests.sim.clockwork import MS, S
from tests.sim.load_truth import TURNS, LoadCheck, LoadTruth
from tests.sim.plan import Plan
from tests.sim.spaces import chain, namespace
from tests.sim.truth import BrokenPromiseError

SPACE = namespace("m", "1", "")
KEYS = chain(SPACE, (0, 0))


class Arena:
    """What was there, and what was loaded, at times that the test sets."""

    def __init__(self) -> None:
        self.seen_ns: dict[bytes, int] = {}
        self.loaded_ns: dict[bytes, int] = {}

    def was_there(self, key: bytes, since_ns: int) -> bool:
        return self.seen_ns.get(key, -1) >= since_ns


class Site:
    """One load of two pages, begun at 100 ms, of one sidecar."""

    def __init__(self, *, rows: int = 1, is_group: bool = False) -> None:
        self.now_ns, self.arena = 100 * MS, Arena()
        self.process = SimpleNamespace(away_ns=0)
        node = SimpleNamespace(now_ns=lambda: self.now_ns)
        life: Any = SimpleNamespace(
            id=b"life", process=self.process, sidecar=SimpleNamespace(node=node), ended=False
        )
        site = self

        class _Clockwork:
            @property
            def now_ns(self) -> int:
                return site.now_ns

        world: Any = SimpleNamespace(clockwork=_Clockwork(), plan=Plan(0), arenas={b"life": self.arena})
        self.truth = LoadTruth(world)
        asked = [LoadRow(SPACE.id, None, b"".join(KEYS))] * rows
        self.check: LoadCheck = self.truth.begun(life, asked, deadline_ns=200 * MS, is_group=is_group)

    def was_there(self, *pages: int, at_ns: int = 150 * MS, loaded: bool = True) -> None:
        for page in pages:
            self.arena.seen_ns[KEYS[page]] = at_ns
            if loaded:
                self.arena.loaded_ns[KEYS[page]] = at_ns

    def answer(self, *rows: RowLoaded) -> None:
        self.truth.answered(self.check, rows)


def _broken(name: str) -> Any:
    return pytest.raises(BrokenPromiseError, match=f"^{name}")


def test_what_is_true_is_let_pass() -> None:
    site = Site()
    site.was_there(0, 1)
    site.answer(RowLoaded(2, 0, MissReason.NONE))
    site.truth.check_none_lost()


def test_pages_that_were_never_there_are_seen() -> None:
    site = Site()
    site.was_there(0)
    site.answer(RowLoaded(1, 0, MissReason.DEADLINE))
    with _broken("BrokeLoad"):
        site.answer(RowLoaded(2, 0, MissReason.NONE))
    site.was_there(1, at_ns=99 * MS)
    with _broken("BrokeLoad"):  # it was gone before anybody asked
        site.answer(RowLoaded(2, 0, MissReason.NONE))


def test_pages_that_nobody_loaded_are_seen() -> None:
    site = Site()
    site.was_there(0, 1, loaded=False)
    site.answer(RowLoaded(2, 2, MissReason.NONE))
    with _broken("BrokeLoad"):
        site.answer(RowLoaded(2, 1, MissReason.NONE))


@pytest.mark.parametrize(
    "row",
    [
        RowLoaded(1, 1, MissReason.NONE),
        RowLoaded(0, 1, MissReason.ABSENT),
        RowLoaded(3, 3, MissReason.NONE),
        RowLoaded(1, 1, MissReason.ABSENT, pending=1),
    ],
)
def test_answers_that_contradict_themselves_are_seen(row: RowLoaded) -> None:
    site = Site()
    site.was_there(0, 1)
    with _broken("BrokeLoad"):
        site.answer(row)


def test_shards_of_a_group_that_have_different_lengths_are_seen() -> None:
    site = Site(rows=2, is_group=True)
    site.was_there(0, 1)
    one, two = RowLoaded(1, 1, MissReason.ABSENT), RowLoaded(2, 2, MissReason.NONE)
    with _broken("BrokeLoad"):
        site.answer(one, two)


def test_an_answer_that_comes_late_is_seen_unless_its_process_stood_still() -> None:
    allowed_ns = int(TURNS * Plan(0).turn_ns * (1 + Plan(0).drift)) + 5 * MS
    late, row = 200 * MS + allowed_ns + 1, RowLoaded(0, 0, MissReason.DEADLINE)
    site = Site()
    site.now_ns = late - 1
    site.answer(row)
    site.now_ns = late
    with _broken("BrokeDeadline"):
        site.answer(row)
    site.process.away_ns = 1 * MS
    site.answer(row)


def test_a_load_that_is_never_answered_is_seen_unless_it_was_given_up() -> None:
    site = Site()
    site.now_ns = 2 * S
    with _broken("BrokeDeadline"):
        site.truth.check_none_lost()
    site.truth.given_up(site.check)
    site.truth.check_none_lost()


LEFT = [RowLoaded(0, 0, MissReason.COMPUTE_IS_FASTER)]


def decided(
    choice: LoadChoice, *, chosen: int = 0, load_s: float = 0.9, compute_s: float = 1.0
) -> LoadDecision:
    return LoadDecision(choice, 2, chosen, load_s, compute_s)


@pytest.mark.parametrize(
    ("compute", "decision"),
    [
        (None, decided(LoadChoice.COMPUTE)),
        (ComputeCost(0.5), None),
        (ComputeCost(0.5), decided(LoadChoice.LOAD)),
        (ComputeCost(0.5), decided(LoadChoice.UNPRICED)),
        (ComputeCost(0.5), decided(LoadChoice.TRIAL, chosen=2)),
        (ComputeCost(0.5), decided(LoadChoice.COMPUTE, load_s=0.8)),
    ],
)
def test_what_is_left_to_be_computed_against_the_estimates_is_seen(
    compute: ComputeCost | None, decision: LoadDecision | None
) -> None:
    site = Site()
    site.check.compute = compute
    with pytest.raises(BrokenPromiseError, match="BrokeChoice"):
        site.truth.answered(site.check, LEFT, decision)


@pytest.mark.parametrize(
    "decision",
    [
        decided(LoadChoice.COMPUTE),
        decided(LoadChoice.TRIAL, chosen=1),
        decided(LoadChoice.STOPPED, load_s=0.1),
    ],
)
def test_what_is_left_to_be_computed_by_the_estimates_is_right(decision: LoadDecision) -> None:
    site = Site()
    site.check.compute = ComputeCost(0.5)
    site.truth.answered(site.check, LEFT, decision)
    assert not site.truth.waiting
