"""Tail-first LRU against a naive twin, and what it keeps usable of a trace of agents' prompts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kv_policy.eviction import EvictionPolicy, TailFirstLru
from kv_types.errors import InvalidArgumentError

TRACE = Path(__file__).parent.parent / "data" / "miniswe_c64.jsonl"


class Twin:
    """The same rules, each written as one scan over everything."""

    def __init__(self) -> None:
        self.parent: dict[int, int | None] = {}
        self.accessed: dict[int, int] = {}
        self.expires: dict[int, int | None] = {}
        self.holds: dict[int, int] = {}

    def insert(self, page: int, *, parent: int | None, now_ns: int, expires_ns: int | None = None) -> None:
        self.parent[page], self.accessed[page], self.expires[page] = parent, now_ns, expires_ns
        self.holds[page] = 0

    def touch(self, page: int, now_ns: int) -> None:
        self.accessed[page] = max(self.accessed[page], now_ns)

    def tails(self) -> list[int]:
        return [page for page in self.parent if page not in self.parent.values() and not self.holds[page]]

    def expired(self, page: int, now_ns: int) -> bool:
        at: int | None = page
        while at is not None:
            expiry = self.expires[at]
            if expiry is not None and expiry <= now_ns:
                return True
            at = self.parent[at]
        return False

    def forget(self, page: int) -> None:
        for table in (self.parent, self.accessed, self.expires, self.holds):
            del table[page]

    def evict(self, count: int) -> list[int]:
        victims: list[int] = []
        while len(victims) < count and (tails := self.tails()):
            victims.append(min(tails, key=lambda page: (self.accessed[page], page)))
            self.forget(victims[-1])
        return victims

    def expire_all(self, now_ns: int) -> set[int]:
        gone: set[int] = set()
        while late := [page for page in self.tails() if self.expired(page, now_ns)]:
            for page in late:
                self.forget(page)
                gone.add(page)
        return gone


@pytest.mark.parametrize("seed", range(12))
def test_it_chooses_what_the_naive_twin_chooses(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    lru, twin = TailFirstLru(), Twin()
    now, handles = 0, 40
    for _ in range(1_500):
        now += draw.randint(0, 3)
        resident = sorted(twin.parent)
        free = [page for page in range(handles) if page not in twin.parent]
        action = draw.random()
        if action < 0.35 and free:
            page = draw.choice(free)  # handles come back at once, with other ranks
            parent = draw.choice([None, *resident])
            expires = draw.choice([None, now + draw.randint(0, 60)])
            for one in (lru, twin):
                one.insert(page, parent=parent, now_ns=now, expires_ns=expires)
        elif action < 0.6 and resident:
            page, at = draw.choice(resident), now - draw.choice([0, 0, 0, 5])
            lru.touch(page, at)
            twin.touch(page, at)
        elif action < 0.7 and resident:
            page = draw.choice(resident)
            lru.hold(page)
            twin.holds[page] += 1
        elif action < 0.82 and (held := [page for page in resident if twin.holds[page]]):
            page = draw.choice(held)
            lru.release(page)
            twin.holds[page] -= 1
        elif action < 0.86 and (tails := [page for page in resident if page not in twin.parent.values()]):
            page = draw.choice(tails)  # held ones too
            lru.remove(page)
            twin.forget(page)
        elif action < 0.95:
            count = draw.randint(0, 4)
            assert lru.evict(count) == twin.evict(count)
        else:
            _expire_both(lru, twin, now, count_max=draw.choice([1, 3, 100]))
        assert len(lru) == len(twin.parent)
        assert all(page in lru and lru.expired(page, now) == twin.expired(page, now) for page in twin.parent)


def _expire_both(lru: TailFirstLru, twin: Twin, now: int, *, count_max: int) -> None:
    parents = dict(twin.parent)
    gone = twin.expire_all(now)
    found: list[int] = []
    while batch := lru.expire(now, count_max=count_max):
        assert len(batch) <= count_max
        found += batch
    assert set(found) == gone
    assert len(found) == len(gone)
    for index, page in enumerate(found):
        assert parents[page] not in found[:index], "a parent went before its child"


def test_ties_go_to_the_lowest_handle() -> None:
    lru = TailFirstLru()
    for page in (5, 3, 9):
        lru.insert(page, parent=None, now_ns=1)
    assert lru.evict(3) == [3, 5, 9]


def test_a_handle_that_comes_back_brings_nothing_of_its_past() -> None:
    lru = TailFirstLru()
    lru.insert(0, parent=None, now_ns=10, expires_ns=1_000)
    lru.remove(0)
    lru.insert(0, parent=None, now_ns=1, expires_ns=50)
    lru.insert(1, parent=None, now_ns=5)
    assert lru.expire(50, count_max=9) == [0]
    lru.insert(0, parent=None, now_ns=1)
    assert lru.evict(1) == [0]


def test_a_chain_goes_from_its_tail() -> None:
    lru = TailFirstLru()
    lru.insert(0, parent=None, now_ns=1)
    lru.insert(1, parent=0, now_ns=2)
    lru.insert(2, parent=1, now_ns=3)
    lru.insert(7, parent=None, now_ns=4)
    assert lru.evict(2) == [2, 1]
    assert lru.evict(9) == [0, 7]
    assert lru.evict(1) == []


def test_what_is_held_stays_with_all_below_it() -> None:
    lru = TailFirstLru()
    lru.insert(0, parent=None, now_ns=1, expires_ns=10)
    lru.insert(1, parent=0, now_ns=1)
    lru.hold(1)
    lru.hold(1)
    assert lru.evict(5) == []
    assert lru.expire(100, count_max=5) == []
    assert lru.expired(1, 100), "a page outlives no page below it"
    assert not lru.expired(1, 9)
    lru.release(1)
    assert lru.evict(5) == []
    lru.release(1)
    assert lru.expire(9, count_max=5) == []
    assert lru.expire(10, count_max=5) == [1, 0]


def test_misuse_is_refused() -> None:
    lru = TailFirstLru()
    lru.insert(0, parent=None, now_ns=1)
    lru.insert(1, parent=0, now_ns=1)
    for call in (
        lambda: lru.insert(0, parent=None, now_ns=1),
        lambda: lru.insert(2, parent=8, now_ns=1),
        lambda: lru.touch(8, 1),
        lambda: lru.hold(8),
        lambda: lru.release(0),
        lambda: lru.release(8),
        lambda: lru.remove(0),
        lambda: lru.remove(8),
        lambda: lru.expired(8, 1),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    assert len(lru) == 2
    assert lru.evict(2) == [1, 0]


def test_decisions_stay_cheap_however_often_pages_are_touched() -> None:
    """Amortised O(log n), counted in looks at a page instead of seconds."""
    looks = 0

    class Counting(TailFirstLru):
        def _access_rank(self, page: int) -> int | None:
            nonlocal looks
            looks += 1
            return super()._access_rank(page)

    lru = Counting()
    pages, rounds = 2_000, 20
    for page in range(pages):
        lru.insert(page, parent=None, now_ns=page)
    for turn in range(rounds):
        for page in range(pages):
            lru.touch(page, pages + turn * pages + page)
        [victim] = lru.evict(1)
        lru.insert(victim, parent=None, now_ns=pages * (turn + 3))
    assert looks <= pages * (rounds + 2) + rounds * 3, f"{looks} looks"
    lru.evict(pages)
    assert looks <= pages * (rounds + 5)


def test_dead_places_do_not_pile_up() -> None:
    lru = TailFirstLru()
    for turn in range(5_000):
        lru.insert(0, parent=None, now_ns=turn, expires_ns=turn + 100)
        lru.remove(0)
    lru.insert(1, parent=None, now_ns=9_000)
    assert len(lru._by_access._heap) < 200
    assert len(lru._by_expiry._heap) < 200
    assert lru.evict(5) == [1]


def _replay(requests: list[list[int]], policy: EvictionPolicy, capacity: int) -> tuple[float, bool]:
    """(prefix-hit ratio, whether residents were closed under prefixes after each request)."""
    where: dict[int, int] = {}
    block_of: dict[int, int] = {}
    parent_of: dict[int, int | None] = {}
    free = list(range(capacity, 0, -1))
    hits = total = 0
    closed = True
    for now, blocks in enumerate(requests):
        total += len(blocks)
        hits += next((index for index, block in enumerate(blocks) if block not in where), len(blocks))
        held: list[int] = []
        for index, block in enumerate(blocks):
            if block in where:
                policy.touch(where[block], now)
            else:
                if not free:
                    for victim in policy.evict(1):
                        del where[block_of.pop(victim)]
                        free.append(victim)
                if not free:
                    break
                where[block] = free.pop()
                block_of[where[block]] = block
                parent_of[block] = blocks[index - 1] if index else None
                policy.insert(where[block], parent=held[-1] if held else None, now_ns=now)
            policy.hold(where[block])
            held.append(where[block])
        for page in held:
            policy.release(page)
        closed &= all(parent_of[block] is None or parent_of[block] in where for block in where)
    return hits / total, closed


def _trace() -> list[list[int]]:
    return [json.loads(line)["hash_ids"] for line in TRACE.read_text().splitlines()]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.01, 0.2364), (0.02, 0.4299), (0.05, 0.6598), (0.20, 0.9177)]
)
def test_c12_prefixes_stay_usable_on_a_trace_of_agents(share: float, expected: float) -> None:
    requests = _trace()
    distinct = len({block for blocks in requests for block in blocks})
    ratio, closed = _replay(requests, TailFirstLru(), int(distinct * share))
    assert closed
    assert ratio == pytest.approx(expected, abs=5e-5), "an independent simulator of tail-first LRU gives this"
    if share == 0.01:
        assert ratio >= 0.23


def test_c12_a_prompt_larger_than_the_cache_keeps_its_head() -> None:
    ratio, closed = _replay([list(range(100)), list(range(100))], TailFirstLru(), 10)
    assert closed
    assert ratio == pytest.approx(10 / 200)
