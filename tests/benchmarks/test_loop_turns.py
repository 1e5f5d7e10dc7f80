"""The measurement of turns measures what it says: the longest time that others wait, and every scenario to its end."""

from __future__ import annotations

import asyncio
import time

import pytest

from benchmarks import loop_turns

pytestmark = pytest.mark.asyncio


async def test_the_longest_turn_is_that_of_the_work() -> None:
    def burn(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    async def work() -> str:
        for seconds in (0.001, 0.02, 0.001):
            burn(seconds)
            await asyncio.sleep(0)
        return "done"

    turns = loop_turns.Turns()
    assert await turns.watch(work()) == "done"
    assert 20 <= turns.longest_ms[0] < 30
    assert 22 <= turns.total_ms[0] < 40


async def test_every_row_of_a_small_log_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("LOG_TOMBSTONES_MAX", 200), ("LOG_BATCH_RECORDS_MAX", 50), ("FLEET_MEMBERS_MAX", 20), ("HIDDEN_PAGES", 1024),
    ):  # fmt: skip
        monkeypatch.setattr(loop_turns, name, value)
    figures = await loop_turns.measure(rounds=1)
    assert set(figures) == {f"{key}_{what}_ms" for key, _ in loop_turns.ROWS for what in ("longest", "total")}
    for key, _ in loop_turns.ROWS:
        assert 0 < figures[f"{key}_longest_ms"] <= figures[f"{key}_total_ms"]
    shown = loop_turns.lines(figures)
    assert len(shown) == 8 + len(loop_turns.ROWS)
