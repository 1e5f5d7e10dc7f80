"""The policy that learns on traces: never worse than LRU, a good part of what Belady's optimum has more, and so on others too."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.policy import Arrays, arrays
from benchmarks.request_traces import KINDS, made_up
from kv_policy._native import replay
from kv_policy.losing_cost import ATTENTION_PAGES_LEAST
from kv_policy.trace import Trace, TraceBuilder

TRACES = Path(__file__).parent.parent / "data" / "traces"
SHARES = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)

# prefix-hit ratios by an independent simulator, at SHARES of the distinct blocks: (tail-first LRU, Belady's optimum)
REFERENCE = {
    "miniswe_c64": (
        (0.2364, 0.2364), (0.4299, 0.4299), (0.6598, 0.6598), (0.7908, 0.7908), (0.9177, 0.9185), (0.9348, 0.9357),
    ),
    "mooncake_conversation_6000": (
        (0.0434, 0.1888), (0.0535, 0.2504), (0.1123, 0.3288), (0.2086, 0.3463), (0.2801, 0.3463), (0.3425, 0.3463),
    ),
    "mooncake_synthetic": (
        (0.0381, 0.1854), (0.0778, 0.2613), (0.1566, 0.3956), (0.2623, 0.5063), (0.3931, 0.6080), (0.5888, 0.6396),
    ),
    "taubench_c64": (
        (0.1112, 0.1677), (0.2816, 0.4025), (0.5711, 0.6726), (0.8014, 0.8226), (0.8420, 0.8420), (0.8420, 0.8420),
    ),
}  # fmt: skip
CELLS = [(name, index) for name in REFERENCE for index in range(len(SHARES))]


@cache
def read(name: str) -> Trace:
    builder = TraceBuilder(name)
    with gzip.open(TRACES / f"{name}.jsonl.gz", "rb") as file:
        builder.add_lines(file, file=name)
    return builder.build()


@cache
def hit_ratio(name: str, index: int, policy: str, seed: int = 1, piece_blocks: int = 0) -> float:
    trace = read(name)
    capacity = max(1, int(trace.distinct * SHARES[index]))
    requested, hit, *_ = replay(
        trace.times_ns, trace.offsets, trace.blocks, capacity_blocks=capacity,
        policy="lru" if policy == "lru" else "learned", seed=seed, piece_blocks=piece_blocks,
    )  # fmt: skip
    return hit / requested


@pytest.mark.parametrize(("name", "index"), CELLS)
def test_lru_is_what_an_independent_simulator_says(name: str, index: int) -> None:
    assert hit_ratio(name, index, "lru") == pytest.approx(REFERENCE[name][index][0], abs=5.1e-5)


@pytest.mark.parametrize(("name", "index"), CELLS)
def test_it_is_never_worse_than_lru(name: str, index: int) -> None:
    for seed in (1, 2, 3):
        assert hit_ratio(name, index, "learned", seed) >= REFERENCE[name][index][0] - 0.003


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_closes_a_quarter_of_the_gap_to_belady(seed: int) -> None:
    closed = [
        (hit_ratio(name, index, "learned", seed) - lru) / (belady - lru)
        for name, index in CELLS
        for lru, belady in [REFERENCE[name][index]]
        if belady - lru > 0.01
    ]
    assert len(closed) == 15
    assert np.mean(closed) >= 0.25


@pytest.mark.parametrize(("name", "index"), CELLS)
def test_what_every_page_costs_alike_changes_nothing(name: str, index: int) -> None:
    """Where L3 is given all pages, as it is by default, it matters not that it holds them."""
    trace = read(name)
    capacity = max(1, int(trace.distinct * SHARES[index]))
    plain, held = (
        replay(trace.times_ns, trace.offsets, trace.blocks, capacity_blocks=capacity, elsewhere_cost=cost)
        for cost in (1.0, 0.5)
    )
    assert held[:3] == plain[:3]


def test_the_steepest_attention_that_counts_costs_no_hits() -> None:
    gains = []
    for name, index in CELLS:
        trace, (lru, belady) = read(name), REFERENCE[name][index]
        requested, hit, *_ = replay(
            trace.times_ns, trace.offsets, trace.blocks,
            capacity_blocks=max(1, int(trace.distinct * SHARES[index])), attention_blocks=ATTENTION_PAGES_LEAST,
        )  # fmt: skip
        assert hit / requested >= lru - 0.003
        if belady - lru > 0.01:
            gains.append((hit / requested - lru) / (belady - lru))
    assert np.mean(gains) >= 0.25


def test_c12_agents_keep_usable_prefixes_in_a_small_cache() -> None:
    assert hit_ratio("miniswe_c64", 0, "learned") >= 0.23
    assert hit_ratio("miniswe_c64", 0, "learned", piece_blocks=8) >= 0.23


@pytest.mark.parametrize("name", ["mooncake_conversation_6000", "mooncake_synthetic"])
@pytest.mark.parametrize("piece_blocks", [1, 8])
def test_requests_that_are_put_in_pieces_are_known_for_one(name: str, piece_blocks: int) -> None:
    """What is put in pieces learns nearly as much, though what goes is chosen before all of it is there."""
    whole, pieces = (
        sum(
            hit_ratio(name, index, "learned", piece_blocks=count) - REFERENCE[name][index][0]
            for index in range(6)
        )
        for count in (0, piece_blocks)
    )
    assert pieces >= 0.85 * whole


@pytest.mark.parametrize("kind", list(KINDS))
def test_it_holds_on_made_up_traces_of_other_seeds(kind: str) -> None:
    gains = []
    for seed in (11, 12):
        trace = arrays(made_up(kind, seed, 3_000))
        distinct = len(np.unique(trace[2]))
        for share in SHARES:
            learned, lru = (
                replay(*trace, capacity_blocks=int(distinct * share), policy=policy)
                for policy in ("learned", "lru")
            )
            gains.append((learned[1] - lru[1]) / lru[0])
    assert min(gains) >= -0.004, (
        gains
    )  # what the guard lets go in traces as short as these, a part of it as a credit
    assert np.mean(gains) >= -0.0005
    if kind in {"chat", "documents", "loops", "everything", "chat and scans"}:
        assert np.mean(gains) >= 0.01, "where people think, or others scan, LRU is beaten"


def test_the_same_trace_and_seed_give_the_same() -> None:
    trace = read("taubench_c64")
    runs = [
        replay(trace.times_ns, trace.offsets, trace.blocks, capacity_blocks=8, seed=4)[:3] for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_traces_that_are_none_are_refused() -> None:
    times, offsets = np.array([0, 5], np.int64), np.array([0, 1, 2], np.uint64)
    blocks = np.array([1, 2], np.uint64)
    assert replay(times, offsets, blocks, capacity_blocks=1)[0] == 2
    late = np.array([5, 0], np.int64)
    refused: list[tuple[Arrays, int, str]] = [
        ((late, offsets, blocks), 1, "go back"),
        ((times - 1, offsets, blocks), 1, "negative"),
        ((times, offsets[:2].copy(), blocks), 1, "one more than times"),
        ((times, offsets[::-1].copy(), blocks), 1, "go back"),
        ((times, offsets, blocks[:1].copy()), 1, "number of blocks"),
        ((times, offsets, blocks), 0, "hold a block"),
        ((times, offsets, blocks), 2**24, "not more than"),
    ]
    for trace, capacity, why in refused:
        with pytest.raises(ValueError, match=why):
            replay(*trace, capacity_blocks=capacity)
    with pytest.raises(ValueError, match="learned or lru"):
        replay(times, offsets, blocks, capacity_blocks=1, policy="fifo")  # type: ignore[arg-type]
