"""A model of the native arena's writer half in plain Python: entries, tree, reservations, rows, ring and header words.

It follows rules R14 to R17 step by step; `give_way` marks the places where a reader on another processor may look. What
it answers is compared with the real native core by test_arena_model.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kv_types.ids import KEY_BYTES
from kv_types.limits import ANCESTORS_WALKED_MAX, RESERVATIONS_PER_CLIENT_MAX
from kv_types.outcomes import MissReason, PutStatus, RefuseReason

U64_MAX = (1 << 64) - 1
OVERFLOW = (1 << 32) - 1
FREE, RESERVED, VISIBLE, HIDDEN, QUARANTINED = range(5)
REQUEST_VIEWS = 256
COUNTED = ("begun", "requested", "l1", "l2", "l3", "bytes_read", "bytes_written", "collisions", "look_ups")
Slot = list[int]
"""The two words of a page's bytes, which are equal when the page was written by one hand."""


class Entry:
    """What readers see of a page (down to `place`), and what only the writer keeps of it."""

    __slots__ = (
        "children", "cut_off", "deadline_ns", "expiry_s", "from_ms", "generation", "hidden_view", "incarnation", "key",
        "last_ns", "lineage_unknown", "namespace_slot", "number", "parent", "parent_generation", "parent_number", "place",
        "previous_ns", "provenance", "reason", "revision", "row", "state", "until_ms", "committed_ns", "payload_bytes",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.generation = 1
        self.place: Slot = [0, 0]
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
        self.counts: dict[int, Counter[str]] = {}


class ModelArena:
    """The writer's half; the same methods as cache_l2._native.Arena."""

    def __init__(
        self,
        *,
        life: bytes,
        entries: int,
        rows: int = 16,
        ring_records: int = 8,
        now_ns: Callable[[], int],
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        self.life = life
        self.entries = [Entry(number) for number in range(entries)]
        self.rows = [Row() for _ in range(rows)]
        self.ring: list[tuple[int, bytes, int, int, bytes]] = [(0, b"", 0, 0, b"")] * ring_records
        self.index: dict[bytes, Entry] = {}
        self.closed = False
        self.freshness_ns = 0
        self.keep_granted = False
        self.view = 1
        self.ring[1 % ring_records] = (1, bytes(16), 0, 0, b"")
        self.give_way = give_way
        self.now_ns = now_ns
        self.counters: Counter[str] = Counter()
        self.asked = 0
        """Pages that look-ups were begun for, by whomever."""
        self._free = list(reversed(self.entries))
        self._waiting: list[Entry] = []
        self._pinned: Entry | None = None
        self._censuses: dict[int, set[Entry]] = {}

    # --- header ---

    def publish_event(self, *, incarnation: bytes, revision: int, kind: int, payload: bytes) -> int:
        view = self.view + 1
        at = view % len(self.ring)
        self.ring[at] = (0, b"", 0, 0, b"")
        self.give_way()
        self.ring[at] = (view, incarnation, revision, kind, payload)
        self.give_way()
        self.view = view
        self.give_way()
        return view

    def publish_freshness(self, freshness_ns: int) -> None:
        self.give_way()
        self.freshness_ns = freshness_ns

    def grant_keep(self, granted: bool) -> None:
        self.give_way()
        self.keep_granted = granted

    def close_header(self) -> None:
        self.closed = True

    # --- clients ---

    def open_row(self, pid: int, *, engine: int = 0) -> int:
        for number, row in enumerate(self.rows):
            if not row.state:
                row.clear()
                row.state, row.pid, row.engine = 1, pid, engine
                return number
        raise RuntimeError("no row is free")

    def orphan_row(self, row: int) -> None:
        self.rows[row].state = 2
        for entry in list(self.rows[row].reservations.values()):
            if entry.state == RESERVED:
                self._quarantine(entry)

    def end_row(self, row: int) -> None:
        it = self.rows[row]
        if not it.state:
            return
        for entry in list(it.reservations.values()):
            self._end_reservation(entry)
        it.hazards.clear()
        it.requests.clear()
        it.state = 0
        self._reclaim()

    def row_statistics(self, row: int) -> dict[str, int]:
        it = self.rows[row]
        living = list(self._living(it))
        return {
            "state": it.state, "pid": it.pid, "engine": it.engine, "leases": len(living),
            "leased_bytes": sum(entry.payload_bytes for entry in living), "reservations": len(it.reservations),
            "applied_view": it.applied_view, "own_freshness_ns": it.own_freshness_ns,
            "oldest_view": min(it.requests.values(), default=0),
        }  # fmt: skip

    def row_counts(self, row: int, counter: int) -> dict[str, int]:
        counted = self.rows[row].counts.get(counter, Counter())
        return {name: counted[name] for name in (*COUNTED, *(f"miss_{int(one)}" for one in MissReason))}

    def reset_counts(self, row: int, counter: int) -> None:
        self.rows[row].counts.pop(counter, None)

    # --- pages ---

    def reserve(
        self,
        *,
        row: int,
        namespace_slot: int,
        parent: bytes | None,
        keys: bytes,
        payload_bytes: int,
        expiry_s: int,
        deadline_ns: int,
        now_ns: int,
    ) -> list[tuple[int, int, int, int]]:
        wanted = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        above, stopped = self._admit_parent(row, parent, namespace_slot, now_ns)
        missing = sum(key not in self.index for key in wanted)
        results = []
        for key in wanted:
            self._pinned = above
            reason, entry, is_new = RefuseReason(stopped), None, False
            if not stopped:
                reason, entry, is_new, missing = self._reserve_one(
                    self.rows[row], key, above, namespace_slot, now_ns, missing
                )
            if entry is None:
                stopped = reason
                self.counters["refused"] += 1
                results.append((int(PutStatus.REFUSED), int(reason), 0, 0))
            elif not is_new:
                self.counters["known"] += 1
                entry.previous_ns, entry.last_ns = entry.last_ns, now_ns
                results.append((int(PutStatus.KNOWN), 0, 0, 0))
                above = entry
            else:
                self._take(
                    self.rows[row],
                    row,
                    entry,
                    key,
                    above,
                    namespace_slot,
                    payload_bytes,
                    expiry_s,
                    deadline_ns,
                )
                results.append((int(PutStatus.STORED), 0, entry.instance, entry.number))
                above = entry
        self._pinned = None
        return results

    def _admit_parent(
        self, row: int, parent: bytes | None, namespace_slot: int, now_ns: int
    ) -> tuple[Entry | None, int]:
        if parent is None:
            return None, 0
        entry = self.index.get(parent)
        if entry is None or entry.namespace_slot != namespace_slot:
            return None, RefuseReason.PARENT_ABSENT
        if entry.state == RESERVED:
            is_absent = entry.row != row or now_ns > entry.deadline_ns
        else:
            is_absent = _expired(entry, now_ns)
            if is_absent:
                self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
                self._reclaim()
        return (None, RefuseReason.PARENT_ABSENT) if is_absent else (entry, 0)

    def _reserve_one(
        self, row: Row, key: bytes, above: Entry | None, namespace_slot: int, now_ns: int, missing: int
    ) -> tuple[RefuseReason, Entry | None, bool, int]:
        """(reason, entry, is new, pages that still need room)."""
        entry = self.index.get(key)
        if entry is not None and entry.state == VISIBLE and _expired(entry, now_ns):
            self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
            self._reclaim()
            entry, missing = None, missing + 1
        if entry is not None and entry.state == RESERVED and now_ns > entry.deadline_ns:
            self._quarantine(entry)
            entry, missing = None, missing + 1
        if entry is None:
            if len(row.reservations) >= RESERVATIONS_PER_CLIENT_MAX:
                return RefuseReason.QUOTA, None, False, missing
            if not self._make_room(missing):
                return RefuseReason.FULL, None, False, missing
            return RefuseReason.NONE, self._free.pop(), True, missing - 1
        if entry.state == RESERVED:
            return RefuseReason.BUSY, None, False, missing
        if entry.parent is above and entry.namespace_slot == namespace_slot:
            return RefuseReason.NONE, entry, False, missing
        return RefuseReason.PARENT_ABSENT, None, False, missing

    def _take(
        self, row: Row, number: int, entry: Entry, key: bytes, above: Entry | None, namespace_slot: int,
        payload_bytes: int, expiry_s: int, deadline_ns: int,
    ) -> None:  # fmt: skip
        entry.state, entry.key, entry.row = RESERVED, key, number
        entry.namespace_slot, entry.expiry_s, entry.deadline_ns = namespace_slot, expiry_s, deadline_ns
        entry.payload_bytes, entry.parent = payload_bytes, above
        if above is not None:
            above.children[entry.number] = entry
        self.index[key] = entry
        row.reservations[entry.number] = entry

    def commit(
        self,
        *,
        row: int,
        reservations: Sequence[int],
        incarnation: bytes,
        revision: int,
        producer: int,
        computed_from_ms: int,
        computed_until_ms: int,
        rests_on: int,
        now_ns: int,
    ) -> list[tuple[int, int]]:
        results = []
        for reservation in reservations:
            entry = self._reserved_by(row, reservation)
            reason = RefuseReason.EXPIRED if entry is None else _end_of(entry, now_ns)
            if entry is not None and reason is RefuseReason.NONE:
                entry.incarnation, entry.revision, entry.provenance = incarnation, revision, producer
                entry.from_ms, entry.until_ms, entry.committed_ns = (
                    computed_from_ms,
                    computed_until_ms,
                    now_ns,
                )
                entry.last_ns = entry.previous_ns = 0
                entry.lineage_unknown = not _rests(entry, rests_on)
                self._publish(entry)
                results.append((int(PutStatus.STORED), 0))
            else:
                if entry is not None:
                    self._end_reservation(entry)
                results.append((int(PutStatus.REFUSED), int(reason)))
            self.counters["stored" if reason is RefuseReason.NONE else "refused"] += 1
        return results

    def lineage_known(self, *, row: int, reservations: Sequence[int], rests_on: int) -> list[bool]:
        entries = [self._reserved_by(row, reservation) for reservation in reservations]
        return [entry is not None and _rests(entry, rests_on) for entry in entries]

    def _publish(self, entry: Entry) -> None:
        if entry.parent is not None:
            entry.parent_number = entry.parent.number + 1
            entry.parent_generation = entry.parent.generation
        self.give_way()
        entry.generation += 1
        entry.state = VISIBLE
        del self.rows[entry.row].reservations[entry.number]

    def abort(self, *, row: int, reservations: Sequence[int]) -> None:
        for reservation in reservations:
            entry = self._reserved_by(row, reservation)
            if entry is not None:
                self._end_reservation(entry)

    def _reserved_by(self, row: int, reservation: int) -> Entry | None:
        number = (reservation & 0xFFFFFFFF) - 1
        if not 0 <= number < len(self.entries):
            return None
        entry = self.entries[number]
        is_held = entry.state in (RESERVED, QUARANTINED) and entry.row == row
        return entry if is_held and entry.instance == reservation else None

    def _end_reservation(self, entry: Entry) -> None:
        if entry.state == RESERVED and not entry.cut_off:
            self._unlink(entry)
        del self.rows[entry.row].reservations[entry.number]
        entry.generation += 2
        self._release(entry)

    def _quarantine(self, entry: Entry) -> None:
        if not entry.cut_off:
            self._unlink(entry)
        entry.state = QUARANTINED

    def _unlink(self, entry: Entry) -> None:
        """Take a reservation out of tree and index; reservations on top of it are cut off."""
        if entry.parent is not None:
            del entry.parent.children[entry.number]
            entry.parent = None
        for child in list(entry.children.values()):
            self._hide_subtree(child, RefuseReason.PARENT_ABSENT)
        del self.index[entry.key]

    def expire(self, now_ns: int) -> int:
        hidden = 0
        for entry in self.entries:
            if entry.state == VISIBLE and _expired(entry, now_ns):
                hidden += self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
        for entry in self.entries:
            if entry.state == RESERVED and now_ns > entry.deadline_ns:
                self._quarantine(entry)
        self._reclaim()
        return hidden

    # --- hiding ---

    def hide_step(
        self,
        *,
        key: bytes | None,
        namespaces: bytes | None,
        provenances: bytes | None,
        since_ms: int,
        until_ms: int,
        since_revision: int,
        until_revision: int,
        cursor: int,
        work_max: int,
    ) -> tuple[int, int]:
        terms = (provenances, since_ms, until_ms, since_revision, until_revision)
        cuts = (
            provenances is None
            and (since_ms, since_revision) == (0, 0)
            and until_ms == until_revision == U64_MAX
        )
        hidden, at = 0, cursor
        while at < len(self.entries) and work_max > 0:
            work_max -= 1
            entry = self.entries[at]
            if self._is_selected(entry, key, namespaces, terms, cuts):
                while entry.children and work_max > 0:
                    leaf = entry
                    while leaf.children:
                        leaf = next(iter(leaf.children.values()))
                    hidden += self._hide_subtree(leaf, RefuseReason.INVALIDATED)
                    work_max -= 1
                if entry.children:
                    break
                hidden += self._hide_subtree(entry, RefuseReason.INVALIDATED)
            at += 1
        self._reclaim()
        return (-1 if at >= len(self.entries) else at), hidden

    def count_step(
        self, *, cursor: int, work_max: int, census: int = 0, **selection: Any
    ) -> tuple[int, int, int]:
        if cursor < 0 or work_max <= 0:
            raise ValueError("a count that can't go on")
        key, namespaces = selection.pop("key"), selection.pop("namespaces")
        terms = tuple(
            selection[name]
            for name in ("provenances", "since_ms", "until_ms", "since_revision", "until_revision")
        )
        counted = self._censuses.setdefault(census, set()) if census else set()
        pages = payload_bytes = 0
        for entry in self.entries:
            if entry.state == VISIBLE and self._is_selected(entry, key, namespaces, terms, cuts=False):
                for one in subtree(entry):
                    if one.state == VISIBLE and one not in counted:
                        counted.add(one)
                        pages += 1
                        payload_bytes += one.payload_bytes
        return -1, pages, payload_bytes

    def _is_selected(
        self, entry: Entry, key: bytes | None, namespaces: bytes | None, terms: tuple[Any, ...], cuts: bool
    ) -> bool:
        is_there = entry.state == VISIBLE or (cuts and entry.state == RESERVED and not entry.cut_off)
        if not is_there or (namespaces is not None and not _bit(namespaces, entry.namespace_slot)):
            return False
        if key is not None and key not in (one.key for one in ancestors(entry)):
            return False
        return cuts or _matches_origin(entry, terms)

    def _hide_subtree(self, top: Entry, reason: RefuseReason) -> int:
        if top.parent is not None:
            del top.parent.children[top.number]
            top.parent = None
        hidden, open_ = 0, [top]
        while open_:
            entry = open_.pop()
            children = list(entry.children.values())
            for child in children:
                child.parent = None
            open_ += children
            entry.children = {}
            del self.index[entry.key]
            if entry.state == VISIBLE:
                self.give_way()
                entry.generation += 1
                entry.state, entry.hidden_view = HIDDEN, self.view
                self._waiting.append(entry)
                hidden += 1
            else:
                entry.cut_off, entry.reason = True, reason
        return hidden

    def _reclaim(self) -> None:
        if not self._waiting:
            return
        self.give_way()
        leased = self._leased()
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            if entry in leased:
                self._waiting.append(entry)
            else:
                self._release(entry)

    def _release(self, entry: Entry) -> None:
        entry.clear()
        self._free.append(entry)

    def _leased(self) -> set[Entry]:
        return {entry for row in self.rows if row.state for entry in self._living(row)}

    def _living(self, row: Row) -> Iterator[Entry]:
        now_ns = self.now_ns()
        return (entry for entry, deadline_ns in row.hazards if not deadline_ns or deadline_ns > now_ns)

    def _make_room(self, pages: int) -> bool:
        if not self._free:
            self._reclaim()
        if not self._free:
            leased = self._leased()
            for _ in range(max(1, pages)):
                leaves = [
                    one
                    for one in self.entries
                    if one.state == VISIBLE
                    and not one.children
                    and one is not self._pinned
                    and one not in leased
                ]
                if not leaves:
                    break
                self._hide_subtree(
                    min(leaves, key=lambda one: (one.last_ns or one.committed_ns, one.number)),
                    RefuseReason.PARENT_ABSENT,
                )
                self.counters["evictions_capacity"] += 1
            self._reclaim()
        return bool(self._free)

    # --- asking ---

    def chain(self, key: bytes, *, pages_max: int) -> bytes | None:
        entry = self.index.get(key)
        if entry is None:
            return b""
        keys = [one.key for one in ancestors(entry)]
        return None if len(keys) > pages_max else b"".join(reversed(keys))

    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        entry = self.index.get(key)
        if entry is None or entry.state != VISIBLE:
            return None
        parent: int | bytes = entry.parent.key if entry.parent is not None else 0
        return {
            "generation": entry.generation, "entry": entry.number, "parent": parent,
            "namespace_slot": entry.namespace_slot, "revision": entry.revision, "incarnation": entry.incarnation,
            "producer": entry.provenance, "lineage_unknown": int(entry.lineage_unknown),
        }  # fmt: skip

    def statistics(self) -> dict[str, int]:
        states = Counter(entry.state for entry in self.entries)
        leased = self._leased()
        hidden = [entry.hidden_view for entry in self._waiting if entry in leased]
        return {
            "entries_total": len(self.entries), "entries_visible": states[VISIBLE], "entries_reserved": states[RESERVED],
            "entries_hidden_leased": states[HIDDEN], "entries_quarantined": states[QUARANTINED],
            "oldest_hidden_view": min(hidden, default=0), **self.counters,
        }  # fmt: skip

    def namespace_entries(self, namespace_slot: int) -> int:
        return sum(entry.state != FREE and entry.namespace_slot == namespace_slot for entry in self.entries)

    def evict_namespace(self, namespace_slot: int) -> int:
        raise AssertionError("no simulated sidecar runs out of numbers of namespaces")

    def close(self) -> None:
        self.close_header()


def _expired(entry: Entry, now_ns: int) -> bool:
    return bool(entry.expiry_s) and entry.expiry_s <= now_ns // 1_000_000_000


def _end_of(entry: Entry, now_ns: int) -> RefuseReason:
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


def _rests(entry: Entry, rests_on: int) -> bool:
    """Whether what a page rests on is among its ancestors, so that its lineage is that of the tree."""
    if rests_on == 0:
        return True
    above = (one for _, one in zip(range(ANCESTORS_WALKED_MAX), ancestors(entry), strict=False))
    return any(one.instance == rests_on for one in above if one is not entry)


def _bit(bitmap: bytes, number: int) -> bool:
    return number >> 3 < len(bitmap) and bool(bitmap[number >> 3] >> (number & 7) & 1)


def _matches_origin(entry: Entry, terms: tuple[Any, ...]) -> bool:
    provenances, since_ms, until_ms, since_revision, until_revision = terms
    if entry.lineage_unknown:
        return True
    if provenances is not None and entry.provenance != OVERFLOW and not _bit(provenances, entry.provenance):
        return False
    return (
        (not entry.until_ms or entry.until_ms >= since_ms)
        and (not entry.from_ms or entry.from_ms <= until_ms)
        and since_revision <= entry.revision <= until_revision
    )
