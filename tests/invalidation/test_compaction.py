"""Compaction: bounded for ever, nothing that a record selected ever slips through, and no floor higher than it must be."""

from __future__ import annotations

import random
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from invalidation.compaction import CompactionLimits, Kept, floors_of, keep, loading, scope_of
from kv_types.ids import NamespaceId
from kv_types.limits import LOG_SCOPES_MAX, LOG_TOMBSTONES_MAX, LOG_TOMBSTONES_PER_SCOPE_MAX
from kv_types.selectors import EVERYTHING, Selector
from tests.conformance.log_harness import selected, some_selector
from tests.kv_types.selector_samples import FEW_SELECTORS, SPACES
from tests.support.turns import finish

LIMITS = st.builds(
    CompactionLimits,
    tombstones_per_scope=st.integers(1, 6),
    tombstones=st.integers(1, 10),
    scopes=st.integers(1, 4),
)


def _kept(selectors: list[Selector], limits: CompactionLimits) -> Kept:
    kept = Kept(limits=limits)
    for revision, selector in enumerate(selectors, start=1):
        keep(kept, selector, revision)
    return kept


def _level(kept: Kept, selector: Selector) -> int:
    """Stamps below this are refused for what a selector selects."""
    scope = scope_of(selector)
    floor = max(kept.floor, 0 if scope is None else kept.floors.get(scope, 0))
    return max(floor, kept.tombstones.get(selector, 0))


@given(selectors=st.lists(FEW_SELECTORS, max_size=60), limits=LIMITS)
def test_it_stays_within_bounds_and_forgets_nothing(
    selectors: list[Selector], limits: CompactionLimits
) -> None:
    kept = Kept(limits=limits)
    newest: dict[Selector, int] = {}
    for revision, selector in enumerate(selectors, start=1):
        before = dict(kept.tombstones)
        dropped = keep(kept, selector, revision)
        newest[selector] = revision
        if not selector.is_everything and selector != Selector(namespace=selector.namespace):
            assert set(dropped) == {*before, selector} - set(kept.tombstones), "it says what it dropped"
        assert len(kept.tombstones) <= limits.tombstones
        assert len(kept.floors) <= limits.scopes
        for scope in {scope_of(each) for each in kept.tombstones}:
            count = sum(scope_of(each) == scope for each in kept.tombstones)
            assert count <= limits.tombstones_per_scope
        for each, at in newest.items():
            assert _level(kept, each) >= at, "a page that this record selects would be served again"
        assert list(kept.tombstones.values()) == sorted(kept.tombstones.values())


@given(selectors=st.lists(FEW_SELECTORS, max_size=60), limits=LIMITS)
def test_a_floor_is_the_revision_of_a_record_that_fell_under_it(
    selectors: list[Selector], limits: CompactionLimits
) -> None:
    """More good pages than those of a dropped tombstone's scope, or newer ones, are never refused."""
    kept = _kept(selectors, limits)
    for scope, floor in floors_of(kept).items():
        selector = selectors[floor - 1]
        if scope is not None:
            assert selector.namespace == scope
        elif selector.namespace is not None:
            assert len(selectors) > limits.scopes, (
                "only too many scopes make one namespace's floor everybody's"
            )


def test_within_the_limits_nothing_is_raised() -> None:
    draw = random.Random(1)
    selectors = [each for each in (some_selector(draw) for _ in range(500)) if not each.is_everything]
    kept = _kept(selectors, CompactionLimits())
    spaces = {each.namespace for each in selectors if each == Selector(namespace=each.namespace)} - {None}
    assert kept.floor == 0
    assert set(kept.floors) == spaces
    newest = {selector: revision for revision, selector in enumerate(selectors, start=1)}
    assert kept.tombstones == {
        each: at
        for each, at in newest.items()
        if each.namespace is None or each != Selector(namespace=each.namespace)
    }


