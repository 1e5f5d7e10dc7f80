"""Numbers of namespaces are used again once nothing goes by them: any number of namespaces in one life, none mixed up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cache_l2.accounts import NamespaceCounts
from cache_l2.store import NamespaceRecord
from kv_types.errors import LimitExceededError, UnknownNamespaceError
from kv_types.ids import PageKey
from kv_types.limits import METRIC_NAMESPACES_MAX, NAMESPACES_MAX, NAMESPACES_PER_CLIENT_MAX
from kv_types.outcomes import STORED, Hit, Miss, MissReason, PutStatus, Tier
from tests.support.followed_store import FollowedStore
from tests.support.pages import chain, namespace_of, packed, page_of
from tests.support.stores import add, make_store

_names = itertools.count()


@pytest.fixture
def store() -> Iterator[FollowedStore]:
    made = make_store(client_rows=NAMESPACES_MAX // NAMESPACES_PER_CLIENT_MAX + 2)
    yield made
    made.check_invariants()
    made.close()


def new(store: FollowedStore, count: int = 1) -> list[NamespaceRecord]:
    """Namespaces that were never registered before."""
    return [add(store, namespace_of(f"weights-{next(_names)}")) for _ in range(count)]


def fill(store: FollowedStore) -> list[NamespaceRecord]:
    """Register namespaces until every number is taken."""
    return new(store, NAMESPACES_MAX - len(store.namespaces()))


def put(store: FollowedStore, record: NamespaceRecord, keys: list[PageKey]) -> None:
    sources = [memoryview(page_of(key, record.page_bytes)) for key in keys]
    assert store.put(record.id, keys, sources, stamp=store.stamp()) == [STORED] * len(keys)


def get(store: FollowedStore, record: NamespaceRecord, keys: list[PageKey]) -> object:
    into = [memoryview(bytearray(record.page_bytes)) for _ in keys]
    found = store.get(record.id, keys, into)
    if isinstance(found, Hit):
        assert [bytes(page) for page in into] == [bytes(page_of(key, record.page_bytes)) for key in keys]
    return found


def bind_own_rows_elsewhere(store: FollowedStore) -> None:
    """Let the sidecar's own row count for other namespaces than those of the test."""
    for record in new(store, NAMESPACES_PER_CLIENT_MAX):
        store.own_counter(record)


def test_any_number_of_namespaces_may_be_used_one_after_the_other(store: FollowedStore) -> None:
    rounds = 2 * NAMESPACES_MAX + 10
    for _ in range(rounds):
        (record,) = new(store)
        keys = chain(2)
        put(store, record, keys)
        assert get(store, record, keys) == Hit(2, Tier.L2), "reuse goes on"
    figures = store.statistics()
    assert (figures["namespaces"], figures["requested_pages"], figures["l2_pages"]) == (
        NAMESPACES_MAX,
        2 * rounds,
        2 * rounds,
    )
    assert figures["namespaces_recycled"] == rounds - NAMESPACES_MAX


def test_the_one_idle_for_longest_gives_its_number_up(store: FollowedStore) -> None:
    records = fill(store)
    store.namespace(records[0].id)  # looked up, so not idle any more
    (one,) = new(store)
    assert one.number == records[1].number
    with pytest.raises(UnknownNamespaceError, match="register it first"):
        store.namespace(records[1].id)
    assert store.namespace_of_number(one.number) is one
    assert store.namespaces() == [records[0], *records[2:], one], "in the order of registration"
    again = add(store, records[1].namespace)
    assert again.number == records[2].number
    assert again.serial > one.serial > records[-1].serial


