"""The breaker: when it opens, how one probe decides, how long it cools down; and the budget of retries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache_l3.breaker import Breaker, BreakerState, BreakerTerms
from cache_l3.retry_budget import RetryBudget

MS = 1_000_000
TERMS = BreakerTerms(failures=3, silent_ns=100 * MS, cool_ns_min=100 * MS, cool_ns_max=400 * MS)


def opened(at_ns: int = 0) -> Breaker:
    breaker = Breaker(TERMS)
    assert breaker.trip(at_ns)
    return breaker


def test_failures_in_a_row_over_a_silence_open_it() -> None:
    breaker = Breaker(TERMS)
    assert not breaker.failed(began_ns=0, now_ns=200 * MS)
    assert not breaker.failed(began_ns=0, now_ns=200 * MS)
    assert breaker.failed(began_ns=0, now_ns=200 * MS)
    assert (breaker.state, breaker.opened, breaker.lets_through) == (BreakerState.OPEN, 1, False)
    assert not breaker.failed(began_ns=0, now_ns=300 * MS), "it is open already"


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(TERMS)
    for turn in range(20):
        assert not breaker.failed(began_ns=turn * 50 * MS, now_ns=(turn + 1) * 50 * MS)
        if turn % 2:
            breaker.succeeded()
    assert breaker.lets_through


def test_many_short_deadlines_at_once_say_nothing_of_a_server() -> None:
    breaker = Breaker(TERMS)
    for _ in range(100):
        assert not breaker.failed(began_ns=0, now_ns=MS)
    assert breaker.failed(began_ns=99 * MS, now_ns=100 * MS), (
        "but they do once it has been silent for long enough"
    )


def test_silence_counts_from_where_the_oldest_failed_request_began() -> None:
    breaker = Breaker(TERMS)
    breaker.failed(began_ns=150 * MS, now_ns=151 * MS)
    breaker.failed(began_ns=50 * MS, now_ns=152 * MS)
    assert breaker.failed(began_ns=152 * MS, now_ns=153 * MS)


def test_one_probe_at_a_time_decides() -> None:
    breaker = opened()
    assert not breaker.begin_probe(100 * MS - 1)
    assert breaker.begin_probe(100 * MS)
    assert not breaker.begin_probe(100 * MS)
    assert (breaker.state, breaker.lets_through, breaker.probe_due_ns) == (
        BreakerState.HALF_OPEN,
        False,
        None,
    )
    breaker.probed(answered=True, now_ns=110 * MS)
    assert breaker.lets_through
    assert not breaker.failed(began_ns=0, now_ns=500 * MS), "the row begins anew"


def test_failed_probes_cool_it_down_longer_up_to_a_bound_and_a_good_one_forgets_that() -> None:
    breaker, now = opened(), 0
    for cool in (100, 200, 400, 400, 400):
        assert breaker.probe_due_ns == now + cool * MS
        now = breaker.probe_due_ns
        assert breaker.begin_probe(now)
        breaker.probed(answered=False, now_ns=now)
    now += 400 * MS
    assert breaker.begin_probe(now)
    breaker.probed(answered=True, now_ns=now)
    assert breaker.trip(now)
    assert breaker.probe_due_ns == now + 100 * MS


def test_answers_that_come_late_from_before_it_opened_change_nothing() -> None:
    breaker = opened()
    breaker.succeeded()
    breaker.probed(answered=True, now_ns=MS)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.trip(MS)
    assert breaker.opened == 1


class BreakerMachine(RuleBasedStateMachine):
    """Any order of events: it lets through exactly while closed, and an open one always has a probe due within its bound."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.breaker = Breaker(TERMS)
        self.in_row = 0

    @rule(step=st.integers(0, 600 * MS))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(age=st.integers(0, 300 * MS))
    def fails(self, age: int) -> None:
        was_closed = self.breaker.lets_through
        has_opened = self.breaker.failed(began_ns=max(0, self.now - age), now_ns=self.now)
        self.in_row += was_closed
        assert has_opened <= (was_closed and self.in_row >= TERMS.failures)
        assert has_opened == (was_closed and not self.breaker.lets_through)

    @rule()
    def succeeds(self) -> None:
        state = self.breaker.state
        self.breaker.succeeded()
        assert self.breaker.state is state
        self.in_row = 0 if self.breaker.lets_through else self.in_row

    @rule()
    def trips(self) -> None:
        was_closed, opened = self.breaker.lets_through, self.breaker.opened
        assert self.breaker.trip(self.now) == was_closed
        assert self.breaker.opened == opened + was_closed
        assert not self.breaker.lets_through

    @precondition(lambda self: self.breaker.probe_due_ns is not None)
    @rule(answered=st.booleans())
    def is_probed(self, answered: bool) -> None:
        due = self.breaker.probe_due_ns
        assert due is not None
        self.now = max(self.now, due)
        assert self.breaker.begin_probe(self.now)
        self.breaker.probed(answered=answered, now_ns=self.now)
        assert self.breaker.lets_through == answered
        self.in_row = 0 if answered else self.in_row

    @invariant()
    def an_open_one_is_probed_in_time(self) -> None:
        due = self.breaker.probe_due_ns
        assert (due is None) == self.breaker.lets_through
        assert due is None or due <= self.now + TERMS.cool_ns_max


TestBreakerMachine = BreakerMachine.TestCase


def test_retries_come_at_once_up_to_the_burst_and_then_at_the_rate() -> None:
    budget = RetryBudget(burst=3, per_s=10)
    assert [budget.take(0) for _ in range(4)] == [True, True, True, False]
    assert budget.wait_ns(0) == pytest.approx(100 * MS, abs=2)
    assert not budget.take(99 * MS)
    assert budget.take(101 * MS)
    assert [budget.take(3600 * 1000 * MS) for _ in range(4)] == [True, True, True, False]


@given(st.lists(st.integers(0, 50 * MS), max_size=200))
def test_no_order_of_asking_gets_more_than_burst_and_rate(steps: list[int]) -> None:
    budget, now, taken = RetryBudget(burst=5, per_s=20), 0, 0
    for step in steps:
        now += step
        taken += budget.take(now)
        assert taken <= 5 + now / 1e9 * 20 + 1e-6
        taken += budget.take(now - step)  # a clock read in another order is no way round
        assert taken <= 5 + now / 1e9 * 20 + 1e-6
