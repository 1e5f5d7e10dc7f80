"""Entries and rows of the arena's model: what stands in shared memory, and what the writer keeps of it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, TypeAlias

from kv_types.limits import ANCESTORS_WALKED_MAX
from kv_types.outcomes import MissReason, RefuseReason

U64_MAX = (1 << 64) - 1
OVERFLOW = (1 << 32) - 1
FREE, RESERVED, VISIBLE, HIDDEN, QUARANTINED, GRANTED = range(6)
REQUEST_VIEWS = 256
COUNTED = ("begun", "requested", "l1", "l2", "l3", "bytes_read", "bytes_written", "collisions", "look_ups")
MISSED = tuple(f"miss_{int(reason)}" for reason in MissReason)
Slot: TypeAlias = "array[int]"
"""The two words of a page's bytes, which are equal when the page was written by one hand."""


class Entry:
    """What readers see of a page (down to `place`), and what only the writer keeps of it."""

    __slots__ = (
        "birth",
        "children",
        "committed_ns",
        "cut_off",
        "deadline_ns",
        "expiry_s",
        "from_ms",
        "generation",
        "gives_way",
        "hidden_view",
        "incarnation",
        "key",
        "last_ns",
        "line",
        "lineage_unknown",
        "namespace_slot",
        "number",
        "parent",
        "parent_generation",
        "parent_number",
        "payload_bytes",
        "place",
        "previous_ns",
        "provenance",
        "reason",
        "rests_on",
        "revision",
        "row",
        "state",
        "until_ms",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.generation = 1
        self.place: Slot = array("Q", (0, 0))
        self.clear()

    def clear(self) -> None:
        """Free; the generation goes on."""
        self.state = FREE
        self.key = b""
        self.parent: Entry | None = None
        self.parent_number = self.parent_generation = 0
        self.children: dict[int, Entry] = {}
        self.row = -1
        self.deadline_ns = self.expiry_s = 0
        self.cut_off = False
        self.reason = 0
        self.hidden_view = 0
        self.namespace_slot = 0
        self.payload_bytes = 0
        self.incarnation, self.revision, self.provenance = b"", 0, 0
        self.from_ms = self.until_ms = 0
        self.committed_ns = self.last_ns = self.previous_ns = 0
        self.lineage_unknown = False
        self.gives_way = False
        self.birth = self.line = self.rests_on = 0

    @property
    def instance(self) -> int:
        """As leases and gets name it."""
        return (self.generation & 0xFFFFFFFF) << 32 | (self.number + 1)


class Row:
    """One client's row: what it writes there, and what the writer keeps of it."""

    def __init__(self) -> None:
        self.state = 0
        self.clear()

    def clear(self) -> None:
        """As a row is given."""
        self.pid = self.engine = 0
        self.applied_view = self.own_freshness_ns = 0
        self.requests: dict[int, int] = {}
        self.hazards: list[tuple[Entry, int]] = []  # entry, deadline (0: a view)
        self.reservations: dict[int, Entry] = {}
        self.offers: dict[int, Entry] = {}  # granted, by id
        self.taken: dict[int, Entry] = {}  # granted, in the client's hands
        self.posts: list[Any] = []
        self.notes: list[tuple[Entry, int] | None] = []  # deepest page, with its generation
        self.is_posting = False
        self.counts: dict[int, Counter[str]] = {}


def expired(entry: Entry, now_ns: int) -> bool:
    return bool(entry.expiry_s) and entry.expiry_s <= now_ns // 1_000_000_000


def end_of(entry: Entry, now_ns: int) -> RefuseReason:
    if entry.state == QUARANTINED or now_ns > entry.deadline_ns:
        return RefuseReason.EXPIRED
    if entry.cut_off:
        return RefuseReason(entry.reason)
    if entry.parent is not None and entry.parent.state != VISIBLE:
        return RefuseReason.PARENT_ABSENT
    return RefuseReason.NONE


def ancestors(entry: Entry) -> Iterator[Entry]:
    """The entry itself first, its root last."""
    at: Entry | None = entry
    while at is not None:
        yield at
        at = at.parent


def subtree(top: Entry) -> Iterator[Entry]:
    """An entry and all that stands on it."""
    open_ = [top]
    while open_:
        entry = open_.pop()
        yield entry
        open_ += entry.children.values()


def rests(entry: Entry, rests_on: int) -> bool:
    """Whether what a page rests on is among its ancestors, so that its lineage is that of the tree."""
    if rests_on == 0:
        return True
    above = (one for _, one in zip(range(ANCESTORS_WALKED_MAX), ancestors(entry), strict=False))
    return any(one.instance == rests_on for one in above if one is not entry)


def line_of(entry: Entry) -> int:
    """The births from the root down to a page, as one number."""
    above = 0 if entry.parent is None else entry.parent.line
    told = above.to_bytes(8, "little") + entry.birth.to_bytes(8, "little")
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "little")


def stands_on_line(entry: Entry, line: int) -> bool:
    """Whether the page of that line is among a page's ancestors."""
    if line in (0, U64_MAX):
        return line == 0
    above = (one for _, one in zip(range(ANCESTORS_WALKED_MAX + 1), ancestors(entry), strict=False))
    for one in above:
        if one is not entry and one.line == line:
            return True
        if one is not entry and one.rests_on == line:
            return not one.lineage_unknown
    return False


def bit(bitmap: bytes, number: int) -> bool:
    return number >> 3 < len(bitmap) and bool(bitmap[number >> 3] >> (number & 7) & 1)


def matches_origin(entry: Entry, terms: tuple[Any, ...]) -> bool:
    provenances, since_ms, until_ms, since_revision, until_revision = terms
    if entry.lineage_unknown:
        return True
    if provenances is not None and entry.provenance != OVERFLOW and not bit(provenances, entry.provenance):
        return False
    return bool(
        (not entry.until_ms or entry.until_ms >= since_ms)
        and (not entry.from_ms or entry.from_ms <= until_ms)
        and since_revision <= entry.revision <= until_revision
    )
