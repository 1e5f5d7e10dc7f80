"""The tree of pages in the arena's model: hiding with all that stands on it, reservations that end, room that is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from kv_types.outcomes import RefuseReason
from tests.sim.arena_entries import (
    HIDDEN,
    QUARANTINED,
    RESERVED,
    U64_MAX,
    VISIBLE,
    Entry,
    Row,
    ancestors,
    bit,
    expired,
    matches_origin,
    subtree,
)


class PageTree:
    """Entries, rows and the index; `give_way` marks where a reader on another processor may look."""

    def __init__(
        self, *, entries: int, rows: int, now_ns: Callable[[], int], give_way: Callable[[], None]
    ) -> None:
        self.entries = [Entry(number) for number in range(entries)]
        self.rows = [Row() for _ in range(rows)]
        self.index: dict[bytes, Entry] = {}
        self.view = 1
        self.now_ns = now_ns
        self.give_way = give_way
        self.counters: Counter[str] = Counter()
        self._free = list(reversed(self.entries))
        self._waiting: list[Entry] = []
        self._pinned: Entry | None = None
        self._censuses: dict[int, set[Entry]] = {}

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
            if entry.state == VISIBLE and expired(entry, now_ns):
                hidden += self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
        for entry in self.entries:
            if entry.state == RESERVED and now_ns > entry.deadline_ns:
                self._quarantine(entry)
        self._reclaim()
        return hidden

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
                while entry.children and work_max >= 0:
                    leaf = entry
                    while leaf.children:
                        leaf = next(iter(leaf.children.values()))
                    hidden += self._hide_subtree(leaf, RefuseReason.INVALIDATED)
                    work_max -= 1
                if entry.children:
                    break
                hidden += self._hide_subtree(entry, RefuseReason.INVALIDATED)
            at += 1
        if hidden:
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
        if not is_there or (namespaces is not None and not bit(namespaces, entry.namespace_slot)):
            return False
        if key is not None and key not in (one.key for one in ancestors(entry)):
            return False
        return cuts or matches_origin(entry, terms)

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
