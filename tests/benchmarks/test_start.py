"""The measurement of a start measures every row, and what it calls pre-faulted comes after the start."""

from __future__ import annotations

from benchmarks import start


def test_every_row_of_a_small_arena_is_measured() -> None:
    starts = start.measure(arena_bytes=8 << 20, rounds=2)
    assert set(starts.clock_s) == set(starts.processor_s) == {key for key, _ in start.ROWS}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in starts.clock_s.values())
    for begun, done in (("start", "prefaulted"), ("attach", "attach_prefaulted")):
        pairs = zip(starts.clock_s[begun], starts.clock_s[done], strict=True)
        assert all(first <= last for first, last in pairs)
    figures = starts.figures()
    assert figures["start_s_x_bare"] > 0
    assert figures["bare_processor_s_x_bare"] == 1
    assert len(start.lines(starts)) == 8 + len(start.ROWS)
