"""What the policy that learns takes into account, and what it keeps over a restart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_policy._native import PrefixPolicy
from kv_policy.learned import LearnedEviction
from kv_types.errors import InvalidArgumentError

SECOND_NS = 1_000_000_000
CAPACITY = 200


class Cache:
    """Chains by name in a cache of CAPACITY pages; counts what was found."""

    def __init__(self, policy: LearnedEviction) -> None:
        self.policy = policy
        self.where: dict[tuple[str, int], int] = {}
        self.name_of: dict[int, tuple[str, int]] = {}
        self.free = list(range(CAPACITY))
        self.found: dict[str, int] = {}

    def ask(self, name: str, pages: int, now_ns: int, expires_ns: int | None = None) -> int:
        found = next((depth for depth in range(pages) if (name, depth) not in self.where), pages)
        tip = self.where[name, found - 1] if found else None
        digest = hash_of(name, found)
        self.policy.looked(
            tip, resident_pages=found, missing_pages=pages - found, now_ns=now_ns, digest=digest
        )
        for depth in range(found, pages):
            if tip is not None:
                self.policy.hold(tip)
            if not self.free:
                self.forget(self.policy.evict(1))
            if tip is not None:
                self.policy.release(tip)
            page = self.free.pop()
            self.policy.insert(
                page, parent=tip, now_ns=now_ns, expires_ns=expires_ns, digest=hash_of(name, depth)
            )
            self.where[name, depth], self.name_of[page] = page, (name, depth)
            tip = page
        kind = name.split(maxsplit=1)[0]
        self.found[kind] = self.found.get(kind, 0) + found
        return found

    def forget(self, pages: list[int]) -> None:
        for page in pages:
            del self.where[self.name_of.pop(page)]
            self.free.append(page)


def hash_of(name: str, depth: int) -> int:
    return random.Random(f"{name}/{depth}").getrandbits(32) or 1


def chats_among_scans(policy: LearnedEviction, rounds: int = 400) -> Cache:
    """Chats come back after half a minute, while more than the cache holds is read once in between."""
    cache = Cache(policy)
    for turn in range(rounds):
        now = turn * 3 * SECOND_NS
        cache.ask(f"chat {turn % 10}", 6, now)
        cache.ask(f"scan {turn}", 25, now + SECOND_NS)
    return cache


def test_it_keeps_what_comes_back_among_scans() -> None:
    learned = chats_among_scans(LearnedEviction(CAPACITY))
    lru = chats_among_scans(LearnedEviction(CAPACITY, policy="lru"))
    assert lru.found["chat"] == 0, "all is read over before a chat comes back"
    assert learned.found["chat"] >= 0.8 * 6 * (400 - 60)
    told = learned.policy.statistics()
    assert told["requests"] == 800
    assert told["is_learned"] == 1
    assert told["evicted"] > 0
    assert told["returned"] > 0


def test_what_another_life_learned_is_used_at_once() -> None:
    before = chats_among_scans(LearnedEviction(CAPACITY)).policy
    after = LearnedEviction(CAPACITY)
    after.import_state(before.export_state(), 7 * SECOND_NS)
    assert after.statistics()["is_learned"] == 1
    warm = chats_among_scans(after, rounds=30)
    cold = chats_among_scans(LearnedEviction(CAPACITY), rounds=30)
    assert warm.found["chat"] > cold.found["chat"]


def test_a_page_near_its_end_is_worth_less() -> None:
    policy = chats_among_scans(LearnedEviction(CAPACITY)).policy
    now = 2_000 * SECOND_NS
    policy.evict(CAPACITY)
    for page, ends in ((0, None), (1, now + SECOND_NS), (2, None)):
        policy.looked(None, resident_pages=0, missing_pages=1, now_ns=now)
        policy.insert(page, parent=None, now_ns=now, expires_ns=ends)
    assert policy.evict(1) == [1]


def test_a_page_that_costs_less_goes_first() -> None:
    policy = chats_among_scans(LearnedEviction(CAPACITY)).policy
    policy.evict(CAPACITY)
    for page in range(3):
        policy.looked(None, resident_pages=0, missing_pages=1, now_ns=2_000 * SECOND_NS)
        policy.insert(page, parent=None, now_ns=2_000 * SECOND_NS)
    policy.set_cost(2, 0.1)
    policy.set_cost(0, 3)
    assert policy.evict(3) == [2, 1, 0]
    with pytest.raises(InvalidArgumentError):
        policy.set_cost(2, 1)


@pytest.mark.parametrize("cost", [0.0, -1.0, float("nan"), float("inf")])
def test_costs_that_are_none_are_refused(cost: float) -> None:
    policy = LearnedEviction(4)
    policy.insert(0, parent=None, now_ns=1)
    with pytest.raises(InvalidArgumentError, match="positive"):
        policy.set_cost(0, cost)


def test_deep_pages_stay_where_attention_counts() -> None:
    first: dict[int, int] = {}
    for attention_pages in (0, 4):
        policy = LearnedEviction(CAPACITY, attention_pages=attention_pages)
        chats_among_scans(policy)
        policy.evict(CAPACITY)
        for chain in (range(10, 30), range(2)):
            policy.looked(None, resident_pages=0, missing_pages=20, now_ns=2_000 * SECOND_NS)
            below = None
            for page in chain:
                policy.insert(page, parent=below, now_ns=2_000 * SECOND_NS)
                below = page
        policy.looked(29, resident_pages=20, missing_pages=0, now_ns=2_001 * SECOND_NS)
        policy.looked(1, resident_pages=2, missing_pages=0, now_ns=2_001 * SECOND_NS)
        [first[attention_pages]] = policy.evict(1)
    assert first[4] == 1, "the shallow chain is computed anew for less"


def test_a_page_that_its_owner_saw_used_is_no_victim_for_lost_look_ups() -> None:
    natives = (PrefixPolicy(pages=8), PrefixPolicy(pages=8, policy="lru"))
    seen = {0: 90 * SECOND_NS, 2: 80 * SECOND_NS}
    for native in natives:
        for page in range(4):
            native.insert([page], None, [0], (page + 1) * SECOND_NS)
        assert native.evict(4, 100 * SECOND_NS, 0, lambda page: seen.get(page, 0)) == [1, 3, 2, 0]
        assert native.counts()["made_up"] == 2


def test_victims_are_asked_for_by_queue() -> None:
    native = PrefixPolicy(pages=8)
    native.insert([0, 1], None, [0, 0], 1, 0, 3)
    native.insert([2], None, [0], 2, 0, 1)
    assert native.evict(5, 9, 0) == []
    assert native.evict(5, 9, 1) == [2]
    assert native.evict(1, 9, 3) == [1]
    assert native.evict(5, 9, 7) == []


@pytest.mark.parametrize("capacity", [0, -1, 2**24 + 1])
def test_capacities_that_are_none_are_refused(capacity: int) -> None:
    with pytest.raises(InvalidArgumentError, match="pages"):
        LearnedEviction(capacity)


def test_it_takes_few_bytes_a_page() -> None:
    native = PrefixPolicy(pages=1 << 17)
    for chain in range(1 << 13):
        first = chain * 16
        native.insert(range(first, first + 16), None, [0] * 16, chain)
    assert len(native) == 1 << 17
    assert native.bytes() / len(native) <= 100, (
        "16 a page, 64 of ghosts in a small cache, and runs of 16 pages"
    )


STATE = chats_among_scans(LearnedEviction(CAPACITY), rounds=60).policy.export_state()


def test_a_state_comes_back_as_it_went() -> None:
    policy = LearnedEviction(CAPACITY)
    policy.import_state(STATE, SECOND_NS)
    again = policy.export_state()
    assert len(again) == len(STATE)
    assert len(STATE) < 4 * 1024 * 1024


@settings(max_examples=400, deadline=None)
@given(at=st.integers(0, len(STATE) - 1), flip=st.integers(1, 255))
def test_a_state_with_a_damaged_byte_is_refused(at: int, flip: int) -> None:
    policy = LearnedEviction(CAPACITY)
    damaged = bytearray(STATE)
    damaged[at] ^= flip
    with pytest.raises(InvalidArgumentError):
        policy.import_state(bytes(damaged), SECOND_NS)
    assert policy.statistics()["requests"] == 0


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=200)
    | st.integers(0, len(STATE) - 1).map(lambda end: STATE[:end])
    | st.just(STATE + b"x")
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        LearnedEviction(CAPACITY).import_state(data, SECOND_NS)


def _summed(body: bytes) -> bytes:
    total = 0xCBF29CE484222325
    for byte in body:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return body + total.to_bytes(8, "little")


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, len(STATE) - 9), flips=st.binary(min_size=1, max_size=8))
def test_a_state_with_a_right_checksum_harms_nobody(at: int, flips: bytes) -> None:
    """Whoever writes one on purpose makes the choice worse, and no more."""
    body = bytearray(STATE[:-8])
    for index, flip in enumerate(flips):
        body[(at + index) % len(body)] ^= flip
    policy = LearnedEviction(CAPACITY)
    try:
        policy.import_state(_summed(bytes(body)), SECOND_NS)
    except InvalidArgumentError:
        return
    chats_among_scans(policy, rounds=5)