def test_pages_in_any_state_keep_their_number_from_being_used(store: FollowedStore) -> None:
    resident, reserved, leased, late = new(store, 4)
    put(store, resident, chain(1))
    row = store.open_client(1)
    for record in (reserved, late):
        (place,) = store.reserve(row, record, None, packed(chain(1)))
        assert place[0] == PutStatus.STORED
    keys = chain(1)
    put(store, leased, keys)
    lease = store.lease(leased.id, keys)
    assert store.hide_pages(keys) == 1
    store.orphan_client(row)  # its writer may still write: the reservations are quarantined
    bind_own_rows_elsewhere(store)
    for _ in range(NAMESPACES_MAX + 50):
        new(store)
    held = {record.id for record in store.namespaces()}
    assert {one.id for one in (resident, reserved, leased, late)} <= held
    assert store.statistics()["evictions_capacity"] == 0, "whoever has no pages goes first"
    lease.release()
    store.tick()
    store.end_client(row)
    for _ in range(NAMESPACES_MAX):
        new(store)
    held = {record.id for record in store.namespaces()}
    assert held.isdisjoint({one.id for one in (reserved, leased, late)})
    assert resident.id in held


def test_where_all_have_pages_those_of_the_one_idle_for_longest_go(store: FollowedStore) -> None:
    records, chains = [], []
    while len(store.namespaces()) < 8:
        records += new(store)
        chains.append(chain(2))
        put(store, records[-1], chains[-1])
    row = store.open_client(1)
    store.bind_namespace(row, records[0])  # a client has it
    bind_own_rows_elsewhere(store)
    rows = [store.open_client(pid) for pid in range(2, 2 + NAMESPACES_MAX // NAMESPACES_PER_CLIENT_MAX)]
    for index, record in enumerate(
        record for record in store.namespaces() + fill(store) if record not in records
    ):
        store.bind_namespace(rows[index // NAMESPACES_PER_CLIENT_MAX], record)
    new(store)
    held = {record.id for record in store.namespaces()}
    assert [record.id in held for record in records] == [True, False, *[True] * 6]
    assert store.inspect(chains[1][1]) is None
    assert [store.inspect(keys[1]) is not None for keys in chains] == [True, False, *[True] * 6]
    assert store.statistics()["evictions_capacity"] == 2


def test_where_clients_bind_all_the_next_one_is_refused_until_one_lets_go(store: FollowedStore) -> None:
    records = fill(store)
    rows = [store.open_client(pid) for pid in range(1, 1 + NAMESPACES_MAX // NAMESPACES_PER_CLIENT_MAX)]
    for index, record in enumerate(records):
        store.bind_namespace(rows[index // NAMESPACES_PER_CLIENT_MAX], record)
    with pytest.raises(LimitExceededError, match=f"all {NAMESPACES_MAX} .*forget"):
        new(store)
    assert store.namespaces() == records, "nothing has changed"
    store.unbind_namespace(rows[0], records[3])
    (one,) = new(store)
    assert one.number == records[3].number
    store.bind_namespace(rows[0], one)
    with pytest.raises(LimitExceededError):
        new(store)
    store.end_client(rows[1])
    assert [record.number for record in new(store, 2)] == [record.number for record in records[32:34]]


def test_i7_what_recycled_namespaces_counted_stays_in_the_sums(store: FollowedStore) -> None:
    records = fill(store)
    late = records[METRIC_NAMESPACES_MAX + 5]
    for record in (records[0], late):
        row = store.open_client(1)
        store.bind_namespace(row, record)
        assert get(store, record, chain(3)) == Miss(MissReason.ABSENT)
        store.count_written(record.id, 7)
        store.end_client(row)
    bind_own_rows_elsewhere(store)
    new(store, NAMESPACES_MAX)
    assert {records[0].id, late.id}.isdisjoint(record.id for record in store.namespaces())
    expected = NamespaceCounts(
        requested=3, missed=tuple(3 if reason is MissReason.ABSENT else 0 for reason in MissReason),
        bytes_written=7, look_ups=1,
    )  # fmt: skip
    assert store.namespace_counts()[records[0].id] == expected, "one of the first keeps its own"
    assert late.id not in store.namespace_counts()
    assert store.recycled_counts() == expected
    assert store.statistics()["requested_pages"] == 6
    store.count_written(late.id, 1)  # a put that ended after its namespace
    assert store.recycled_counts().bytes_written == 8
    assert len(store.namespace_counts()) <= NAMESPACES_MAX + METRIC_NAMESPACES_MAX
    again = add(store, late.namespace)
    assert store.namespace_counts().get(again.id, NamespaceCounts()) == NamespaceCounts()
