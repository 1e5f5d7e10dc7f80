"""Ten million operations on a pool: nothing leaks, and what tails waste at the end is what they wasted at the beginning."""

from __future__ import annotations

from statistics import mean

from benchmarks.l1_churn import WINDOWS, churn

OPERATIONS = 10_000_000


def test_ten_million_operations_leave_nothing_and_fragment_nothing() -> None:
    run = churn(OPERATIONS)
    assert run.operations >= OPERATIONS
    assert (run.leaked_pages, run.references_lost) == (0, 0)
    assert run.tail_copies > 1000
    assert len(run.windows) == WINDOWS
    early, late = run.windows[: WINDOWS // 4], run.windows[-WINDOWS // 4 :]
    assert mean(one.internal for one in late) <= 1.2 * mean(one.internal for one in early)
    assert min(one.occupancy for one in late) > 0.9, "a pool that wastes its pages could not be full of use"
    assert max(one.internal for one in run.windows) < 0.02
    assert min(one.sharing for one in run.windows) > 0.2
