"""What a worker says of its speed: told, measured, or nothing; and what that makes of pages."""

from __future__ import annotations

from typing import Any

import pytest

from inference_worker.client import ClientSettings
from inference_worker.prefill_speed import PrefillSpeed
from kv_types.errors import InvalidArgumentError
from kv_types.limits import COMPUTE_PAGE_S_MAX


def test_nothing_is_said_before_anything_is_known() -> None:
    speed = PrefillSpeed()
    assert speed.cost(64, 0) is None
    assert speed.tokens_per_s() == 0.0


def test_a_speed_that_was_told_holds_whatever_is_measured() -> None:
    speed = PrefillSpeed(1000.0)
    speed.observe(1000, start=0, seconds=100.0)
    cost = speed.cost(64, 7)
    assert cost is not None
    assert (cost.first_s, cost.growth_s, speed.tokens_per_s()) == (0.064, 0.0, 1000.0)


def test_a_measured_speed_grows_with_the_position() -> None:
    speed = PrefillSpeed()

    def takes_s(tokens: int, start: int) -> float:
        return tokens * (1e-4 + 1e-8 * (start + (tokens - 1) / 2))

    for tokens, start in ((2048, 0), (4096, 0), (2048, 30_000)) * 5:
        speed.observe(tokens, start=start, seconds=takes_s(tokens, start))
    for first in (0, 100):
        cost = speed.cost(64, first)
        assert cost is not None
        assert cost.seconds(200) == pytest.approx(takes_s(200 * 64, first * 64), rel=0.1)
    assert speed.tokens_per_s() == pytest.approx(1000 / takes_s(1000, 0), rel=0.1)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "1"], ids=repr)
def test_a_speed_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prefill_tokens_per_s"):
        ClientSettings(prefill_tokens_per_s=value)


@pytest.mark.parametrize("told", [5e-324, 1e-9, 1e18, 1.7e308], ids=repr)
def test_an_absurd_speed_costs_no_look_up_an_error(told: float) -> None:
    speed = PrefillSpeed(told)
    for page_tokens in (1, 4096):
        cost = speed.cost(page_tokens, 65_535)
        assert cost is None or 0.0 < cost.first_s <= COMPUTE_PAGE_S_MAX
    measured = PrefillSpeed()
    measured.observe(1, start=0, seconds=min(1e9, max(1e-12, 1 / told)))
    cost = measured.cost(4096, 65_535)
    assert cost is None or 0.0 < cost.first_s <= COMPUTE_PAGE_S_MAX
