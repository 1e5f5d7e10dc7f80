"""The choice of a layout: what costs least by the measured costs, never what rounds unless that is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.layout_choice import Layout, LayoutCost, choose_layout, cost_s
from kv_types.errors import InvalidArgumentError

MEASURED = {
    Layout.CONTIGUOUS: [LayoutCost(100, 10.0, 1.0), LayoutCost(1000, 100.0, 10.0)],
    Layout.PAGED: [LayoutCost(100, 0.0, 2.0), LayoutCost(1000, 0.0, 30.0)],
    Layout.COMPRESSED: [LayoutCost(100, 1.0, 1.0), LayoutCost(1000, 10.0, 10.0)],
}


def test_what_is_read_often_is_gathered_and_what_is_read_once_is_not() -> None:
    assert choose_layout(100, steps=9, measured=MEASURED) is Layout.PAGED
    assert choose_layout(100, steps=11, measured=MEASURED) is Layout.CONTIGUOUS
    assert choose_layout(1000, steps=4, measured=MEASURED) is Layout.PAGED
    assert choose_layout(1000, steps=6, measured=MEASURED) is Layout.CONTIGUOUS


def test_what_rounds_is_chosen_only_where_it_may_be() -> None:
    assert choose_layout(1000, steps=6, measured=MEASURED, is_exact=False) is Layout.COMPRESSED
    only = {Layout.COMPRESSED: MEASURED[Layout.COMPRESSED]}
    assert choose_layout(10, steps=1, measured=only, is_exact=False) is Layout.COMPRESSED
    with pytest.raises(InvalidArgumentError, match="no layout"):
        choose_layout(10, steps=1, measured=only)


def test_ties_go_to_the_contiguous_one() -> None:
    same = [LayoutCost(10, 1.0, 1.0)]
    assert (
        choose_layout(10, steps=1, measured={Layout.PAGED: same, Layout.CONTIGUOUS: same})
        is Layout.CONTIGUOUS
    )


def test_costs_lie_on_lines_through_what_was_measured() -> None:
    costs = MEASURED[Layout.CONTIGUOUS]
    assert cost_s(0, steps=0, measured=costs) == cost_s(100, steps=0, measured=costs) == 10.0
    assert cost_s(550, steps=2, measured=costs) == pytest.approx(55.0 + 2 * 5.5)
    assert cost_s(4000, steps=1, measured=costs) == pytest.approx(4 * 110.0)


@given(
    tokens=st.integers(0, 10_000),
    steps=st.integers(0, 1000),
    costs=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=6, max_size=6),
)
def test_nothing_else_costs_less(tokens: int, steps: int, costs: list[tuple[float, float]]) -> None:
    measured = {
        layout: [LayoutCost(64, *costs[2 * at]), LayoutCost(4096, *costs[2 * at + 1])]
        for at, layout in enumerate(Layout)
    }
    chosen = choose_layout(tokens, steps=steps, measured=measured, is_exact=False)
    least = min(cost_s(tokens, steps=steps, measured=one) for one in measured.values())
    assert cost_s(tokens, steps=steps, measured=measured[chosen]) == least


@pytest.mark.parametrize("lengths", [[], [0, 5], [5, 5], [9, 5]])
def test_measurements_ascend(lengths: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="ascending"):
        cost_s(5, steps=1, measured=[LayoutCost(length, 1.0, 1.0) for length in lengths])


@pytest.mark.parametrize(("tokens", "steps"), [(-1, 0), (0, -1)])
def test_numbers_are_not_negative(tokens: int, steps: int) -> None:
    with pytest.raises(InvalidArgumentError, match="negative"):
        choose_layout(tokens, steps=steps, measured=MEASURED)
