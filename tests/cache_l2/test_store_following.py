"""Following the log in the store: steps and commits between them, positions, and what clients still hold back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cache_l2._native import Reader
from cache_l2.client_rows import ClientRow, acknowledged_view, held_back_by, oldest_view, undrained
from cache_l2.store import ArenaConfig, ArenaStore
from invalidation.records import LogEntry, LogRecord
from invalidation.validity import Validity
from kv_types.clock import BoottimeClock
from kv_types.events import Selected, WeightsAnnounced, decode_event
from kv_types.ids import NO_INCARNATION, Stamp
from kv_types.outcomes import STORED, Hit, Miss, MissReason, PutStatus, Refused, RefuseReason, Tier
from kv_types.selectors import EVERYTHING, Selector
from kv_types.validity import NO_INSTANCE, EngineMode
from tests.support.followed_store import FollowedStore
from tests.support.pages import buffers, chain, namespace_of, packed, page_of, pages_of
from tests.support.stores import MIB, SECOND_NS, add, make_store


@pytest.fixture
def store() -> Iterator[FollowedStore]:
    made = make_store(client_rows=6)
    yield made
    made.check_invariants()
    made.close()


def reader_of(store: ArenaStore, row: int) -> Reader:
    control, clients, data = store.descriptors(writable=False)
    return Reader(
        control_fd=control, clients_fd=clients, data_fd=data, row=row, life=store.life, writable=False, prefault=False
    )  # fmt: skip


def test_an_arena_that_has_joined_no_log_serves_and_stores_nothing() -> None:
    store = ArenaStore(
        ArenaConfig(arena_bytes=4 * MIB, segment_bytes=MIB // 8, prefault=False),
        clock=BoottimeClock(),
        judge=Validity(skew_ms=0),
    )
    record, keys = add(store, namespace_of()), chain(2)
    assert store.stamp() == Stamp(NO_INCARNATION, 0)
    assert store.view == 1, "so that no request in flight stands at view 0, which means none"
    refused = store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    assert refused[0] == Refused(RefuseReason.STAMP_FOREIGN)
    assert store.look_up(record.id, keys) == Miss(MissReason.STALE), "BrokeFailClosed"
    store.close()


def test_c16_a_put_that_spans_an_invalidation_is_never_visible(store: FollowedStore) -> None:
    """Reserved and filled under one version, committed after it was invalidated."""
    record, keys = add(store, namespace_of()), chain(2)
    stamp = store.stamp()
    rows = store.reserve(store.own_row, record, None, packed(keys))
    store.reader.fill(
        [offset for *_, offset in rows], [page_of(key, record.page_bytes) for key in keys],
        page_bytes=record.page_bytes,
    )  # fmt: skip
    store.hide(Selector(model=record.namespace.model, weights_version="1"))
    outcomes = store.commit(
        store.own_row, [reservation for _, _, reservation, _ in rows], stamp=stamp, rests_on=NO_INSTANCE
    )
    assert [status for status, _ in outcomes] == [PutStatus.REFUSED] * 2, "BrokeInFlight"
    assert outcomes[0][1] == RefuseReason.INVALIDATED
    assert store.look_up(record.id, keys) == Miss(MissReason.ABSENT)


def test_commits_between_two_steps_of_hiding_are_judged_by_the_record_that_is_hidden(
    store: FollowedStore,
) -> None:
    """Nothing can slip in behind the walk: not where it has been, not where it has yet to go."""
    record = add(store, namespace_of())
    old = [chain(1)[0] for _ in range(8)]
    for key in old:
        assert store.put(
            record.id, [key], [memoryview(page_of(key, record.page_bytes))], stamp=store.stamp()
        ) == [STORED]
    before = store.stamp()
    position = store.validity.position
    assert position is not None
    record_of_log = LogRecord(position.revision + 1, LogEntry(event=Selected(EVERYTHING)), b"d" * 20)
    store.validity.apply(record_of_log)
    steps = 0
    for _ in _small_steps(store, 2):
        steps += 1
        assert store.stamp() == before, "who loads the view now stamps what it reuses as of before (R1)"
        (key,) = chain(1)
        refused = store.put(
            record.id, [key], [memoryview(page_of(key, record.page_bytes))], stamp=store.stamp()
        )
        assert refused == [Refused(RefuseReason.INVALIDATED)], "BrokeInFlight"
        (child,) = chain(1)
        resident = next((one for one in old if store.inspect(one) is not None), None)
        if resident is not None:
            store.put(
                record.id,
                [resident, child],
                [memoryview(page_of(child, record.page_bytes))],
                start=1,
                stamp=store.stamp(),
            )
            assert store.inspect(child) is None
    assert steps > 1
    view = store.publish(Selected(EVERYTHING), Stamp(before.incarnation, before.revision + 1))
    assert view == store.view
    assert store.statistics()["entries_visible"] == 0
    assert store.put(
        record.id, [old[0]], [memoryview(page_of(old[0], record.page_bytes))], stamp=store.stamp()
    ) == [STORED], "I9"


def _small_steps(store: FollowedStore, work: int) -> Iterator[int]:
    """Hide everything as `hiding` does, in steps of so little work that several are needed."""
    cursor = 0
    while cursor >= 0:
        for terms in filter(None, store._selecting.terms([EVERYTHING])):
            cursor, hidden = store._arena.hide_step(**terms, cursor=cursor, work_max=work)
        yield hidden


def test_another_incarnation_voids_pages_and_stamps(store: FollowedStore) -> None:
    record, keys = add(store, namespace_of()), chain(1)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    old = store.stamp()
    store.begin_anew()
    assert store.stamp().incarnation != old.incarnation
    assert store.look_up(record.id, keys) == Miss(MissReason.ABSENT)
    foreign = [Refused(RefuseReason.STAMP_FOREIGN)]
    assert store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=old) == foreign
    assert store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp()) == [STORED]


def test_announced_weights_are_told_and_hide_nothing(store: FollowedStore) -> None:
    record, keys = add(store, namespace_of()), chain(1)
    store.put(record.id, keys, pages_of(keys, record.page_bytes), stamp=store.stamp())
    before = store.view
    assert store.append(WeightsAnnounced("tiny", "2")) == 0
    events = store.reader.events_since(before)
    assert events is not None
    assert [decode_event(kind, payload) for *_, kind, payload in events] == [WeightsAnnounced("tiny", "2")]
    assert store.get(record.id, keys, buffers(1, record.page_bytes)) == Hit(1, Tier.L2)


def test_a_page_can_be_inspected(store: FollowedStore) -> None:
    record, keys = add(store, namespace_of()), chain(2)
    rows = store.reserve(store.own_row, record, None, packed(keys), 60)
    stamp = store.stamp()
    store.commit(
        store.own_row, [reservation for _, _, reservation, _ in rows], stamp=stamp, producer=b"node-1",
        tags=(b"b", b"a"), computed_from_ms=10, computed_until_ms=20, rests_on=NO_INSTANCE,
    )  # fmt: skip
    with store.lease(record.id, keys):
        facts = store.inspect(keys[1])
    assert facts is not None
    assert (facts.key, facts.parent, facts.namespace, facts.stamp) == (keys[1], keys[0], record, stamp)
    assert (facts.origin.producer, facts.origin.tags) == (b"node-1", (b"a", b"b"))
    assert (facts.origin.from_ms, facts.origin.until_ms, facts.origin.lineage_known) == (10, 20, True)
    assert (facts.leases, facts.payload_bytes) == (1, record.page_bytes)
    assert facts.expires_in_ms is not None
    assert 58_000 < facts.expires_in_ms <= 61_000
    assert facts.last_access_ms_ago is not None
    assert store.chain(keys[1], pages_max=2) == keys
    assert store.chain(keys[1], pages_max=1) is None
    assert store.chain(chain(1)[0], pages_max=1) == []
    assert store.inspect(chain(1)[0]) is None


# --- acknowledgements ---


WITHOUT_LIMIT = {"own_freshness_ns": 2**64 - 1}


def row_of(**changes: int) -> ClientRow:
    figures = {
        "pid": 7, "state": 1, "leases": 0, "leased_bytes": 0, "reservations": 0, "applied_view": 0, "oldest_view": 0,
        "engine": 0, "own_freshness_ns": 0, "oldest_hidden_view": 0, **changes,
    }  # fmt: skip
    return ClientRow.of(1, figures)


@pytest.mark.parametrize(
    ("changes", "acknowledged"),
    [
        ({"engine": EngineMode.NONE, "applied_view": 3}, 9),
        ({"engine": EngineMode.KEEP, "applied_view": 3}, 9),
        ({"engine": EngineMode.KEEP, "applied_view": 3, **WITHOUT_LIMIT}, 3),
        ({"engine": EngineMode.KEEP, "applied_view": 9, **WITHOUT_LIMIT}, 9),
        ({"engine": EngineMode.KEEP, "applied_view": 2**64 - 1, **WITHOUT_LIMIT}, 9),
        ({"engine": EngineMode.KEEP, "applied_view": 3, "state": 2, **WITHOUT_LIMIT}, 3),
        ({"engine": EngineMode.KEEP, "applied_view": 3, "own_freshness_ns": 101}, 3),
        ({"engine": EngineMode.KEEP, "applied_view": 3, "own_freshness_ns": 100}, 9),
        ({"engine": EngineMode.NONE, "applied_view": 3, **WITHOUT_LIMIT}, 9),
        ({"engine": EngineMode.DROP, "applied_view": 3, "own_freshness_ns": 101}, 3),
        ({"engine": EngineMode.DROP, "applied_view": 3, "own_freshness_ns": 100}, 9),
        ({"engine": EngineMode.DROP, "applied_view": 9, "own_freshness_ns": 101}, 9),
    ],
)
def test_whom_an_acknowledgement_waits_for(changes: dict[str, int], acknowledged: int) -> None:
    clients = [row_of(), row_of(**changes)]
    assert acknowledged_view(clients, view=9, now_ns=100) == acknowledged
    held = held_back_by(clients, view=9, now_ns=100)
    assert [one.pid for one in held] == [7] * (acknowledged < 9)
    assert all("view 3 of 9" in one.why for one in held)


def test_the_oldest_request_in_flight_is_what_draining_waits_for() -> None:
    assert oldest_view([row_of(), row_of(oldest_view=4), row_of(oldest_view=6)], view=9) == 4
    assert oldest_view([row_of()], view=9) == 9


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"oldest_view": 9, "oldest_hidden_view": 9}, None),
        ({"oldest_view": 4}, "a request of it began at view 4 of 9"),
        ({"oldest_hidden_view": 5}, "it leases a page that was hidden behind view 5 of 9"),
        (
            {"oldest_view": 8, "oldest_hidden_view": 5, "state": 2},
            "a request of it began at view 8 of 9; it leases a page that was hidden behind view 5 of 9; it is orphaned",
        ),
    ],
)
def test_who_holds_draining_back_is_told_with_what_it_uses(changes: dict[str, int], why: str | None) -> None:
    held = undrained([row_of(), row_of(**changes)], view=9)
    assert [one.why for one in held] == ([] if why is None else [why])


def test_engines_hold_back_acknowledgements_until_they_have_applied_or_ended(store: FollowedStore) -> None:
    keeping = store.open_client(os.getpid(), engine=EngineMode.KEEP)
    dropping = store.open_client(os.getpid(), engine=EngineMode.DROP)
    plain = store.open_client(os.getpid())
    readers = {row: reader_of(store, row) for row in (keeping, dropping, plain)}
    for reader in readers.values():
        reader.set_applied_view(store.view)
    assert store.acknowledged_view() == store.view
    assert store.held_back_by() == []
    before = store.view
    readers[dropping].claim_freshness(store.clock.now_ns() + 3600 * SECOND_NS)
    store.hide_all()
    assert [one.row for one in store.held_back_by()] == [dropping], (
        "the other one is gated, and claims nothing"
    )
    for reader in readers.values():
        reader.set_applied_view(store.view)
    before = store.view
    assert store.grant_keep(store.keep_opened)
    readers[keeping].claim_freshness(2**64 - 1)
    store.hide_all()
    assert store.acknowledged_view() == before
    assert [one.row for one in store.held_back_by()] == [keeping, dropping]
    assert (store.engines(EngineMode.KEEP), store.engines(EngineMode.DROP)) == (1, 1)
    readers[keeping].set_applied_view(store.view)
    assert [one.row for one in store.held_back_by()] == [dropping]
    readers[dropping].claim_freshness(0)
    assert store.acknowledged_view() == store.view, "its own freshness is over"
    store.hide_all()
    assert store.acknowledged_view() == store.view - 1
    store.orphan_client(keeping)
    assert "orphaned" in store.held_back_by()[0].why
    assert store.acknowledged_view() == store.view - 1, "its process may live and serve on"
    for row, reader in readers.items():
        assert reader.close()
        store.end_client(row)
    assert store.acknowledged_view() == store.view
    assert store.engines(EngineMode.KEEP) == 0


def test_draining_waits_for_leases_on_what_was_hidden_and_for_no_others(store: FollowedStore) -> None:
    record, keys = add(store, namespace_of()), chain(2)
    other = chain(1)
    for one in (keys, other):
        store.put(record.id, one, pages_of(one, record.page_bytes), stamp=store.stamp())
    hidden, kept = store.lease(record.id, keys), store.lease(record.id, other)
    before = store.view
    store.hide_pages([keys[1]])
    assert store.drained_view() == before
    assert store.acknowledged_view() == store.view
    (held,) = store.draining_held_by()
    assert (held.row, held.pid) == (store.own_row, os.getpid())
    assert str(held) == (
        f"pid {os.getpid()} (calls over gRPC): it leases a page that was hidden behind view {before} of {store.view}"
    )
    hidden.release()
    assert store.draining_held_by() == []
    store.tick()
    assert store.drained_view() == store.view, "a lease on what nobody selected holds nothing back"
    kept.release()
