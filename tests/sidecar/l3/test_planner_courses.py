"""The planner weighs loading against computing: rows end where computing is sooner, groups alike, trials come first."""

from __future__ import annotations

import math
from collections import deque

import pytest

from kv_policy.load_or_recompute import LoadOrRecompute
from kv_types.errors import InvalidArgumentError
from kv_types.ids import NamespaceId, PageKey, page_key
from kv_types.limits import CHAIN_PAGES_MAX, COMPUTE_PAGE_S_MAX
from kv_types.loading import ComputeCost, LoadChoice
from kv_types.outcomes import MissReason
from sidecar.l3 import plan
from sidecar.l3.planner import Planner

MS = 1_000_000
PAGE_BYTES = 1 << 20
COST = ComputeCost(0.005)
BOUNDS = plan.Bounds(
    requests=8, pages=8192, flights=512, flight_bytes=1 << 40, run_pages=512, probe_pages=512, absent_pages=64,
    absent_ns=1000, put_awaited_ns=1000, sent_ns=100 * MS,
)  # fmt: skip


class World:
    """An L3 that has everything, at a bandwidth, and a clock that goes on with what it does."""

    def __init__(self, bytes_per_s: float, tier: LoadOrRecompute | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        self.tier = LoadOrRecompute() if tier is None else tier
        self.planner = Planner(BOUNDS, self.tier)
        self.now_ns = 1
        self.fetched = self.probed = self.numbers = 0
        self.free_ns = self.answered_ns = 0
        self.flying: deque[tuple[int, int]] = deque()
        self.absent_from: int | None = None

    def ask(
        self,
        pages: int,
        *,
        rows: int = 1,
        cost: ComputeCost | None = COST,
        deadline_s: float = 10.0,
        resident: int = 0,
    ) -> plan.Answer:
        """Ask for chains that nobody asked for before, and see to it until there is an answer."""
        self.numbers += 1
        asked = tuple(self._row(row, pages, resident) for row in range(rows))
        deadline_ns = self.now_ns + int(deadline_s * 1e9)
        event = plan.Asked(
            request=self.numbers, rows=asked, deadline_ns=deadline_ns, is_group=rows > 1, compute=cost, now_ns=self.now_ns
        )  # fmt: skip
        actions = deque(self.planner.step(event))
        while True:
            while actions:
                action = actions.popleft()
                if isinstance(action, plan.Answer):
                    self.answered_ns = self.now_ns
                    self._land_all()
                    return action
                actions.extend(self._carry_out(action))
            actions.extend(self._next())

    def _row(self, row: int, pages: int, resident: int) -> plan.AskedRow:
        keys = [self._key(row, page) for page in range(pages)]
        return plan.AskedRow(
            namespace=NamespaceId(bytes([row + 1]) * 32), parent=None, keys=b"".join(keys), page_bytes=PAGE_BYTES,
            resident=resident,
        )  # fmt: skip

    def _key(self, row: int, page: int) -> PageKey:
        return page_key(self.numbers.to_bytes(8, "big") + row.to_bytes(8, "big") + page.to_bytes(16, "big"))

    def _carry_out(self, action: plan.Action) -> list[plan.Action]:
        match action:
            case plan.Probe(probe, pages):
                self.probed += len(pages)
                self.now_ns += MS
                results = [
                    MissReason.ABSENT if self._is_absent(page.key) else MissReason.NONE for page in pages
                ]
                return self.planner.step(plan.Probed(probe, tuple(results), self.now_ns))
            case plan.Fetch(flights=flights):
                for flight in flights:
                    self.fetched += 1
                    self.free_ns = max(self.free_ns, self.now_ns) + int(PAGE_BYTES / self.bytes_per_s * 1e9)
                    self.flying.append((self.free_ns, flight))
            case plan.Publish(flight):
                return self.planner.step(plan.Published(flight))
        return []

    def _is_absent(self, key: PageKey) -> bool:
        return self.absent_from is not None and int.from_bytes(key[16:], "big") >= self.absent_from

    def _next(self) -> list[plan.Action]:
        due_ns = self.planner.due_ns
        if self.flying and (due_ns is None or self.flying[0][0] <= due_ns):
            self.now_ns, flight = self.flying.popleft()
            return self.planner.step(plan.Arrived(flight, MissReason.NONE, self.now_ns))
        assert due_ns is not None, "nothing is under way and nobody was answered"
        self.now_ns = max(self.now_ns, due_ns)
        return self.planner.step(plan.TimeCame(self.now_ns))

    def _land_all(self) -> None:
        while self.flying:
            self.now_ns, flight = self.flying.popleft()
            for action in self.planner.step(plan.Arrived(flight, MissReason.NONE, self.now_ns)):
                self._carry_out(action)


def rows_of(answer: plan.Answer) -> list[tuple[int, MissReason]]:
    return [(row.pages, row.reason) for row in answer.rows]


def choice_of(answer: plan.Answer) -> LoadChoice:
    assert answer.decision is not None
    return answer.decision.choice


@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_fast_is_loaded_whole(rows: int) -> None:
    world = World(2e9)
    for _ in range(3):
        answer = world.ask(64, rows=rows)
        assert rows_of(answer) == [(64, MissReason.NONE)] * rows
        assert choice_of(answer) is LoadChoice.LOAD
    assert world.planner.statistics()["requests"] == 0


@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_slow_is_tried_once_and_then_not_even_asked_for(rows: int) -> None:
    world = World(1e7)
    first = world.ask(64, rows=rows)
    assert choice_of(first) is LoadChoice.TRIAL
    assert all(reason is MissReason.COMPUTE_IS_FASTER for _, reason in rows_of(first))
    assert len(set(rows_of(first))) == 1, "a group ends alike"
    assert world.fetched <= 16 * rows
    fetched, probed = world.fetched, world.probed
    second = world.ask(64, rows=rows)
    assert rows_of(second) == [(0, MissReason.COMPUTE_IS_FASTER)] * rows
    assert choice_of(second) is LoadChoice.COMPUTE
    assert (world.fetched, world.probed) == (fetched, probed)


def test_what_is_there_already_is_told_though_the_rest_is_computed() -> None:
    world = World(1e7)
    world.ask(64)
    assert rows_of(world.ask(64, resident=10)) == [(10, MissReason.COMPUTE_IS_FASTER)]


def test_a_load_that_becomes_slow_is_given_up_within_the_time_that_computing_takes() -> None:
    world = World(2e9)
    for _ in range(3):
        world.ask(64)
    world.bytes_per_s = 1e6
    began_ns = world.now_ns
    answer = world.ask(64)
    assert world.answered_ns - began_ns <= 2 * COST.seconds(64) * 1e9
    assert choice_of(answer) in (LoadChoice.STOPPED, LoadChoice.TRIAL)
    assert rows_of(answer)[0][1] is MissReason.COMPUTE_IS_FASTER


def test_who_says_nothing_of_computing_gets_all_however_long_it_takes() -> None:
    world = World(1e8)
    for _ in range(3):
        answer = world.ask(64, cost=None)
        assert rows_of(answer) == [(64, MissReason.NONE)]
        assert choice_of(answer) is LoadChoice.UNPRICED
    assert world.tier.estimate.bytes_per_s == pytest.approx(1e8, rel=0.1)


def test_a_deadline_ends_a_load_as_before_and_teaches_that_l3_is_slow() -> None:
    world = World(1e6)
    for _ in range(2):
        answer = world.ask(64, cost=None, deadline_s=0.5)
        assert rows_of(answer)[0][1] is MissReason.DEADLINE
    assert world.tier.estimate.seconds(64 * PAGE_BYTES) > 1.0


def test_only_what_l3_has_is_weighed() -> None:
    world = World(2e9)
    world.ask(64)
    world.absent_from = 5
    answer = world.ask(64)
    assert rows_of(answer) == [(5, MissReason.ABSENT)]
    assert answer.decision is not None
    assert answer.decision.pages == 5
    world.absent_from = 0
    assert world.ask(64).decision is None


def test_a_long_row_is_weighed_in_parts_that_add_up() -> None:
    world = World(2e9)
    answer = world.ask(2000, deadline_s=60.0)
    assert rows_of(answer) == [(2000, MissReason.NONE)]
    assert answer.decision is not None
    assert (answer.decision.pages, answer.decision.pages_chosen) == (2000, 2000)
    assert answer.decision.compute_s == pytest.approx(COST.seconds(2000))


def test_attention_makes_late_pages_worth_loading_that_early_ones_are_not() -> None:
    world = World(1e8)
    for _ in range(2):
        world.ask(64, cost=None)
    cost = ComputeCost(0.004, 0.0002)
    assert rows_of(world.ask(20, cost=cost)) == [(0, MissReason.COMPUTE_IS_FASTER)]
    assert rows_of(world.ask(400, cost=cost, deadline_s=60.0)) == [(400, MissReason.NONE)]


@pytest.mark.parametrize("first_s", [5e-324, 1e-9, COMPUTE_PAGE_S_MAX], ids=repr)
@pytest.mark.parametrize("growth_s", [0.0, 5e-324, COMPUTE_PAGE_S_MAX], ids=repr)
def test_what_one_worker_says_of_its_speed_costs_the_others_nothing_for_long(
    first_s: float, growth_s: float
) -> None:
    world = World(1e9)
    for resident in (0, 3, 1000):
        absurd = ComputeCost(first_s, growth_s)
        assert world.ask(2000, cost=absurd, resident=resident).decision is not None
    for _ in range(20):
        world.ask(512, cost=ComputeCost(1.0))
    answer = world.ask(512, cost=ComputeCost(1.0))
    assert answer.decision is not None
    assert answer.decision.choice is LoadChoice.LOAD
    assert all(math.isfinite(figure) for figure in world.tier.statistics(0.0).values())


def test_no_more_can_be_said_of_a_page_than_adds_up() -> None:
    for first_s, growth_s in (
        (math.inf, 0.0),
        (1.7e308, 0.0),
        (1.0, 1.7e308),
        (math.nan, 0.0),
        (1.0, math.nan),
    ):
        with pytest.raises(InvalidArgumentError, match="to compute"):
            ComputeCost(first_s, growth_s)
    most = ComputeCost(COMPUTE_PAGE_S_MAX, COMPUTE_PAGE_S_MAX).after(CHAIN_PAGES_MAX)
    assert most.first_s == COMPUTE_PAGE_S_MAX
    assert math.isfinite(most.seconds(CHAIN_PAGES_MAX, start=CHAIN_PAGES_MAX))
