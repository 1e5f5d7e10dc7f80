"""The store's bookkeeping, each part against a naive twin: registry, provenance, accounts, reservations."""

from __future__ import annotations

from collections import defaultdict

import pytest

from cache_l2.accounts import Accounts, NamespaceCounts
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
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import NAMESPACES_MAX, TAG_BYTES_MAX, TAGS_PER_RECORD_MAX
from kv_types.outcomes import MissReason
from tests.support.pages import chain, foreign_namespace, namespace_of, packed, page_bytes_of

SPACE = NamespaceId(bytes(32))


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
    assert living == NamespaceCounts(
        requested=5, l2=4, missed=tuple(int(reason is MissReason.ABSENT) for reason in MissReason)
    )
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
    book.add_run(1, SPACE, None, packed(keys), [11, None, 13])
    assert book.take(2, 11) is None
    assert book.take(1, 11) == PendingPage(SPACE, keys[0], None)
    assert book.take(1, 11) is None
    assert book.take(1, 13) == PendingPage(SPACE, keys[2], keys[1])
    assert book.pages(1) == 0


def test_the_book_forgets_ended_rows() -> None:
    book = ReservationBook()
    book.add_run(1, SPACE, PageKey(bytes(32)), packed(chain(6)), [1, 2, 3, 4, 5, 6])
    assert book.pages(1) == 6
    book.end_row(1)
    assert book.pages(1) == 0
    assert book.take(1, 6) is None
