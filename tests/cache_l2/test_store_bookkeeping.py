"""The store's bookkeeping, each part against a naive twin: registry, floors, provenance, accounts, reservations."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_l2.accounts import Accounts, NamespaceCounts
from cache_l2.floors import Floors
from cache_l2.local_log import LocalLog
from cache_l2.namespaces import NamespaceRecord, NamespaceRegistry
from cache_l2.provenance import Provenance, ProvenanceTable
from cache_l2.reservations import PendingPage, ReservationBook
from kv_types.errors import (
    InvalidArgumentError,
    LayoutConflictError,
    LimitExceededError,
    ProtocolError,
    UnknownNamespaceError,
)
from kv_types.events import EVENT_PAGES_MAX
from kv_types.ids import NamespaceId, PageKey, Stamp, new_log_incarnation
from kv_types.limits import NAMESPACES_MAX, TAG_BYTES_MAX, TAGS_PER_RECORD_MAX
from kv_types.outcomes import MissReason, RefuseReason
from tests.support.pages import chain, foreign_namespace, namespace_of, packed, page_bytes_of


def record_of(name: str, number: int = 0) -> NamespaceRecord:
    namespace = namespace_of(name)
    return NamespaceRecord(namespace, namespace.id, number, page_bytes_of(namespace))


# --- registry ---


def test_registering_twice_gives_one_record() -> None:
    registry = NamespaceRegistry()
    namespace = namespace_of("a", units=3)
    first = registry.register(namespace.canonical, 3 * 4096)
    assert registry.register(namespace.canonical, 3 * 4096) is first
    assert registry.of_id(namespace.id) is first
    assert registry.of_number(first.number) is first
    assert first.namespace == namespace


def test_c33_another_page_size_is_refused_and_the_old_record_stays() -> None:
    registry = NamespaceRegistry()
    namespace = namespace_of("a", units=3)
    with pytest.raises(LayoutConflictError, match="12288"):
        registry.register(namespace.canonical, 4096)
    record = registry.register(namespace.canonical, 3 * 4096)
    with pytest.raises(LayoutConflictError, match="registered with pages of 12288"):
        registry.register(namespace.canonical, 4096)
    assert registry.of_id(namespace.id) is record


def test_c33_other_layers_or_dtype_are_another_namespace() -> None:
    registry = NamespaceRegistry()
    numbers = {
        registry.register(namespace.canonical, page_bytes_of(namespace)).number
        for namespace in (
            namespace_of("a", units=1),
            namespace_of("a", units=2),
            namespace_of("a", tenant="t"),
        )
    }
    assert len(numbers) == 3


def test_unknown_namespaces_and_garbage_are_named() -> None:
    registry = NamespaceRegistry()
    with pytest.raises(UnknownNamespaceError, match="register it first"):
        registry.of_id(foreign_namespace())
    for number in (-1, 0, 2**31):
        with pytest.raises(UnknownNamespaceError):
            registry.of_number(number)
    with pytest.raises(ProtocolError):
        registry.register(b"garbage", 4096)


def test_the_registry_is_bounded() -> None:
    registry = NamespaceRegistry()
    for number in range(NAMESPACES_MAX):
        registry.register(namespace_of(f"m{number}").canonical, 4096)
    registry.register(namespace_of("m5").canonical, 4096)
    with pytest.raises(LimitExceededError, match=str(NAMESPACES_MAX)):
        registry.register(namespace_of("one too many").canonical, 4096)


# --- floors ---

KEYS = [bytes([number]) * 32 for number in range(6)]
SPACES = [NamespaceId(bytes([number]) * 32) for number in range(3)]
RECORDS = st.one_of(
    st.just(("all", 0)),
    st.tuples(st.just("namespace"), st.integers(0, len(SPACES) - 1)),
    st.tuples(st.just("page"), st.integers(0, len(KEYS) - 1)),
)


@given(
    records=st.lists(RECORDS, max_size=30), tombstones_max=st.integers(1, 8), namespaces_max=st.integers(1, 4)
)
def test_floors_never_permit_what_the_log_selects(
    records: list[tuple[str, int]], tombstones_max: int, namespaces_max: int
) -> None:
    floors = Floors(tombstones_max=tombstones_max, namespaces_max=namespaces_max)
    for revision, (kind, which) in enumerate(records, start=1):
        match kind:
            case "all":
                floors.hide_everything(revision)
            case "namespace":
                floors.hide_namespace(SPACES[which], revision)
            case _:
                floors.hide_pages(KEYS[which], revision)
    roomy = tombstones_max >= len(KEYS) and namespaces_max >= len(SPACES)
    for space_index, space in enumerate(SPACES):
        for key_index, key in enumerate(KEYS):
            for stamp in range(len(records) + 1):
                selected = any(
                    record in (("all", 0), ("namespace", space_index), ("page", key_index))
                    for record in records[stamp:]
                )
                permitted = floors.permits_namespace(space, stamp) and (
                    not floors.needs_chain(stamp) or floors.permits_pages([key], stamp)
                )
                assert not (permitted and selected), "BrokeInFlight"
                if roomy:
                    assert permitted != selected, "sparing: nothing else may be refused"
    assert floors.permits_namespace(SPACES[0], len(records)), "the newest stamp is always good (I9)"
    assert len(floors) <= tombstones_max + namespaces_max


class FakeArena:
    """Entries as parent links, and the order of what the log does to them."""

    def __init__(self) -> None:
        self.parents: dict[bytes, bytes | None] = {}
        self.calls: list[tuple[str, int]] = []

    def publish_event(self, *, incarnation: bytes, revision: int, kind: int, payload: bytes) -> int:
        self.calls.append(("publish", revision))
        return len(self.calls)

    def hide(self, keys: bytes) -> int:
        self.calls.append(("hide", len(keys) // 32))
        return 1

    def hide_namespace(self, namespace_slot: int) -> int:
        self.calls.append(("hide_namespace", namespace_slot))
        return 1

    def hide_all(self) -> int:
        self.calls.append(("hide_all", 0))
        return 1

    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        if key not in self.parents:
            return None
        parent = self.parents[key]
        return {"entry": 1} if parent is None else {"entry": 1, "parent": parent}


def test_pages_are_hidden_before_the_view_is_published_and_only_the_last_event_has_the_revision() -> None:
    arena = FakeArena()
    log = LocalLog(arena)
    log.start()
    count = 2 * EVENT_PAGES_MAX + 1
    log.hide_pages(os.urandom(32 * count))
    log.hide_namespace(SPACES[0], 7)
    log.hide_namespace(SPACES[1], None)
    log.hide_all()
    assert arena.calls == [
        ("publish", 0),
        ("hide", count), ("publish", 0), ("publish", 0), ("publish", 1),
        ("hide_namespace", 7), ("publish", 2),
        ("publish", 3),
        ("hide_all", 0), ("publish", 4),
    ]  # fmt: skip


def test_a_stamp_older_than_a_hidden_ancestor_is_refused_though_the_ancestor_was_stored_again() -> None:
    arena = FakeArena()
    log = LocalLog(arena)
    root, middle, leaf, other = chain(4)
    arena.parents = {root: None, middle: root, other: None}
    before = log.stamp()
    log.hide_pages(root)
    page = PendingPage(SPACES[0], leaf, middle)
    assert log.judge(page, before, set()) is RefuseReason.INVALIDATED
    assert log.judge(page, log.stamp(), set()) is RefuseReason.NONE
    assert log.judge(PendingPage(SPACES[0], leaf, other), before, set()) is RefuseReason.NONE, "sparing"


def test_stamps_of_another_log_or_ahead_of_this_one_are_foreign() -> None:
    log = LocalLog(FakeArena())
    page = PendingPage(SPACES[0], KEYS[0], None)
    ahead = Stamp(log.stamp().incarnation, 1)
    assert log.judge(page, ahead, set()) is RefuseReason.STAMP_FOREIGN
    assert log.judge(page, Stamp(new_log_incarnation(), 0), set()) is RefuseReason.STAMP_FOREIGN


# --- provenance ---


def test_provenance_is_numbered_once_whatever_the_order_of_tags() -> None:
    table = ProvenanceTable()
    number = table.number(b"node-1", (b"b", b"a"))
    assert table.number(b"node-1", (b"a", b"b")) == number
    assert table.provenance(number) == Provenance(b"node-1", (b"a", b"b"))
    assert table.number(b"", ()) == ProvenanceTable.UNKNOWN


def test_a_full_provenance_table_says_that_it_may_be_anybody() -> None:
    table = ProvenanceTable(provenances_max=2)
    known = table.number(b"first", ())
    assert table.number(b"second", ()) == ProvenanceTable.OVERFLOW
    assert table.number(b"first", ()) == known
    assert table.provenance(ProvenanceTable.OVERFLOW) is None


@pytest.mark.parametrize(
    ("producer", "tags"),
    [
        (bytes(65), ()),
        (b"", (b"",)),
        (b"", (bytes(TAG_BYTES_MAX + 1),)),
        (b"", (b"t",) * (TAGS_PER_RECORD_MAX * 9)),
    ],
)
def test_provenance_outside_its_limits_is_refused(producer: bytes, tags: tuple[bytes, ...]) -> None:
    if len(set(tags)) != len(tags):
        tags = tuple(bytes([index]) for index in range(len(tags)))
    with pytest.raises(InvalidArgumentError):
        ProvenanceTable().number(producer, tags)


# --- accounts ---


class FakeRows:
    """Counters that a test sets."""

    def __init__(self) -> None:
        names = [
            "begun",
            "requested",
            "l1",
            "l2",
            "l3",
            "bytes_read",
            "bytes_written",
            "collisions",
            "look_ups",
        ]
        self.zero = dict.fromkeys(names + [f"miss_{reason}" for reason in range(len(MissReason))], 0)
        self.counts: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: dict(self.zero))

    def row_counts(self, row: int, counter: int) -> dict[str, int]:
        return dict(self.counts[row, counter])

    def reset_counts(self, row: int, counter: int) -> None:
        self.counts[row, counter] = dict(self.zero)

    def look_up(self, row: int, counter: int, *, begun: int, hits: int, missed: int) -> None:
        counts = self.counts[row, counter]
        counts["begun"] += begun
        counts["requested"] += hits + missed
        counts["l2"] += hits
        counts["miss_1"] += missed


def test_what_a_dead_client_began_and_did_not_finish_is_missed_as_aborted() -> None:
    rows = FakeRows()
    accounts = Accounts(rows)
    record = record_of("a")
    accounts.open_row(3)
    counter = accounts.bind(3, record)
    rows.look_up(3, counter, begun=10, hits=4, missed=1)
    living = accounts.totals()[record.id]
    assert living == NamespaceCounts(requested=5, l2=4, missed=(0, 1, *[0] * 14))
    accounts.end_row(3)
    ended = accounts.totals()[record.id]
    assert ended.requested == 10
    assert ended.is_balanced
    assert ended.missed_by_reason() == {MissReason.ABSENT: 1, MissReason.ABORTED: 5}


def test_a_row_that_is_used_again_adds_to_what_its_last_user_left() -> None:
    rows = FakeRows()
    accounts = Accounts(rows)
    record = record_of("a")
    for _ in range(3):
        accounts.open_row(1)
        rows.reset_counts(1, 0)
        rows.look_up(1, accounts.bind(1, record), begun=2, hits=2, missed=0)
        accounts.end_row(1)
    assert accounts.totals()[record.id] == NamespaceCounts(requested=6, l2=6)


def test_counters_of_a_row_are_bounded_and_only_the_owner_recycles_idle_ones() -> None:
    rows = FakeRows()
    accounts = Accounts(rows, counters_per_row=2)
    accounts.open_row(0)
    records = [record_of(name, number) for number, name in enumerate("abc")]
    first = accounts.bind(0, records[0])
    second = accounts.bind(0, records[1])
    assert accounts.bind(0, records[0]) == first
    with pytest.raises(LimitExceededError, match="2 namespaces"):
        accounts.bind(0, records[2])
    rows.look_up(0, second, begun=5, hits=1, missed=0)  # a look-up under way: not idle
    rows.look_up(0, first, begun=3, hits=3, missed=0)
    assert accounts.bind(0, records[2], recycle=True) == first
    assert accounts.totals()[records[0].id] == NamespaceCounts(requested=3, l2=3)
    rows.look_up(0, first, begun=1, hits=0, missed=1)
    assert accounts.totals()[records[2].id].missed_by_reason() == {MissReason.ABSENT: 1}


# --- reservations ---


def test_reservations_belong_to_their_row_and_are_taken_once() -> None:
    book = ReservationBook()
    keys = chain(3)
    book.add_run(1, SPACES[0], None, packed(keys), [11, None, 13])
    assert book.take(2, 11) is None
    assert book.take(1, 11) == PendingPage(SPACES[0], keys[0], None)
    assert book.take(1, 11) is None
    assert book.take(1, 13) == PendingPage(SPACES[0], keys[2], keys[1])
    assert book.pages(1) == 0


def test_the_book_forgets_ended_rows() -> None:
    book = ReservationBook()
    book.add_run(1, SPACES[0], PageKey(KEYS[0]), packed(chain(6)), [1, 2, 3, 4, 5, 6])
    assert book.pages(1) == 6
    book.end_row(1)
    assert book.pages(1) == 0
    assert book.take(1, 6) is None
