"""What it costs to lose a page: what a load takes against computing, and how computing grows with depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_policy.load_or_recompute import LoadOrRecompute
from kv_policy.losing_cost import ATTENTION_PAGES_LEAST, LosingCost, LosingCosts
from kv_types.limits import ARENA_PAGES_MAX, COMPUTE_PAGE_S_MAX
from kv_types.loading import ComputeCost

PAGE_BYTES = 1 << 20


def known(*, load_s_a_page: float, compute_s_a_page: float) -> LosingCost:
    """Of a tier and workers that took so long for each of 16 pages."""
    tier = LoadOrRecompute()
    for pages in (1, 16):
        tier.estimate.observe(pages * PAGE_BYTES, pages * load_s_a_page, now_s=1.0)
    tier.course(16, PAGE_BYTES, ComputeCost(compute_s_a_page), left_s=60.0, now_s=2.0)
    return LosingCost(tier)


def test_nothing_known_is_half_and_all_depths_alike() -> None:
    assert LosingCost(LoadOrRecompute()).costs(is_reachable=True) == LosingCosts(0.5, 0)


def test_a_tier_out_of_reach_makes_no_difference() -> None:
    losing = known(load_s_a_page=0.001, compute_s_a_page=0.004)
    assert losing.costs(is_reachable=False).elsewhere == 1.0


@pytest.mark.parametrize(
    ("load_s", "compute_s", "cost"),
    [(0.001, 0.004, 0.25), (0.003, 0.004, 0.75), (0.0001, 0.1, 0.125), (0.1, 0.001, 1.0)],
)
def test_a_load_costs_what_it_takes_against_computing_within_bounds(
    load_s: float, compute_s: float, cost: float
) -> None:
    losing = known(load_s_a_page=load_s, compute_s_a_page=compute_s)
    assert losing.costs(is_reachable=True).elsewhere == pytest.approx(cost, rel=0.1)


def test_attention_is_what_workers_say_it_is() -> None:
    losing = LosingCost(LoadOrRecompute())
    losing.computes(ComputeCost(0.010, 0.00001))
    assert losing.costs(is_reachable=True).attention_pages == 1000
    for _ in range(200):
        losing.computes(ComputeCost(0.010, 0.000005))
    assert losing.costs(is_reachable=True).attention_pages == pytest.approx(2000, rel=0.01)


def test_a_worker_that_tells_one_speed_says_that_all_depths_are_alike() -> None:
    losing = LosingCost(LoadOrRecompute())
    losing.computes(ComputeCost(0.010))
    assert losing.costs(is_reachable=True).attention_pages == 0


@given(
    st.lists(
        st.builds(ComputeCost, st.floats(1e-300, COMPUTE_PAGE_S_MAX), st.floats(0, COMPUTE_PAGE_S_MAX)),
        max_size=8,
    )
)
def test_whatever_workers_say_costs_stay_within_bounds(told: list[ComputeCost]) -> None:
    losing = LosingCost(LoadOrRecompute())
    for cost in told:
        losing.computes(cost)
    costs = losing.costs(is_reachable=True)
    assert costs.attention_pages == 0 or ATTENTION_PAGES_LEAST <= costs.attention_pages <= ARENA_PAGES_MAX
