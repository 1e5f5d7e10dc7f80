"""A short churn: more than L2 and L3 hold goes through both, memory stays flat, counts are exact; and growth would be seen."""

from __future__ import annotations

import os

import pytest

from tests.fleet.churn import Watched, churn

SECONDS = float(os.environ.get("STRATAKV_CHURN_S", "20"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + SECONDS)]


def test_memory_is_flat_and_counts_are_exact_while_all_is_replaced_again_and_again() -> None:
    churned = churn(SECONDS, seed=3)
    print(churned.report())
    assert churned.judge() == []


def test_growth_would_be_seen() -> None:
    flat, growing = Watched("flat", int), Watched("growing", int)
    for at in range(100):
        noise = (at * 7919) % 13 * 100_000
        flat.samples.append((at * 0.5, 100_000_000 + noise))
        growing.samples.append((at * 0.5, 100_000_000 + noise + at * 200_000))
    assert abs(flat.growth()) < 1 << 20
    assert 10e6 < growing.growth() < 14e6
