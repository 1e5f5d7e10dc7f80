"""A short churn: more than L2 and L3 hold goes through both, memory stays flat, counts are exact; and growth would be seen."""

from __future__ import annotations

import os

import pytest

from tests.fleet.churn import ROUNDS_MAX, Watched, churn, go_on_while_growing, grown

SECONDS = float(os.environ.get("STRATAKV_CHURN_S", "20"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + ROUNDS_MAX * SECONDS)]


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


@pytest.mark.parametrize(("stops_after", "is_seen"), [(0, False), (2, False), (ROUNDS_MAX, True), (99, True)])
def test_what_fills_up_at_first_is_no_leak_and_what_goes_on_is(stops_after: int, is_seen: bool) -> None:
    memory, rounds, watched = 100 << 20, 0, Watched("memory", lambda: memory)

    def one_round() -> None:
        nonlocal memory, rounds
        for at in range(100):
            watched.samples.append((at * 0.5, watched.read()))
            memory += 100_000 if rounds < stops_after else 0
        rounds += 1

    go_on_while_growing([watched], one_round, lambda: grown([watched]))
    assert bool(grown([watched])) is is_seen
    assert rounds == min(stops_after + 1, ROUNDS_MAX)
