"""The policy that moves segments between size classes: what it must do whatever it is told, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_l2._native import Donor, SegmentPolicy

SLOTS = 16
SEGMENTS = 64
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class Sample:
    """What a donor is told by."""

    size_class: int = 1
    slots: int = SLOTS * 32
    free_slots: int = 0
    ages_ns: tuple[int, ...] = (100 * SECOND_NS,) * 64
    warm: int = 0
    fresh: int = 0
    busy: int = 0
    elsewhere: float = 0.0

    def donor(self, scale: int = 1) -> Donor:
        """For the policy, all times multiplied."""
        return Donor(
            size_class=self.size_class, slots_per_segment=SLOTS, slots=self.slots, free_slots=self.free_slots,
            ages_ns=[age * scale for age in self.ages_ns], sampled=min(16, len(self.ages_ns) or 1), warm=self.warm,
            fresh=self.fresh, busy=self.busy, elsewhere=self.elsewhere,
        )  # fmt: skip


SAMPLES = st.builds(
    Sample,
    slots=st.integers(SLOTS, SLOTS * SEGMENTS),
    free_slots=st.integers(0, SLOTS - 1),
    ages_ns=st.lists(st.integers(1, 1000 * SECOND_NS), min_size=16, max_size=64).map(tuple),
    warm=st.integers(0, 16),
    elsewhere=st.floats(0, 64),
)


def under_demand(*, returned: int, evicted: int = 64, distance: int = 0, scale: int = 1) -> SegmentPolicy:
    """Class 0 stored a turnover's worth in 1024 s, evicted pages, and some of them came back."""
    policy = SegmentPolicy(segments=SEGMENTS)
    for number in range(SLOTS * SEGMENTS):
        policy.took(slots_per_segment=SLOTS, now_ns=(1 + number) * SECOND_NS * scale)
    for _ in range(evicted):
        policy.evicted(0, slots_per_segment=SLOTS)
    for _ in range(returned):
        policy.returned(0, slots_per_segment=SLOTS, distance=distance)
    return policy


def choice(policy: SegmentPolicy, *samples: Sample, own_age_ns: int = 2**60, scale: int = 1) -> int | None:
    """Which donor class 0 takes a segment of."""
    donors = [sample.donor(scale) for sample in samples]
    return policy.choose(0, slots_per_segment=SLOTS, own_age_ns=own_age_ns, donors=donors)


