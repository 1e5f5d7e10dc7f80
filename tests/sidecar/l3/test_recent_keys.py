"""Keys that were noted a short while ago, against a model that remembers when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import InvalidArgumentError
from kv_types.ids import PageKey
from sidecar.l3.recent_keys import RecentKeys

AGE_NS = 100
NOTES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=80)


def key(number: int) -> PageKey:
    return PageKey(number.to_bytes(32, "big"))


@given(notes=NOTES)
def test_a_key_is_known_for_half_the_time_and_never_for_longer_than_all_of_it(
    notes: list[tuple[int, int]],
) -> None:
    recent, noted, now_ns = RecentKeys(keys_max=1000, age_ns_max=AGE_NS), dict[int, int](), 1
    for passed_ns, number in notes:
        now_ns += passed_ns
        for other in range(10):
            age_ns = now_ns - noted.get(other, -AGE_NS)
            if age_ns < AGE_NS // 2:
                assert recent.has(key(other), now_ns=now_ns)
            if age_ns >= AGE_NS:
                assert not recent.has(key(other), now_ns=now_ns)
        recent.note([key(number)], now_ns=now_ns)
        noted[number] = now_ns


@given(count=st.integers(1, 500), keys_max=st.integers(2, 60))
def test_no_more_are_known_than_are_allowed_and_the_latest_are(count: int, keys_max: int) -> None:
    recent = RecentKeys(keys_max=keys_max, age_ns_max=AGE_NS)
    for number in range(count):
        recent.note([key(number)], now_ns=1)
        assert len(recent) <= keys_max
        assert all(recent.has(key(number - back), now_ns=1) for back in range(min(number + 1, keys_max // 2)))


@pytest.mark.parametrize(("keys_max", "age_ns_max"), [(1, 2), (2, 1)])
def test_bounds_that_are_none_are_refused(keys_max: int, age_ns_max: int) -> None:
    with pytest.raises(InvalidArgumentError, match="two or more"):
        RecentKeys(keys_max=keys_max, age_ns_max=age_ns_max)
