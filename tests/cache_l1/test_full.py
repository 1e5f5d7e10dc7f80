"""A full L1 (case C12): prompts that come in parts, and conversations a hundred times as large as the cache."""

from __future__ import annotations

import random

import pytest

from cache_l1.cache import L1Cache
from cache_l1.policies import POLICIES, RecencyAlone
from kv_types.errors import InvalidArgumentError
from kv_types.ids import PageKey
from tests.cache_l1.bench import SIZE, Bench, chain
from tests.cache_l1.fakes import ByteMemory


def resident(bench: Bench, keys: list[PageKey]) -> list[bool]:
    """Which keys are here, whatever stands before them."""
    return [key in bench.cache._index for key in keys]


def assert_closed(bench: Bench, keys: list[PageKey]) -> int:
    """What is here of a chain is its front, and can be served: how many pages."""
    here = resident(bench, keys)
    front = sum(here)
    assert here == [True] * front + [False] * (len(keys) - front)
    assert bench.found(keys) == front
    return front


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("capacity", [4, 16, 40])
def test_c12_a_prompt_in_eight_calls_into_a_full_cache(policy: str, capacity: int) -> None:
    bench = Bench(capacity, policy=policy)
    for root in range(1, 9):
        bench.insert(chain(capacity // 2, root=root))
    prompt = chain(64, root=99)
    for call in range(8):
        upto = 8 * (call + 1)
        known = bench.found(prompt[:upto])
        bench.insert(prompt[:upto], known)
        assert assert_closed(bench, prompt) > 0
    assert assert_closed(bench, prompt) == min(capacity, 64), (
        "all the room goes to the prompt that is used now"
    )
    bench.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_c12_a_hundredth_of_what_is_talked_about_is_still_of_use(policy: str) -> None:
    draw = random.Random(7)
    sessions = [chain(2, root=root % 3) for root in range(60)]  # three system prompts
    turns = {number: draw.randint(3, 30) for number in range(60)}
    bench = Bench(12, policy=policy)
    hits = asked = 0
    live = list(turns)
    while live:
        number = draw.choice(live[:4])  # few talk at a time
        keys = sessions[number]
        grown = chain(len(keys) + draw.randint(1, 3), root=number % 3, branch=(0, *(number,) * 200))
        sessions[number] = grown
        found = bench.found(grown)
        asked += len(grown)
        hits += found
        bench.insert(grown, found)
        assert assert_closed(bench, grown) > 0
        turns[number] -= 1
        if not turns[number]:
            live.remove(number)
    everything = {key for keys in sessions for key in keys}
    assert len(everything) >= 100 * bench.cache.statistics()["capacity_pages"]
    assert hits > 0.1 * asked
    bench.check()


def test_a_policy_has_a_name() -> None:
    with pytest.raises(InvalidArgumentError, match="lru"):
        L1Cache(capacity_pages=2, page_bytes=SIZE, memory=ByteMemory(2, SIZE), policy="newest")


class _Noting(RecencyAlone):
    """Notes what it is told of look-ups."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int | None, int, int, int]] = []

    def looked(
        self, deepest: int | None, *, resident_pages: int, missing_pages: int, now_ns: int, digest: int = 0
    ) -> None:
        self.told.append((deepest, resident_pages, missing_pages, digest))
        super().looked(
            deepest, resident_pages=resident_pages, missing_pages=missing_pages, now_ns=now_ns, digest=digest
        )


def test_the_policy_hears_of_look_ups_that_say_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    noting = _Noting()
    monkeypatch.setitem(POLICIES, "noting", lambda capacity_pages: noting)
    bench = Bench(8, policy="noting")
    keys = chain(4)
    digests = [int.from_bytes(key[:4], "little") for key in keys]
    bench.found(keys)
    bench.insert(keys[:3])
    bench.found(keys)
    bench.found(keys[:3])
    assert noting.told == [(None, 0, 4, digests[0]), (2, 3, 1, digests[3]), (2, 3, 0, 0)]
    bench.header.freshness = 0
    assert bench.found(keys) == 0
    bench.header.freshness = 2**62
    assert len(noting.told) == 3, "what is stale says nothing of what is here"
    bench.header.restart()
    assert bench.found(keys) == 0
    assert noting.told[-1] == (None, 0, 4, digests[0])
    assert len(noting) == 0, "it forgets the pages that an event takes, and not what it has learned"
    bench.check()
