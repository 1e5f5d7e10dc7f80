"""The measurement of a full sidecar measures to its end, and all that its page tells of; small here."""

from __future__ import annotations

import pytest

from benchmarks import million


@pytest.mark.timeout(120)
def test_every_row_of_a_small_sidecar_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "ROUNDS_MAX", 20)
    figures = million.measure(pages=20_000, rounds=3)
    assert set(figures) == {key for key, _, _ in million.ROWS}
    assert 0 < figures["own_memory_empty_MB"] <= figures["own_memory_MB"] < 200
    assert len(million.lines(figures)) == 7 + len(million.ROWS)
