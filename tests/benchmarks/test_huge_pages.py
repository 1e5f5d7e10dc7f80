"""The measurement of huge pages compares two arenas in all it names, or says how many pages have to be set apart."""

from __future__ import annotations

import pytest

from benchmarks import huge_pages
from cache_l2.huge_pages import HugePages
from kv_types.errors import ArenaTooLargeError

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ARENA_BYTES", 24 * MIB), ("PAGES", 1024), ("LARGE_CHAINS", 3), ("BATCH", 4), ("RING_BYTES", 32 * MIB),
    ):  # fmt: skip
        monkeypatch.setattr(huge_pages, name, value)


def test_every_row_is_measured_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(huge_pages.KINDS, "huge", HugePages.TRANSPARENT)  # which every machine can make
    figures = huge_pages.measure(rounds=3)
    expected = {f"{key}_{name}_s" for key, _ in huge_pages.ROWS for name in huge_pages.KINDS}
    assert set(figures) == expected | {f"{key}_huge_x_small" for key, _ in huge_pages.ROWS}
    assert min(figures.values()) > 0
    assert len(huge_pages.lines(figures)) == 6 + len(huge_pages.ROWS)


def test_too_few_huge_pages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "ARENA_BYTES", 1 << 44)
    with pytest.raises(ArenaTooLargeError, match="MiB"):
        huge_pages.measure(rounds=1)
