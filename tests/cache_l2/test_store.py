"""ArenaStore in one process: the conformance suite, a model beside it, validity of puts in flight, bounds and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cache_l2.store import ArenaStore, NamespaceRecord
from kv_types.clock import BoottimeClock, ManualClock
from kv_types.errors import (
    ArenaTooLargeError,
    ConfigError,
    InvalidArgumentError,
    LimitExceededError,
    UnknownNamespaceError,
)
from kv_types.events import LogStarted, Selected, decode_event
from kv_types.ids import NamespaceId, PageKey, Stamp, log_incarnation
from kv_types.limits import BATCH_PAGES_MAX, NAMESPACES_PER_CLIENT_MAX, RESERVATIONS_PER_CLIENT_MAX
from kv_types.outcomes import (
    KNOWN,
    STORED,
    Hit,
    Miss,
    MissReason,
    PutStatus,
    Refused,
    RefuseReason,
    Tier,
)
from kv_types.selectors import EVERYTHING, Selector
from tests.conformance.harness import StoreHarness
from tests.conformance.page_store import PageStoreConformance
from tests.support.followed_store import FollowedStore
from tests.support.pages import (
    buffers,
    chain,
    foreign_namespace,
    namespace_of,
    packed,
    page_of,
    pages_of,
)
from tests.support.stores import MIB, SECOND_NS, add, make_store


@pytest.fixture
def store() -> Iterator[FollowedStore]:
    made = make_store()
    yield made
    made.check_invariants()
    made.close()


@pytest.fixture
def record(store: ArenaStore) -> NamespaceRecord:
    return add(store, namespace_of())


class TestArenaStoreConformance(PageStoreConformance):
    @pytest.fixture
    def harness(self) -> Iterator[StoreHarness]:
        made = make_store(arena_bytes=32 * MIB, pages_max=8192)

        def hide(_: NamespaceId, key: PageKey) -> None:
            made.hide_pages([key])
            made.check_invariants()

        yield StoreHarness(
            made,
            lambda namespace: add(made, namespace).id,
            hide=hide,
        )
        made.check_invariants()
        made.close()


# --- storing and reading ---


def test_a_put_of_more_than_a_batch_keeps_its_order_and_bytes() -> None:
    store = make_store(arena_bytes=16 * MIB, leases_per_client=4096)
    record = add(store, namespace_of())
    keys = chain(BATCH_PAGES_MAX + 300)
    assert store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp()) == [
        STORED
    ] * len(keys)
    destinations = buffers(len(keys), record.page_bytes)
    assert store.get(record.id, keys, destinations) == Hit(len(keys), Tier.L2)
    assert all(
        bytes(page) == page_of(key, record.page_bytes) for key, page in zip(keys, destinations, strict=True)
    )
    store.check_invariants()
    store.close()


def test_c32_a_put_larger_than_the_store_keeps_its_head_and_says_full(
    store: ArenaStore, record: NamespaceRecord
) -> None:
    keys = chain(1500)
    outcomes = store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    stored = outcomes.index(Refused(RefuseReason.FULL))
    assert stored > 100
    assert outcomes[:stored] == [STORED] * stored
    assert all(isinstance(outcome, Refused) for outcome in outcomes[stored:])
    assert store.look_up(record.id, keys) == Hit(stored, Tier.L2, MissReason.ABSENT)


def test_a_lease_counts_as_a_look_up_and_gives_its_pages_back(
    store: ArenaStore, record: NamespaceRecord
) -> None:
    keys = chain(4)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    with store.lease(record.id, [*keys, *chain(1)], start=1) as lease:
        assert [bytes(page) for page in lease] == [page_of(key, record.page_bytes) for key in keys[1:]]
        assert store.statistics()["leases"] == 3
        assert store.statistics()["leased_bytes"] > 0
    assert store.statistics()["leases"] == 0
    counts = store.namespace_counts()[record.id]
    assert (counts.requested, counts.l1, counts.l2) == (5, 1, 3)
    assert counts.missed_by_reason() == {MissReason.ABSENT: 1}


def test_the_sidecars_own_row_serves_more_namespaces_than_a_row_has_counters(store: ArenaStore) -> None:
    records = [add(store, namespace_of(f"m{number}")) for number in range(NAMESPACES_PER_CLIENT_MAX + 8)]
    for _ in range(2):
        for record in records:
            store.get(record.id, chain(3), buffers(3, record.page_bytes))
    counts = store.namespace_counts()
    assert {counts[record.id].requested for record in records} == {6}
    assert all(counts[record.id].is_balanced for record in records)


@pytest.mark.parametrize("start", [-1, 3])
def test_a_start_outside_the_chain_is_refused(store: ArenaStore, record: NamespaceRecord, start: int) -> None:
    with pytest.raises(InvalidArgumentError, match="start"):
        store.lease(record.id, chain(2), start=start)


def test_batches_beyond_the_limit_are_refused(store: ArenaStore, record: NamespaceRecord) -> None:
    with pytest.raises(LimitExceededError, match="split"):
        store.reserve(store.own_row, record, None, packed(chain(BATCH_PAGES_MAX + 1)))
    with pytest.raises(LimitExceededError, match="split"):
        store.commit(store.own_row, list(range(BATCH_PAGES_MAX + 1)), stamp=store.stamp())
    with pytest.raises(InvalidArgumentError, match="32"):
        store.reserve(store.own_row, record, None, bytes(33))
    with pytest.raises(InvalidArgumentError, match="time to live"):
        store.reserve(store.own_row, record, None, packed(chain(1)), -1)


def test_a_page_larger_than_a_segment_is_refused_as_too_large(store: ArenaStore) -> None:
    record = add(store, namespace_of(units=64))
    keys = chain(1)
    outcomes = store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    assert outcomes == [Refused(RefuseReason.TOO_LARGE)]


# --- validity ---


def reserved(
    store: ArenaStore, record: NamespaceRecord, parent: PageKey | None, keys: list[PageKey]
) -> list[int]:
    rows = store.reserve(store.own_row, record, parent, packed(keys))
    assert {status for status, *_ in rows} == {PutStatus.STORED}
    return [reservation for _, _, reservation, _ in rows]


@pytest.mark.parametrize("hide", ["all", "namespace", "page", "ancestor"])
def test_c36_a_put_in_flight_is_refused_when_what_it_is_for_was_hidden(
    store: FollowedStore, record: NamespaceRecord, hide: str
) -> None:
    keys = chain(4)
    store.put(record.id, keys[:2], pages_of(keys[:2], record.page_bytes), stamp=store.stamp())
    stamp = store.stamp()
    ids = reserved(store, record, keys[1], keys[2:])
    match hide:
        case "all":
            store.hide_all()
        case "namespace":
            store.hide_namespace(record.id)
        case "page":
            store.hide_pages([keys[2]])
        case _:
            store.hide_pages([keys[0]])
    outcomes = store.commit(store.own_row, ids, stamp=stamp)
    assert all(status == PutStatus.REFUSED for status, _ in outcomes), "BrokeInFlight"
    assert outcomes[0][1] in (RefuseReason.INVALIDATED, RefuseReason.PARENT_ABSENT)
    assert store.statistics()["entries_reserved"] == 0
    resident = {"page": 2}.get(hide, 0)
    assert store.reader.match(packed(keys), namespace=record.number)[0] == resident
    assert store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())[-1] == STORED, (
        "BrokeRecreatable (I9)"
    )


def test_a_child_of_a_stored_again_parent_needs_a_newer_stamp(
    store: FollowedStore, record: NamespaceRecord
) -> None:
    keys = chain(3)
    sources = pages_of(keys, record.page_bytes)
    store.put(record.id, keys[:2], sources[:2], stamp=store.stamp())
    old = store.stamp()
    store.hide_pages([keys[0]])
    store.put(record.id, keys[:2], sources[:2], stamp=store.stamp())
    assert store.put(record.id, keys, sources[2:], start=2, stamp=old) == [Refused(RefuseReason.INVALIDATED)]
    other = chain(2)
    assert store.put(record.id, other, pages_of(other, record.page_bytes), stamp=old) == [STORED] * 2, (
        "sparing"
    )
    assert store.put(record.id, keys, sources[2:], start=2, stamp=store.stamp()) == [STORED]


def test_events_tell_what_was_hidden_and_from_which_position_on(
    store: FollowedStore, record: NamespaceRecord
) -> None:
    keys = chain(15)
    store.hide_pages(keys)
    store.hide_namespace(record.id)
    store.hide_all()
    events = store.reader.events_since(1)  # view 1 is that of an arena that has joined no log
    assert events is not None
    views = [view for view, *_ in events]
    assert views == list(range(2, 2 + len(views)))
    assert store.view == views[-1]
    assert {incarnation for _, incarnation, *_ in events} == {store.stamp().incarnation}
    assert [(revision, decode_event(kind, payload)) for _, _, revision, kind, payload in events] == [
        (0, LogStarted()),
        *((1 + place, Selected(Selector(key=key))) for place, key in enumerate(keys)),
        (16, Selected(Selector(namespace=record.id))),
        (17, Selected(EVERYTHING)),
    ]
    view, incarnation, revision = store.reader.stamp()
    assert (view, Stamp(log_incarnation(incarnation), revision)) == (store.view, store.stamp())
    assert revision == 17


def test_hiding_what_nobody_registered_still_tells_everybody(store: FollowedStore) -> None:
    before = store.view
    assert store.hide_namespace(foreign_namespace()) == 0
    assert store.hide_pages(chain(1)) == 0
    assert store.hide_pages([]) == 0
    assert store.view == before + 2


def test_c36_hidden_pages_under_lease_are_freed_at_the_last_release(
    store: FollowedStore, record: NamespaceRecord
) -> None:
    keys = chain(2)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    lease = store.lease(record.id, keys)
    assert store.hide_all() == 2
    assert store.look_up(record.id, keys) == Miss(MissReason.ABSENT)
    assert bytes(lease[1]) == page_of(keys[1], record.page_bytes)
    assert store.statistics()["entries_hidden_leased"] == 2
    lease.release()
    store.tick()
    assert store.statistics()["entries_hidden_leased"] == 0


def test_pages_expire_by_the_clock_with_what_stands_on_them() -> None:
    clock = ManualClock(BoottimeClock().now_ns())
    store = make_store(clock, default_ttl_s=100)
    record = add(store, namespace_of())
    keys = chain(2)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    clock.advance(99 * SECOND_NS)
    store.tick()
    assert store.look_up(record.id, keys) == Hit(2, Tier.L2)
    clock.advance(3 * SECOND_NS)
    assert store.tick() == 2
    assert store.look_up(record.id, keys) == Miss(MissReason.ABSENT)
    store.close()


def test_a_reservation_that_ran_out_is_quarantined_until_its_writer_is_gone() -> None:
    clock = ManualClock(BoottimeClock().now_ns())
    store = make_store(clock, reservation_s=5.0)
    record = add(store, namespace_of())
    row = store.open_client(os.getpid())
    rows = store.reserve(row, record, None, packed(chain(2)))
    clock.advance(6 * SECOND_NS)
    store.tick()
    assert store.statistics()["entries_quarantined"] == 2
    outcomes = store.commit(row, [reservation for _, _, reservation, _ in rows], stamp=store.stamp())
    assert outcomes == [(PutStatus.REFUSED, RefuseReason.EXPIRED)] * 2
    assert store.statistics()["entries_quarantined"] == 0, "the writer has said that it is done"
    store.end_client(row)
    store.tick()
    assert store.statistics()["entries_quarantined"] == 0
    store.check_invariants()
    store.close()


def test_a_quota_counts_reservations_that_ran_out_until_their_writer_gives_them_back() -> None:
    clock = ManualClock(BoottimeClock().now_ns())
    store = make_store(clock, arena_bytes=32 * MIB, reservation_s=5.0)
    record = add(store, namespace_of())
    row = store.open_client(os.getpid())
    ids: list[int] = []
    while len(ids) < RESERVATIONS_PER_CLIENT_MAX:
        ids += [reservation for _, _, reservation, _ in store.reserve(row, record, None, packed(chain(512)))]
    quota = [(PutStatus.REFUSED, RefuseReason.QUOTA)]
    assert [pair[:2] for pair in store.reserve(row, record, None, packed(chain(1)))] == quota
    clock.advance(6 * SECOND_NS)
    for _ in range(100):
        store.tick()
    assert store.statistics()["entries_quarantined"] == RESERVATIONS_PER_CLIENT_MAX
    assert [pair[:2] for pair in store.reserve(row, record, None, packed(chain(1)))] == quota
    store.abort(row, ids)
    assert store.reserve(row, record, None, packed(chain(1)))[0][0] == PutStatus.STORED
    store.check_invariants()
    store.close()


def test_stale_and_closed_are_misses_with_their_reasons() -> None:
    store = make_store(lease_s=0.01)
    record = add(store, namespace_of())
    keys = chain(1)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    clock = BoottimeClock()
    freshness_ns = store.reader.freshness_ns()
    while clock.now_ns() < freshness_ns:
        pass
    assert store.look_up(record.id, keys) == Miss(MissReason.STALE), "BrokeFailClosed"
    store.tick()
    assert store.look_up(record.id, keys) == Hit(1, Tier.L2)
    store.drain()
    store.tick()
    assert store.look_up(record.id, keys) == Miss(MissReason.CLOSED)
    assert store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp()) == [
        Refused(RefuseReason.CLOSED)
    ]
    assert store.get(record.id, keys, buffers(1, record.page_bytes)) == Miss(MissReason.CLOSED)
    store.close()
    store.close()


def test_a_drain_refuses_what_was_reserved_before(store: ArenaStore, record: NamespaceRecord) -> None:
    ids = reserved(store, record, None, chain(2))
    store.drain()
    outcomes = store.commit(store.own_row, ids, stamp=store.stamp())
    assert outcomes == [(PutStatus.REFUSED, RefuseReason.CLOSED)] * 2


# --- clients, limits, start ---


def test_rows_are_bounded_and_come_back(store: ArenaStore) -> None:
    rows = [store.open_client(os.getpid()) for _ in range(3)]
    with pytest.raises(LimitExceededError, match="client_rows"):
        store.open_client(os.getpid())
    store.end_client(rows[1])
    assert store.open_client(os.getpid()) == rows[1]
    assert [client.state for client in store.clients()] == ["attached"] * 4
    store.orphan_client(rows[0])
    assert store.statistics()["clients_orphaned"] == 1


def test_a_clients_reservations_are_its_own(store: ArenaStore, record: NamespaceRecord) -> None:
    ids = reserved(store, record, None, chain(2))
    thief = store.open_client(os.getpid())
    assert store.commit(thief, ids, stamp=store.stamp()) == [(PutStatus.REFUSED, RefuseReason.EXPIRED)] * 2
    store.abort(thief, ids)
    assert store.commit(store.own_row, ids, stamp=store.stamp()) == [(PutStatus.STORED, 0)] * 2


def test_one_reservation_commits_once_even_within_a_batch(store: ArenaStore, record: NamespaceRecord) -> None:
    (reservation,) = reserved(store, record, None, chain(1))
    outcomes = store.commit(store.own_row, [reservation, reservation, 2**64 - 1], stamp=store.stamp())
    refused = (PutStatus.REFUSED, RefuseReason.EXPIRED)
    assert outcomes == [(PutStatus.STORED, 0), refused, refused]


def test_provenance_of_a_page_is_kept(store: ArenaStore, record: NamespaceRecord) -> None:
    (reservation,) = reserved(store, record, None, chain(1))
    with pytest.raises(LimitExceededError):
        store.commit(store.own_row, [reservation], stamp=store.stamp(), producer=bytes(65))
    stored = store.commit(
        store.own_row, [reservation], stamp=store.stamp(), producer=b"node-1", tags=(b"evaluation",),
        computed_from_ms=1, computed_until_ms=2,
    )  # fmt: skip
    assert stored == [(PutStatus.STORED, 0)]
    assert store.statistics()["provenances"] == 2


def test_the_drained_view_follows_requests_in_flight(store: FollowedStore) -> None:
    assert store.drained_view() == store.view
    slot, view, _, _ = store.reader.begin_request()
    store.hide_all()
    assert store.drained_view() == view < store.view
    store.reader.end_request(slot)
    assert store.drained_view() == store.view


def test_unknown_namespaces_are_errors(store: ArenaStore) -> None:
    with pytest.raises(UnknownNamespaceError):
        store.lease(foreign_namespace(), chain(1))
    with pytest.raises(UnknownNamespaceError):
        store.namespace(foreign_namespace())


def test_c25_an_arena_larger_than_memory_is_a_clear_error_at_start() -> None:
    with pytest.raises(ArenaTooLargeError, match=r"MiB.*choose an arena of at most"):
        make_store(arena_bytes=1 << 44, segment_bytes=0)


def test_c25_what_no_limit_told_is_still_a_clear_error_and_never_a_signal() -> None:
    code = (
        "import resource\n"
        "from cache_l2.memory_probe import MemoryProbe\n"
        "from cache_l2.store import ArenaConfig, ArenaStore\n"
        "from invalidation.validity import Validity\n"
        "from kv_types.clock import BoottimeClock\n"
        "from kv_types.errors import ArenaTooLargeError\n"
        "class Blind(MemoryProbe):\n"
        "    def bounds(self): return iter(())\n"
        "    def address_space(self): return None\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "for probe in (None, Blind()):\n"
        "    try:\n"
        "        ArenaStore(\n"
        "            ArenaConfig(arena_bytes=1 << 30), clock=BoottimeClock(), judge=Validity(skew_ms=0), memory=probe)\n"
        "    except ArenaTooLargeError as error:\n"
        "        print('refused:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told, tried = [line for line in done.stdout.splitlines() if line.startswith("refused:")]
    assert "RLIMIT_AS" in told
    assert "choose a smaller one" in tried


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("client_rows", 1), ("client_rows", 10**6), ("leases_per_client", 0), ("ring_records", 1),
        ("skew_bound_s", -1.0), ("reservation_s", -1.0), ("default_ttl_s", -1), ("index_hash_bits", 65),
        ("arena_bytes", 5), ("segment_bytes", 12345), ("pages_max", -3),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named(setting: str, value: float) -> None:
    bad: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigError, match=setting):
        make_store(**bad)


def test_statistics_say_what_is_resident(store: ArenaStore, record: NamespaceRecord) -> None:
    keys = chain(3)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    assert store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp()) == [KNOWN] * 3
    assert store.namespace_resident() == {record.id: (3, 3 * record.page_bytes)}
    figures = store.statistics()
    assert (figures["namespaces"], figures["entries_visible"], figures["clients_attached"]) == (1, 3, 1)
    assert all(isinstance(value, int) for value in figures.values())
    assert store.geometry["data_bytes"] == store.config.arena_bytes
