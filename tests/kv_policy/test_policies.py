"""What every eviction policy of a cache does, whatever it chooses by: one suite and one state machine for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kv_policy.eviction import EvictionPolicy, TailFirstLru
from kv_policy.learned import LearnedEviction
from kv_types.errors import InvalidArgumentError

PAGES = 24
SECOND_NS = 1_000_000_000

POLICIES: dict[str, Callable[[], TailFirstLru | LearnedEviction]] = {
    "tail-first LRU": TailFirstLru,
    "native LRU": lambda: LearnedEviction(PAGES, policy="lru"),
    "learned": lambda: LearnedEviction(PAGES),
}


@pytest.fixture(params=list(POLICIES))
def policy(request: pytest.FixtureRequest) -> TailFirstLru | LearnedEviction:
    return POLICIES[request.param]()


def test_a_chain_goes_from_its_tail(policy: EvictionPolicy) -> None:
    for page in range(3):
        policy.insert(page, parent=page - 1 if page else None, now_ns=page + 1)
    policy.insert(7, parent=None, now_ns=4)
    assert policy.evict(2) == [2, 1]
    assert policy.evict(9) == [0, 7]
    assert policy.evict(1) == []


def test_a_look_up_keeps_a_whole_chain(policy: EvictionPolicy) -> None:
    for page in (0, 1, 2):
        policy.insert(page, parent=page - 1 if page else None, now_ns=1)
    policy.insert(5, parent=None, now_ns=2)
    policy.looked(2, resident_pages=3, missing_pages=0, now_ns=3)
    assert policy.evict(2) == [5, 2]


def test_what_is_held_stays_with_all_below_it(policy: TailFirstLru | LearnedEviction) -> None:
    policy.insert(0, parent=None, now_ns=1, expires_ns=10)
    policy.insert(1, parent=0, now_ns=1)
    policy.hold(1)
    policy.hold(1)
    assert policy.evict(5) == []
    assert policy.expire(100, count_max=5) == []
    assert policy.expired(1, 100), "a page outlives no page below it"
    policy.release(1)
    assert policy.evict(5) == []
    policy.release(1)
    assert policy.expire(9, count_max=5) == []
    assert policy.expire(10, count_max=5) == [1, 0]


def test_a_handle_that_comes_back_brings_nothing_of_its_past(policy: EvictionPolicy) -> None:
    policy.insert(0, parent=None, now_ns=10, expires_ns=1_000)
    policy.hold(0)
    policy.remove(0)
    policy.insert(0, parent=None, now_ns=11, expires_ns=50)
    policy.insert(1, parent=None, now_ns=12)
    assert policy.expire(50, count_max=9) == [0]
    policy.insert(0, parent=None, now_ns=13)
    assert policy.evict(2) == [1, 0]


def test_misuse_is_refused(policy: TailFirstLru | LearnedEviction) -> None:
    policy.insert(0, parent=None, now_ns=1)
    policy.insert(1, parent=0, now_ns=1)
    for call in (
        lambda: policy.insert(0, parent=None, now_ns=1),
        lambda: policy.insert(2, parent=8, now_ns=1),
        lambda: policy.looked(8, resident_pages=1, missing_pages=0, now_ns=1),
        lambda: policy.looked(None, resident_pages=1, missing_pages=0, now_ns=1),
        lambda: policy.touch(8, 1),
        lambda: policy.hold(8),
        lambda: policy.release(0),
        lambda: policy.release(8),
        lambda: policy.remove(0),
        lambda: policy.remove(8),
        lambda: policy.expired(8, 1),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    assert len(policy) == 2
    assert policy.evict(2) == [1, 0]


class AgainstModel(RuleBasedStateMachine):
    """Any history, beside tables of which each question is a scan."""

    name = ""

    def __init__(self) -> None:
        super().__init__()
        self.policy = POLICIES[self.name]()
        self.now = 1
        self.parent: dict[int, int | None] = {}
        self.accessed: dict[int, int] = {}
        self.expires: dict[int, int | None] = {}
        self.holds: dict[int, int] = {}

    def path(self, page: int) -> list[int]:
        """From the root to a page."""
        found = [page]
        while (below := self.parent[found[-1]]) is not None:
            found.append(below)
        return found[::-1]

    def tails(self) -> list[int]:
        carried = set(self.parent.values())
        return sorted(page for page in self.parent if page not in carried and not self.holds[page])

    def forget(self, page: int) -> None:
        for table in (self.parent, self.accessed, self.expires, self.holds):
            del table[page]

    def put(self, pages: list[int], parent: int | None, expires: int | None) -> None:
        for page in pages:
            self.policy.insert(page, parent=parent, now_ns=self.now, expires_ns=expires, digest=page + 1)
            self.parent[page], self.accessed[page], self.holds[page] = parent, self.now, 0
            self.expires[page] = expires
            parent = page

    @rule(step=st.integers(0, 3), data=st.data(), count=st.integers(1, 5), ttl=st.none() | st.integers(1, 40))
    def ask(self, step: int, data: st.DataObject, count: int, ttl: int | None) -> None:
        """A request finds some of its chain, and puts what was missing or a part of it."""
        self.now += step * SECOND_NS
        free = [page for page in range(PAGES) if page not in self.parent]
        deepest = data.draw(st.sampled_from([None, *sorted(self.parent)]))
        found = [] if deepest is None else self.path(deepest)
        self.policy.looked(deepest, resident_pages=len(found), missing_pages=count, now_ns=self.now)
        for page in found:
            self.accessed[page] = self.now
        put = data.draw(st.integers(0, min(count, len(free))))
        self.put(free[:put], deepest, None if ttl is None else self.now + ttl * SECOND_NS)

    @precondition(lambda self: len(self.parent) < PAGES)
    @rule(step=st.integers(0, 3), data=st.data())
    def insert(self, step: int, data: st.DataObject) -> None:
        """Nobody asked for it before."""
        self.now += step * SECOND_NS
        page = data.draw(st.sampled_from([page for page in range(PAGES) if page not in self.parent]))
        self.put([page], data.draw(st.sampled_from([None, *sorted(self.parent)])), None)

    @precondition(lambda self: self.parent)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.parent)))
        self.policy.hold(page)
        self.holds[page] += 1

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(page for page, holds in self.holds.items() if holds)))
        self.policy.release(page)
        self.holds[page] -= 1

    @precondition(lambda self: self.tails())
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.tails()))
        self.policy.remove(page)
        self.forget(page)

    @rule(count=st.integers(0, 6))
    def evict(self, count: int) -> None:
        victims = self.policy.evict(count)
        for page in victims:
            tails = self.tails()
            assert page in tails, f"{page} is held or carries others"
            if self.name != "learned":
                assert page == min(tails, key=lambda tail: (self.accessed[tail], tail))
            self.forget(page)
        assert len(victims) == count or not self.tails(), "fewer were chosen than may go"

    @rule(step=st.integers(0, 20), count_max=st.integers(1, 4))
    def expire(self, step: int, count_max: int) -> None:
        self.now += step * SECOND_NS
        for page in self.policy.expire(self.now, count_max=count_max):
            assert page in self.tails()
            assert self.is_late(page)
            self.forget(page)

    def is_late(self, page: int) -> bool:
        ends = [self.expires[at] for at in self.path(page)]
        return any(end is not None and end <= self.now for end in ends)

    @invariant()
    def the_same_pages_are_resident(self) -> None:
        assert len(self.policy) == len(self.parent)
        for page in range(PAGES):
            assert (page in self.policy) == (page in self.parent)
            assert page not in self.parent or self.policy.expired(page, self.now) == self.is_late(page)


@pytest.mark.parametrize("name", list(POLICIES))
def test_any_history_leaves_what_the_model_says(name: str) -> None:
    machine = type("AgainstModel", (AgainstModel,), {"name": name})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150, stateful_step_count=60, deadline=None)
    )
