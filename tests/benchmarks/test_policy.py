"""The benchmark of the eviction policy: its traces are what it says, and its figures are figures of the policy."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.policy import CHAIN_BLOCKS, cost, large, ratios
from benchmarks.request_traces import KINDS, made_up


@pytest.mark.parametrize("kind", list(KINDS))
def test_made_up_requests_come_in_order_and_are_chains(kind: str) -> None:
    requests = made_up(kind, 3, 400)
    assert requests == made_up(kind, 3, 400), "the same each time"
    assert [now for now, _ in requests] == sorted(now for now, _ in requests)
    before: dict[int, int] = {}
    for _, blocks in requests:
        assert len(set(blocks)) == len(blocks) > 0
        for parent, block in zip([-1, *blocks], blocks, strict=False):
            assert before.setdefault(block, parent) == parent, "a block stands for its whole prefix"


def test_the_large_trace_fills_the_cache_and_turns_it_over() -> None:
    times, offsets, blocks = large(2_000, 1.5)
    assert len(offsets) == len(times) + 1
    assert int(offsets[-1]) == len(blocks)
    assert len(np.unique(blocks)) >= 2 * 2_000
    assert int(np.diff(offsets.astype(np.int64)).max()) == CHAIN_BLOCKS


def test_its_figures_are_there() -> None:
    told = cost(4_000)
    assert told["bytes_per_page"] < 400
    assert all(value > 0 for value in told.values())
    ours, lru = ratios("loops", 1, 0.2)
    assert ours > lru