def test_the_window_is_the_time_of_a_quarter_of_the_arena() -> None:
    policy = under_demand(returned=0)
    assert policy.window_ns == pytest.approx(SLOTS * SEGMENTS // 4 * SECOND_NS, rel=0.1)


def test_who_gets_back_what_it_evicts_takes_what_nobody_uses() -> None:
    assert choice(under_demand(returned=16), Sample(ages_ns=(2000 * SECOND_NS,) * 64)) == 0


def test_who_never_asks_again_takes_nothing_that_is_used() -> None:
    used = Sample(ages_ns=tuple(range(SECOND_NS, 65 * SECOND_NS, SECOND_NS)), warm=16)
    assert choice(under_demand(returned=0), used) is None
    assert choice(under_demand(returned=0), used, own_age_ns=0) is None


def test_what_a_class_no_longer_uses_goes_to_whoever_would_evict_younger_pages() -> None:
    dead = Sample(ages_ns=(2000 * SECOND_NS,) * 64)
    assert choice(under_demand(returned=0), dead, own_age_ns=1000 * SECOND_NS) == 0
    assert choice(under_demand(returned=0), dead, own_age_ns=3000 * SECOND_NS) is None


def test_the_donor_that_loses_least_gives() -> None:
    policy = under_demand(returned=40)
    some_use = Sample(size_class=1, ages_ns=tuple(SECOND_NS * (10 + 20 * i) for i in range(64)))
    none = Sample(size_class=2, ages_ns=(5000 * SECOND_NS,) * 64)
    assert choice(policy, some_use, none) == 1
    assert choice(policy, none, some_use) == 0


def test_free_slots_are_no_loss() -> None:
    busy_class = Sample(ages_ns=tuple(SECOND_NS * (1 + i) for i in range(64)))
    policy = under_demand(returned=8)
    assert choice(policy, busy_class) is None
    assert choice(policy, replace(busy_class, free_slots=SLOTS)) == 0


def test_what_would_have_taken_much_more_memory_is_no_reason_for_a_little() -> None:
    near, far = under_demand(returned=16, distance=0), under_demand(returned=16, distance=SLOTS * 40)
    assert near.gain(0) > 30 * far.gain(0) > 0


def test_a_class_asks_again_at_once_only_after_it_got_something() -> None:
    policy = SegmentPolicy(segments=SEGMENTS)
    assert not policy.asks(0, slots_per_segment=SLOTS)
    for _ in range(SLOTS // 4):
        policy.evicted(0, slots_per_segment=SLOTS)
    assert policy.asks(0, slots_per_segment=SLOTS)
    policy.answered(0, got=False)
    assert not policy.asks(0, slots_per_segment=SLOTS)
    policy.answered(0, got=True)
    assert policy.asks(0, slots_per_segment=SLOTS)


def test_demand_fades_with_what_the_arena_takes_in() -> None:
    policy = under_demand(returned=16)
    before = policy.gain(0)
    for number in range(SLOTS * SEGMENTS):
        policy.took(slots_per_segment=SLOTS, now_ns=(2000 + number) * SECOND_NS)
    assert 0 < policy.gain(0) < before / 20


def test_in_need_what_is_held_goes_last() -> None:
    policy = under_demand(returned=0)
    hot = Sample(size_class=1, ages_ns=(SECOND_NS,) * 64, warm=16)
    held = Sample(size_class=2, ages_ns=(9000 * SECOND_NS,) * 64, busy=1)
    assert policy.choose_in_need([held.donor(), hot.donor()]) == 1
    assert policy.choose_in_need([held.donor()]) == 0
    assert policy.choose_in_need([]) is None


@given(samples=st.lists(SAMPLES, max_size=4), returned=st.integers(0, 64), own_age_ns=st.integers(0, 2**50))
def test_a_held_segment_is_never_chosen(samples: list[Sample], returned: int, own_age_ns: int) -> None:
    held = [replace(sample, busy=1) for sample in samples]
    assert choice(under_demand(returned=returned), *held, own_age_ns=own_age_ns) is None


@given(samples=st.lists(SAMPLES, min_size=1, max_size=4), returned=st.integers(0, 64))
def test_only_the_proportions_of_times_decide(samples: list[Sample], returned: int) -> None:
    slow = choice(under_demand(returned=returned, scale=1024), *samples, scale=1024)
    assert choice(under_demand(returned=returned), *samples) == slow


@given(sample=SAMPLES, returned=st.integers(0, 63), more=st.integers(1, 64))
def test_more_demand_never_takes_less(sample: Sample, returned: int, more: int) -> None:
    if choice(under_demand(returned=returned), sample, own_age_ns=0) is None:
        return
    assert choice(under_demand(returned=returned + more), sample, own_age_ns=0) == 0


@given(sample=SAMPLES, returned=st.integers(0, 64), warm=st.integers(0, 16))
def test_more_use_never_gives_more(sample: Sample, returned: int, warm: int) -> None:
    policy = under_demand(returned=returned)
    if choice(policy, sample) is not None:
        return
    warmer = replace(sample, warm=min(16, sample.warm + warm))
    younger = replace(sample, ages_ns=tuple(max(1, age // 2) for age in sample.ages_ns))
    assert choice(policy, warmer) is None
    assert choice(policy, younger) is None


@pytest.mark.parametrize("wrong", [{"size_class": 192}, {"slots_per_segment": 0}, {"ages_ns": [1] * 513}])
def test_wrong_arguments_are_named(wrong: dict[str, object]) -> None:
    given_ = {"size_class": 0, "slots_per_segment": 1, "slots": 1, "ages_ns": [1], "sampled": 1} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Donor(**given_)  # type: ignore[arg-type]