def test_the_older_half_of_one_scope_becomes_its_floor() -> None:
    limits = CompactionLimits(tombstones_per_scope=4, tombstones=100, scopes=9)
    space, other = SPACES[0].id, SPACES[1].id
    selectors = [Selector(namespace=other, tag=b"0")]
    selectors += [Selector(namespace=space, tag=b"%d" % number) for number in range(5)]
    kept = _kept(selectors, limits)
    assert kept.floors == {space: 4}
    assert kept.floor == 0
    assert kept.tombstones == {selectors[0]: 1, selectors[4]: 5, selectors[5]: 6}


def test_a_selector_repeated_is_no_more_than_one() -> None:
    limits = CompactionLimits(tombstones_per_scope=2, tombstones=2, scopes=2)
    again, other = selected(1).selector, selected(2).selector
    kept = _kept([again, other, *[again] * 20], limits)
    assert (kept.tombstones, kept.floor) == ({other: 2, again: 22}, 0)


def test_everything_needs_no_room() -> None:
    kept = _kept([selected(1).selector, Selector(namespace=SPACES[0].id), EVERYTHING], CompactionLimits())
    assert astuple(kept)[1:] == (3, {}, {}, {})


def test_too_many_floors_become_one_of_everything() -> None:
    limits = CompactionLimits(tombstones_per_scope=2, tombstones=2, scopes=4)
    spaces = [NamespaceId(bytes([number]) * 32) for number in range(5)]
    kept = _kept([Selector(namespace=each) for each in spaces], limits)
    assert (kept.floor, kept.floors) == (3, {spaces[3]: 4, spaces[4]: 5})


@given(selectors=st.lists(FEW_SELECTORS, max_size=60), limits=LIMITS)
def test_who_loads_it_holds_the_same(selectors: list[Selector], limits: CompactionLimits) -> None:
    kept = _kept(selectors, limits)
    assert finish(loading(floors_of(kept), kept.tombstones, limits=limits)) == kept


@given(selectors=st.lists(FEW_SELECTORS, max_size=60), wide=LIMITS, narrow=LIMITS)
def test_who_loads_more_than_it_may_keep_drops_by_the_rule(
    selectors: list[Selector], wide: CompactionLimits, narrow: CompactionLimits
) -> None:
    kept = _kept(selectors, wide)
    loaded = finish(loading(floors_of(kept), kept.tombstones, limits=narrow))
    assert len(loaded.tombstones) <= narrow.tombstones
    assert len(loaded.floors) <= narrow.scopes
    for selector in selectors:
        assert _level(loaded, selector) >= _level(kept, selector)


def test_a_tombstone_of_everything_that_another_version_left_lowers_no_floor() -> None:
    space = SPACES[0].id
    loaded = finish(
        loading({None: 2, space: 9}, {EVERYTHING: 5, selected(1).selector: 4, selected(2).selector: 7})
    )
    assert (loaded.floor, loaded.floors) == (5, {space: 9})
    assert _level(loaded, selected(2).selector) == 7


def test_the_products_limits_are_those_of_the_log() -> None:
    assert astuple(CompactionLimits()) == (LOG_TOMBSTONES_PER_SCOPE_MAX, LOG_TOMBSTONES_MAX, LOG_SCOPES_MAX)


@pytest.mark.parametrize("count", [LOG_TOMBSTONES_PER_SCOPE_MAX, LOG_TOMBSTONES_PER_SCOPE_MAX + 1])
def test_a_storm_of_keys_costs_the_older_half_at_most(count: int) -> None:
    space = SPACES[0].id
    kept = _kept(
        [Selector(namespace=space, tag=b"%d" % number) for number in range(count)], CompactionLimits()
    )
    half = LOG_TOMBSTONES_PER_SCOPE_MAX // 2
    assert kept.floors == ({} if count == LOG_TOMBSTONES_PER_SCOPE_MAX else {space: count - half})
