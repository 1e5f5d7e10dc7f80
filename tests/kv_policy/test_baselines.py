"""Policies to compare with: one suite for all, plain twins, and the figures of independent simulators on public traces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_policy.baselines import BASELINES, ReplayPolicy, replay
from kv_policy.replays import LEARNED, POLICIES, replay_named
from kv_policy.trace import Trace
from kv_types.errors import InvalidArgumentError
from tests.support.traces import SHARES, capacity_of, public_trace, trace_of

EVERY = pytest.mark.parametrize("policy", POLICIES)
PLAIN = pytest.mark.parametrize("policy", sorted(BASELINES))


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    """Walks from the root of a small tree: ids are chained, as hashes are."""
    chains = draw(st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=40))
    return trace_of([_chained(chain) for chain in chains])


def _chained(steps: Sequence[int]) -> list[int]:
    ids, at = [], 0
    for step in steps:
        at = at * 4 + step
        ids.append(at)
    return ids


TRACES = _traces()


class Watched:
    """A policy, looked at from outside after each request."""

    def __init__(self, policy: ReplayPolicy, capacity: int, trace: Trace) -> None:
        self.policy, self.capacity, self.trace = policy, capacity, trace

    def __contains__(self, block: int) -> bool:
        return block in self.policy

    def __len__(self) -> int:
        return len(self.policy)

    def request(self, blocks: Sequence[int]) -> None:
        before = {block for block in range(self.trace.distinct) if block in self.policy}
        self.policy.request(blocks)
        after = {block for block in range(self.trace.distinct) if block in self.policy}
        assert len(after) == len(self.policy) <= self.capacity
        assert after <= before | set(blocks), "it holds what nobody has asked for"
        if len(before | set(blocks)) <= self.capacity:
            assert after == before | set(blocks), "it lets go of blocks while there is room"


@PLAIN
@given(trace=TRACES, capacity=st.integers(1, 12))
def test_it_holds_what_was_asked_for_and_never_more_than_fits(
    policy: str, trace: Trace, capacity: int
) -> None:
    got = replay(trace, Watched(BASELINES[policy](capacity, trace), capacity, trace))
    assert got == replay_named(policy, trace, capacity), "a replay is the same each time"


@EVERY
@given(trace=TRACES)
def test_with_room_for_all_every_block_that_comes_again_is_hit(policy: str, trace: Trace) -> None:
    got = replay_named(policy, trace, max(1, trace.distinct))
    assert (got.requested, got.hit) == (len(trace.blocks), trace.reused)
    assert got.ratio == (trace.reused / len(trace.blocks) if len(trace.blocks) else 0.0)


@EVERY
@given(trace=TRACES, capacity=st.integers(1, 12))
def test_nobody_is_better_than_belady(policy: str, trace: Trace, capacity: int) -> None:
    assert (
        replay_named(policy, trace, capacity).hit
        <= replay_named("belady", trace, capacity).hit
        <= trace.reused
    )


@pytest.mark.parametrize("policy", ["lru", "belady"])
@given(trace=TRACES, capacity=st.integers(1, 12))
def test_what_stays_is_closed_under_prefixes(policy: str, trace: Trace, capacity: int) -> None:
    cache = BASELINES[policy](capacity, trace)
    offsets = trace.offsets.tolist()
    chains = [trace.blocks[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]
    for chain in chains:
        cache.request(chain)
        for known in chains:
            held = [block in cache for block in known]
            assert held == sorted(held, reverse=True), "a block stays whose parent has gone"


@given(trace=TRACES, capacity=st.integers(1, 12))
def test_lru_is_a_list_in_the_order_of_use(trace: Trace, capacity: int) -> None:
    """The twin: all that was ever asked for, newest first, is cut to the capacity."""
    recent: list[int] = []
    hit, offsets = 0, trace.offsets.tolist()
    for begin, end in itertools.pairwise(offsets):
        blocks = trace.blocks[begin:end].tolist()
        for block in blocks:
            if block not in recent[:capacity]:
                break
            hit += 1
        recent = blocks + [block for block in recent if block not in blocks]
    assert replay_named("lru", trace, capacity).hit == hit


def test_lru2_keeps_what_came_again_before_what_came_once() -> None:
    trace = trace_of([[1], [1], [2], [3], [4], [1]])
    assert replay_named("lru2", trace, 2).hit == 2
    assert replay_named("lru", trace, 2).hit == 1


def test_lru2_remembers_a_last_access_over_an_eviction() -> None:
    """1 is evicted by 3 and comes back; that was its second access, so that 4 takes the place of 3 and not its."""
    trace = trace_of([[1], [2], [3], [1], [4], [1]])
    assert replay_named("lru2", trace, 2).hit == 1


def test_s3fifo_lets_one_scan_pass_through_its_small_queue() -> None:
    scan = [[number] for number in range(100, 120)]
    hot = [[1], [1], [1], [2], [2], [2]]
    trace = trace_of([*hot, *scan, [1], [2]])
    assert replay_named("s3fifo", trace, 10).hit == 6
    assert replay_named("lru", trace, 10).hit == 4


def test_belady_lets_go_of_what_is_needed_last() -> None:
    trace = trace_of([[1], [2], [3], [1], [2], [3]])
    assert replay_named("belady", trace, 2).hit == 2
    assert replay_named("lru", trace, 2).hit == 0


@EVERY
@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_has_room_for_something(policy: str, capacity: int) -> None:
    with pytest.raises(InvalidArgumentError, match="room for one block at least"):
        replay_named(policy, trace_of([[1]]), capacity)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="'arc' is no policy; there are learned, lru"):
        replay_named("arc", trace_of([[1]]), 1)


# Prefix-hit ratios at SHARES of the different blocks. Those of LRU, S3-FIFO and Belady are an independent simulator's; so are
# those of LRU-2 on the two Mooncake traces; on the others, of a few blocks, it remembers evicted ones in another way.
FIGURES: dict[str, dict[str, tuple[float, ...]]] = {
    "miniswe_c64": {
        "lru": (0.2364, 0.4299, 0.6598, 0.7908, 0.9177, 0.9348),
        "lru2": (0.0845, 0.2866, 0.6269, 0.7535, 0.8750, 0.9079),
        "s3fifo": (0.0290, 0.1624, 0.4626, 0.6009, 0.8488, 0.9334),
        "belady": (0.2364, 0.4299, 0.6598, 0.7908, 0.9185, 0.9357),
    },
    "mooncake_conversation_6000": {
        "lru": (0.0434, 0.0535, 0.1123, 0.2086, 0.2801, 0.3425),
        "lru2": (0.0556, 0.0802, 0.1334, 0.1960, 0.2652, 0.3423),
        "s3fifo": (0.0530, 0.0751, 0.1358, 0.1853, 0.2319, 0.2998),
        "belady": (0.1888, 0.2504, 0.3288, 0.3463, 0.3463, 0.3463),
    },
    "mooncake_synthetic": {
        "lru": (0.0381, 0.0778, 0.1566, 0.2623, 0.3931, 0.5888),
        "lru2": (0.0407, 0.0798, 0.1500, 0.2640, 0.4084, 0.6035),
        "s3fifo": (0.0364, 0.0778, 0.1543, 0.2622, 0.3945, 0.5609),
        "belady": (0.1854, 0.2613, 0.3956, 0.5063, 0.6080, 0.6396),
    },
    "taubench_c64": {
        "lru": (0.1112, 0.2816, 0.5711, 0.8014, 0.8420, 0.8420),
        "lru2": (0.1112, 0.3530, 0.5958, 0.7538, 0.7802, 0.8085),
        "s3fifo": (0.0865, 0.2542, 0.4837, 0.6937, 0.7626, 0.8323),
        "belady": (0.1677, 0.4025, 0.6726, 0.8226, 0.8420, 0.8420),
    },
}
CELLS = [(name, policy) for name in sorted(FIGURES) for policy in BASELINES]


@pytest.mark.parametrize(("name", "policy"), CELLS)
def test_public_traces_have_the_known_figures(name: str, policy: str) -> None:
    trace = public_trace(name)
    got = [round(replay_named(policy, trace, capacity_of(trace, share)).ratio, 4) for share in SHARES]
    assert tuple(got) == FIGURES[name][policy]


def test_a_cache_without_bounds_has_the_known_figures() -> None:
    ideal = {name: round(one.reused / len(one.blocks), 4) for name, one in _by_name(public_trace).items()}
    assert ideal == {
        "miniswe_c64": 0.9357, "mooncake_conversation_6000": 0.3463, "mooncake_synthetic": 0.6396,
        "taubench_c64": 0.8420,
    }  # fmt: skip


def _by_name(read: Callable[[str], Trace]) -> dict[str, Trace]:
    return {name: read(name) for name in sorted(FIGURES)}


def test_the_policy_of_the_tiers_replays_beside_them() -> None:
    trace = public_trace("mooncake_synthetic")
    got = replay_named(LEARNED, trace, capacity_of(trace, 20))
    assert got.ratio > FIGURES["mooncake_synthetic"]["lru"][4]
