"""A tenant with a share beside one that scans has what it would have alone, and what it doesn't use is no waste."""

from __future__ import annotations

import pytest

from benchmarks.tenants import (
    ALONE,
    GUARDED,
    IDLE,
    SEGMENT_BYTES,
    SEGMENTS,
    SHARE,
    TOLERANCE,
    UNSHARED,
    Setting,
    measure,
)

SHARE_BYTES = int(SHARE * SEGMENTS * SEGMENT_BYTES)


@pytest.fixture(scope="module")
def alone() -> float:
    return measure(ALONE).hit_ratio


@pytest.mark.parametrize("setting", GUARDED, ids=lambda setting: setting.title)
def test_a_share_holds_under_a_scan(setting: Setting, alone: float) -> None:
    outcome = measure(setting)
    assert outcome.hit_ratio >= alone - TOLERANCE
    assert outcome.used_bytes >= SHARE_BYTES - SEGMENT_BYTES


def test_without_a_share_the_scan_takes_what_it_can(alone: float) -> None:
    assert measure(UNSHARED).hit_ratio < alone - 5 * TOLERANCE


def test_what_others_do_not_use_is_the_tenants(alone: float) -> None:
    outcome = measure(IDLE)
    assert outcome.hit_ratio > alone + 10 * TOLERANCE
    assert outcome.used_bytes > 3 * SHARE_BYTES
