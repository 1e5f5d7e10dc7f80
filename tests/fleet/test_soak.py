"""50 workers on one sidecar, some of them killed in the midst of what they do: pages never mix, and nothing stays behind."""

from __future__ import annotations

import os
import random

import pytest

from tests.fleet.churn import ROUNDS_MAX
from tests.fleet.soak import Soaked, soak, told

SECONDS = float(os.environ.get("STRATAKV_WORKERS_SOAK_S", "60"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + ROUNDS_MAX * SECONDS)]


def test_workers_that_are_killed_in_the_midst_leave_nothing_and_mix_nothing() -> None:
    """STRATAKV_WORKERS_SOAK_S says for how long; the seed is printed, and STRATAKV_SOAK_SEED takes it up again."""
    seed = int(os.environ.get("STRATAKV_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"STRATAKV_SOAK_SEED={seed}")
    assert told(soak(SECONDS, seed=seed), seed=seed) == []


def test_a_soak_that_exercised_nothing_is_no_success() -> None:
    wrong = Soaked(arena={"evictions_capacity": 0, "evictions_invalidated": 1}).judge()
    assert wrong == [
        "nobody was killed in mid-put", "nobody was killed in mid-get", "nobody was killed in mid-lease",
        "only 0 were killed", "evictions_capacity is 0", "no look-up was served wholly",
    ]  # fmt: skip
