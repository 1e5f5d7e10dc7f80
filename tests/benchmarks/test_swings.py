"""Demand that swings between models: memory follows it, as near to the ideal split as is promised, and then stays where it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ideal_split import SplitHits, splits, stack_distances
from benchmarks.swings import SWINGS, Model, Phase, Swing, measure, worths

INCOMPATIBLE = {"very unequal pages"}
"""Where a page of one model is worth 64 of another's, what is best for hits in bytes is far from best for hits in pages."""


@pytest.mark.parametrize("title", sorted(SWINGS))
def test_after_one_turnover_hits_are_within_5_percent_of_the_ideal_split(title: str) -> None:
    swing = SWINGS[title]
    kinds = worths(swing) if title not in INCOMPATIBLE else {"bytes": worths(swing)["bytes"]}
    for phase, outcome in zip(swing.phases, measure(swing), strict=True):
        for kind, worth in kinds.items():
            ideal, split = outcome.found_ideally[kind]
            found = outcome.ratio(worth)
            assert found >= 0.95 * ideal, (
                f"{kind}, {phase}: {found:.1%} against {ideal:.1%} of the split {split}"
            )


@pytest.mark.parametrize("title", ["both alike in bytes, then in pages", "nearly equal pages"])
def test_steady_demand_moves_little(title: str) -> None:
    swing = SWINGS[title]
    steady = Swing(swing.models, [Phase(swing.phases[0].weights, 6.0)])
    (outcome,) = measure(steady)
    assert outcome.moves_per_turnover <= 0.1


def test_a_scan_takes_no_memory_that_is_used() -> None:
    """The model that goes on finds no less while another one, which writes most of what is written, is only scanned."""
    models = {"a": Model(12 * 1024, 8000, 0.9), "b": Model(64 * 1024, 1600, 0.9)}
    phases = [Phase({"a": 1, "b": 1}), Phase({"a": 1, "b": 1}, 4.0, frozenset("b"))]
    shared, scanned = measure(Swing(models, phases))
    assert scanned.found["b"] == 0
    assert scanned.found["a"] / scanned.asked["a"] >= shared.found["a"] / shared.asked["a"]


@given(
    requests=st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True), max_size=30),
    slots=st.integers(1, 9),
)
def test_stack_distances_tell_the_hits_of_every_size(requests: list[list[int]], slots: int) -> None:
    resident: list[int] = []
    for request, distances in zip(requests, stack_distances(requests), strict=True):
        hits = 0
        for page in reversed(request):
            if page in resident:
                hits += resident.index(page) < slots
                resident.remove(page)
            resident.insert(0, page)
        assert sum(distance < slots for distance in distances) == hits


def test_the_best_split_is_found_among_all() -> None:
    assert sorted(splits(2, 2)) == [(0, 2), (1, 1), (2, 0)]
    assert len(list(splits(3, 10))) == 66
    hits = SplitHits({"a": [0, 1, 5, 5], "b": [0, 3]}, {"a": 2, "b": 4}, 3)
    assert hits.best({"a": 1.0, "b": 1.0}) == (4.0, (1, 2))
    assert hits.best({"a": 1.0, "b": 0.0}) == (4.0, (3, 0))
