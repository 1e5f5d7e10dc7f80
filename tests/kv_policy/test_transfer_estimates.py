"""Estimates of latency, bandwidth and prefill speed: found in noise, one outlier passed over, changes followed, age told."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_policy.transfer_estimates import HALF_LIFE_S, PrefillEstimate, TransferEstimate
from kv_types.errors import InvalidArgumentError

SIZES = (65_536, 1 << 20, 16 << 20, 64 << 20)


def fed(
    estimate: TransferEstimate, latency_s: float, bytes_per_s: float, *, times: int = 10, noise: float = 0.0
) -> None:
    draw = random.Random(7)
    for _ in range(times):
        for size in SIZES:
            seconds = (latency_s + size / bytes_per_s) * math.exp(draw.gauss(0.0, noise))
            estimate.observe(size, seconds, now_s=0.0)


@settings(deadline=None)
@given(st.floats(1e-5, 0.05), st.floats(1e7, 1e10))
def test_a_line_is_found(latency_s: float, bytes_per_s: float) -> None:
    estimate = TransferEstimate()
    fed(estimate, latency_s, bytes_per_s)
    for size in SIZES:
        assert estimate.seconds(size) == pytest.approx(latency_s + size / bytes_per_s, rel=0.2)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 1 << 36), st.floats(1e-9, 1e4), st.floats(0, 1e6)), min_size=1, max_size=30
    )
)
def test_whatever_is_measured_estimates_are_times(measured: list[tuple[int, float, float]]) -> None:
    estimate = TransferEstimate()
    for size, seconds, now_s in measured:
        estimate.observe(size, seconds, now_s=now_s)
        estimate.observe_at_least(size, seconds, now_s=now_s)
    assert 0.0 <= estimate.latency_s < math.inf
    assert 0.0 < estimate.bytes_per_s < math.inf
    assert 0.0 <= estimate.seconds(1) <= estimate.seconds(1 << 40) < math.inf
    assert estimate.seconds_at_best(1 << 40) <= estimate.seconds(1 << 40)
    assert all(math.isfinite(value) for value in estimate.statistics(1e6).values())


def test_it_is_found_in_noise_and_says_how_sure_it_is() -> None:
    estimate = TransferEstimate()
    assert not estimate.is_known
    fed(estimate, 0.002, 1e9, noise=0.2)
    assert estimate.seconds(16 << 20) == pytest.approx(0.0188, rel=0.25)
    assert 1.05 < estimate.error_factor < 1.4
    assert estimate.sureness(0.0) > 8.0
    assert estimate.sureness(HALF_LIFE_S) == pytest.approx(estimate.sureness(0.0) / 2)
    assert estimate.is_known


def test_one_transfer_that_was_held_up_changes_little_and_two_are_a_change() -> None:
    estimate = TransferEstimate()
    fed(estimate, 0.001, 1e9)
    usual_s = estimate.seconds(1 << 20)
    estimate.observe(1 << 20, 100 * usual_s, now_s=0.0)
    assert estimate.seconds(1 << 20) < 1.5 * usual_s
    estimate.observe(1 << 20, 100 * usual_s, now_s=0.0)
    assert estimate.seconds(1 << 20) > 10 * usual_s


def test_a_tier_that_has_become_fast_is_believed_at_once() -> None:
    estimate = TransferEstimate()
    fed(estimate, 0.001, 1e7)
    estimate.observe(16 << 20, 0.017, now_s=0.0)
    assert estimate.seconds(16 << 20) < 0.17


def test_what_has_not_come_counts_only_where_it_was_expected() -> None:
    estimate = TransferEstimate()
    fed(estimate, 0.001, 1e9)
    before = estimate.statistics(0.0)
    estimate.observe_at_least(64 << 20, 0.01, now_s=0.0)
    assert estimate.statistics(0.0) == before
    for _ in range(3):
        estimate.observe_at_least(1 << 20, 5.0, now_s=0.0)
    assert estimate.seconds(1 << 20) > 1.0


def test_sizes_that_are_alike_leave_open_what_is_latency() -> None:
    estimate = TransferEstimate()
    for _ in range(3):
        estimate.observe(1 << 20, 0.02, now_s=0.0)
    assert estimate.seconds_at_best(64 << 20) == pytest.approx(0.02, rel=0.2)
    assert estimate.seconds(64 << 20) > 0.1
    estimate.observe(4 << 20, 0.02, now_s=0.0)
    assert estimate.seconds_at_best(64 << 20) == estimate.seconds(64 << 20)


@settings(deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(0.0, 1 / 4096))
def test_prefill_is_dense_layers_and_attention(token_s: float, attention: float) -> None:
    """From nothing of attention to as much as all else at position 4096."""
    position_s = attention * token_s
    estimate = PrefillEstimate()
    assert not estimate.is_known

    def takes_s(tokens: int, start: int) -> float:
        return tokens * (token_s + position_s * (start + (tokens - 1) / 2))

    for tokens, start in ((512, 0), (4096, 0), (512, 16_384), (2048, 65_536)) * 6:
        estimate.observe(tokens, start=start, seconds=takes_s(tokens, start), now_s=0.0)
    for tokens, start in ((64, 0), (1024, 8192), (1024, 60_000)):
        assert estimate.seconds(tokens, start=start) == pytest.approx(takes_s(tokens, start), rel=0.15)


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_what_is_no_measurement_is_refused(size: int, seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="measurement"):
        TransferEstimate().observe(size, seconds, now_s=0.0)
    with pytest.raises(InvalidArgumentError, match="measurement"):
        TransferEstimate().observe_at_least(size, seconds, now_s=0.0)
    with pytest.raises(InvalidArgumentError, match="measurement"):
        PrefillEstimate().observe(size, start=0, seconds=seconds, now_s=0.0)


def test_a_negative_position_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        PrefillEstimate().observe(1, start=-1, seconds=1.0, now_s=0.0)


def test_one_token_is_measured_where_only_attention_seemed_to_take_time() -> None:
    estimate = PrefillEstimate()
    for start, seconds in ((1000, 0.001), (10_000, 0.1), (100_000, 2.0)) * 2:
        estimate.observe(1000, start=start, seconds=seconds, now_s=0.0)
    assert estimate.seconds(1, start=0) == 0.0, "no time at all is expected of a first token"
    estimate.observe(1, start=0, seconds=1e-3, now_s=0.0)
    assert math.isfinite(estimate.seconds(1000, start=0))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 1 << 22), st.integers(0, 1 << 30), st.floats(1e-12, 1e9), st.floats(0.0, 1e9)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_is_measured_the_estimates_stay_numbers(
    measured: list[tuple[int, int, float, float]],
) -> None:
    computing, loading, now_s = PrefillEstimate(), TransferEstimate(), 0.0
    for amount, start, seconds, later_s in measured:
        now_s += later_s
        computing.observe(amount, start=start, seconds=seconds, now_s=now_s)
        loading.observe(amount, seconds, now_s=now_s)
        assert 0.0 <= computing.seconds(64, start=start) < math.inf
        assert 0.0 < loading.seconds(amount) < math.inf
        assert 1.0 <= loading.error_factor < math.inf


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-300, 1e300, math.inf, math.nan], ids=repr)
def test_what_no_clock_measures_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="a measurement"):
        PrefillEstimate().observe(64, start=0, seconds=seconds, now_s=0.0)
    with pytest.raises(InvalidArgumentError, match="a measurement"):
        TransferEstimate().observe(64, seconds, now_s=0.0)
