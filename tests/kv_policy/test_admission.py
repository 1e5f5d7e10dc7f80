"""Which pages go to L3: always, on second use, or by cost; what is saved before it is evicted; what L1 keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_policy.admission import (
    L1Promotion,
    L3Admission,
    PageWorth,
    ReuseRate,
    Uses,
    goes_to_l3,
    is_promoted_to_l1,
    is_saved_before_eviction,
)
from kv_types.ids import page_key

ALWAYS, SECOND_USE, COST = L3Admission


def worth(**changes: Any) -> PageWorth:
    fields: dict[str, Any] = {
        "uses": 1, "compute_s": 0.01, "load_s": 0.001, "store_s": 0.002, "queue_fill": 0.5,
    }  # fmt: skip
    return PageWorth(**{**fields, **changes})


@settings(deadline=None)
@given(st.integers(1, 9), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_always_is_always_and_second_use_counts_uses_alone(
    uses: int, compute_s: float, load_s: float, fill: float, reuse: float
) -> None:
    page = worth(uses=uses, compute_s=compute_s, load_s=load_s, queue_fill=fill)
    assert goes_to_l3(ALWAYS, page, reuse=reuse)
    assert goes_to_l3(SECOND_USE, page, reuse=reuse) == (uses >= 2)


@pytest.mark.parametrize(
    ("changes", "reuse", "goes"),
    [
        ({}, 0.5, True),
        ({}, 0.1, False),
        ({"queue_fill": 0.0}, 0.1, True),
        ({"uses": 2}, 0.1, True),
        ({"load_s": 0.02}, 1.0, False),
        ({"load_s": 0.02, "uses": 9}, 1.0, False),
        ({"compute_s": 0.0}, 0.0, False),
        ({"compute_s": 0.0, "queue_fill": 0.1}, 0.0, True),
        ({"compute_s": 0.0, "uses": 2, "queue_fill": 1.0}, 0.0, True),
    ],
    ids=["usual", "seldom-reused", "idle", "reused", "slow", "slow-and-reused", "unknown-busy", "unknown-idle", "unknown-reused"],
)  # fmt: skip
def test_by_cost_a_page_goes_when_it_saves_more_than_it_costs(
    changes: dict[str, Any], reuse: float, goes: bool
) -> None:
    assert goes_to_l3(COST, worth(**changes), reuse=reuse) is goes


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 5))
def test_more_reuse_never_keeps_a_page_out(less: float, more: float, uses: int) -> None:
    less, more = sorted((less, more))
    assert goes_to_l3(COST, worth(uses=uses), reuse=more) >= goes_to_l3(COST, worth(uses=uses), reuse=less)
    assert goes_to_l3(COST, worth(uses=uses + 1), reuse=less) >= goes_to_l3(
        COST, worth(uses=uses), reuse=less
    )


def test_the_rate_of_reuse_is_what_was_loaded_of_what_was_stored() -> None:
    rate = ReuseRate()
    assert rate.probability == 0.5
    for _ in range(3000):
        rate.stored(1)
    assert rate.probability < 0.1
    for _ in range(3000):
        rate.stored(1)
        rate.loaded(1)
    assert rate.probability > 0.9
    rate.loaded(10_000)
    assert rate.probability == 1.0


def test_uses_of_the_keys_seen_last_are_kept() -> None:
    uses = Uses(2)
    one, two, three = (page_key(bytes([number]) * 32) for number in (1, 2, 3))
    assert [uses.add(one), uses.add(one), uses.add(two), uses.add(three)] == [1, 2, 1, 1]
    assert (uses.of(one), uses.of(two), uses.of(three)) == (0, 1, 1)
    for _ in range(300):
        uses.add(three)
    assert uses.of(three) == 255


@pytest.mark.parametrize(
    ("uses", "is_in_l3", "fill", "saved"),
    [(2, False, 0.0, True), (1, False, 0.0, False), (2, True, 0.0, False), (2, False, 0.5, False)],
)
def test_what_was_reused_and_is_nowhere_else_is_saved_while_there_is_room(
    uses: int, is_in_l3: bool, fill: float, saved: bool
) -> None:
    assert is_saved_before_eviction(uses=uses, is_in_l3=is_in_l3, queue_fill=fill) is saved


@pytest.mark.parametrize(
    ("promotion", "uses", "is_full", "kept"),
    [
        ("second_use", 1, False, True),
        ("second_use", 1, True, False),
        ("second_use", 2, True, True),
        ("always", 1, False, True),
        ("always", 1, True, True),
    ],
)
def test_a_full_l1_takes_what_l2_gave_before_or_everything(
    promotion: str, uses: int, is_full: bool, kept: bool
) -> None:
    assert is_promoted_to_l1(L1Promotion(promotion), uses=uses, is_l1_full=is_full) is kept
