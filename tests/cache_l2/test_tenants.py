"""Tenants' shares in the store: namespaces count for their tenants, grants too, and settings that make no sense are refused."""

from __future__ import annotations

import pytest

from cache_l2.pins import Pin, PinnedChain
from cache_l2.store import ArenaConfig
from cache_l2.tenants import EVERYBODY_ELSE
from kv_types.clock import ManualClock
from kv_types.errors import ConfigError
from kv_types.namespace import Namespace
from kv_types.operator_limits import TENANT_SHARES_MAX
from kv_types.outcomes import STORED, PutStatus, Refused, RefuseReason
from tests.support.followed_store import FollowedStore
from tests.support.pages import chain, namespace_of, page_bytes_of, pages_of
from tests.support.stores import MIB, add, make_store

DONE = (PutStatus.STORED, RefuseReason.NONE)


def put(store: FollowedStore, space: Namespace, pages: int) -> list[object]:
    """Roots of their own, one a page."""
    outcomes: list[object] = []
    for _ in range(pages):
        keys = chain(1)
        outcomes += store.put(space.id, keys, pages_of(keys, page_bytes_of(space)), stamp=store.stamp())
    return outcomes


def test_a_namespace_counts_for_its_tenant() -> None:
    store = make_store(tenant_shares={"anna": 0.5, "bob": 0.25})
    anna, nobody = namespace_of(tenant="anna"), namespace_of(model="other")
    add(store, anna)
    add(store, nobody)
    assert put(store, anna, 8) == [STORED] * 8
    assert put(store, nobody, 4) == [STORED] * 4
    figures = store.tenants.figures()
    assert list(figures) == [EVERYBODY_ELSE, "anna", "bob"]
    assert (figures["anna"].share_bytes, figures["bob"].share_bytes) == (2 * MIB, MIB)
    page = figures["anna"].used_bytes // 8
    assert figures[EVERYBODY_ELSE].used_bytes == 4 * page


def test_a_scan_does_not_push_a_tenant_below_its_share() -> None:
    store = make_store(tenant_shares={"anna": 0.25})
    anna, hostile = namespace_of(tenant="anna"), namespace_of(tenant="hostile")
    add(store, anna)
    add(store, hostile)
    page = page_bytes_of(anna)
    pages = store.tenants.figures()["anna"].share_bytes // page
    put(store, anna, pages)
    put(store, hostile, 2 * 4 * MIB // page)
    figures = store.tenants.figures()
    assert figures["anna"].used_bytes == pages * page
    assert figures["anna"].evictions_suffered == 0
    assert figures[EVERYBODY_ELSE].evictions_own > 0
    store.check_invariants()


def test_where_shares_take_everything_others_are_refused() -> None:
    store = make_store(tenant_shares={"anna": 1.0})
    anna, hostile = namespace_of(tenant="anna"), namespace_of(tenant="hostile")
    add(store, anna)
    add(store, hostile)
    put(store, anna, 4 * MIB // page_bytes_of(anna))
    assert put(store, hostile, 1) == [Refused(RefuseReason.FULL)]


def test_slots_in_advance_count_for_the_tenant_of_the_put() -> None:
    store = make_store(tenant_shares={"anna": 0.5})
    record = add(store, namespace_of(tenant="anna"))
    row = store.open_client(1)
    store.offer_slots(row, record, [DONE])
    assert store.tenants.figures()["anna"].used_bytes == 4 * record.page_bytes


def test_a_number_that_another_namespace_gets_counts_for_that_ones_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cache_l2.namespaces.NAMESPACES_MAX", 2)
    store = make_store(tenant_shares={"anna": 0.5})
    first = add(store, namespace_of("first", tenant="anna"))
    add(store, namespace_of("second"))
    other = namespace_of("third")
    assert add(store, other).number == first.number
    put(store, other, 3)
    figures = store.tenants.figures()
    assert figures["anna"].used_bytes == 0
    assert figures[EVERYBODY_ELSE].used_bytes > 0


def test_without_shares_nothing_is_told() -> None:
    store = make_store()
    add(store, namespace_of(tenant="anna"))
    assert store.tenants.figures() == {}


def test_pins_of_a_store_end_by_its_clock() -> None:
    clock = ManualClock()
    store = make_store(clock, pin_quota=0.5)
    space = namespace_of()
    record = add(store, space)
    keys = chain(4)
    store.put(space.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    for _ in store.pins.pinning(Pin("p", (PinnedChain(space.id, b"".join(keys)),), clock.now_ns() + 10)):
        pass
    assert store.pins.figures()["held_pages"] == 4
    clock.advance(10)
    store.tick()
    assert (store.pins.figures()["held_pages"], store.pins.figures()["pins"]) == (0, 0)
    assert store.inspect(keys[-1]) is not None, "its pages stay until something needs their room"


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ({"a": 0.6, "b": 0.5}, "1 at most"),
        ({"": 0.5}, "without a tenant"),
        ({"a": -0.1}, "share of tenant 'a'"),
        ({"a": float("nan")}, "share of tenant 'a'"),
        ({f"t{number}": 0.01 for number in range(TENANT_SHARES_MAX + 1)}, "at most 32"),
    ],
    ids=["sum", "nobody", "negative", "nan", "many"],
)
def test_shares_that_make_no_sense_are_refused(shares: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ArenaConfig(arena_bytes=4 * MIB, tenant_shares=shares)
