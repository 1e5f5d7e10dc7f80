"""A model of the native arena's writer half in plain Python: header, ring, rows, reservations and commits over a tree of pages.

It follows rules R14 to R17 step by step. What it answers is compared with the real native core by test_arena_model.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from kv_types.ids import KEY_BYTES
from kv_types.limits import RESERVATIONS_PER_CLIENT_MAX
from kv_types.outcomes import PutStatus, RefuseReason
from tests.sim.arena_entries import (
    COUNTED,
    FREE,
    HIDDEN,
    MISSED,
    QUARANTINED,
    RESERVED,
    VISIBLE,
    Entry,
    Row,
    ancestors,
    end_of,
    expired,
    rests,
)
from tests.sim.arena_tree import PageTree


class ModelArena(PageTree):
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
        super().__init__(entries=entries, rows=rows, now_ns=now_ns, give_way=give_way)
        self.life = life
        self.ring: list[tuple[int, bytes, int, int, bytes]] = [(0, b"", 0, 0, b"")] * ring_records
        self.ring[1 % ring_records] = (1, bytes(16), 0, 0, b"")
        self.closed = False
        self.freshness_ns = 0
        self.keep_granted = False
        self.asked = 0
        """Pages that look-ups were begun for, by whomever."""

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
            "oldest_hidden_view": min(
                (entry.hidden_view for entry in living if entry.state == HIDDEN), default=0
            ),
        }  # fmt: skip

    def row_counts(self, row: int, counter: int) -> dict[str, int]:
        counted = self.rows[row].counts.get(counter, Counter())
        return {name: counted[name] for name in (*COUNTED, *MISSED)}

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
            is_absent = expired(entry, now_ns)
            if is_absent:
                self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
                self._reclaim()
        return (None, RefuseReason.PARENT_ABSENT) if is_absent else (entry, 0)

    def _reserve_one(
        self, row: Row, key: bytes, above: Entry | None, namespace_slot: int, now_ns: int, missing: int
    ) -> tuple[RefuseReason, Entry | None, bool, int]:
        """(reason, entry, is new, pages that still need room)."""
        entry = self.index.get(key)
        if entry is not None and entry.state == VISIBLE and expired(entry, now_ns):
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
            reason = RefuseReason.EXPIRED if entry is None else end_of(entry, now_ns)
            if entry is not None and reason is RefuseReason.NONE:
                entry.incarnation, entry.revision, entry.provenance = incarnation, revision, producer
                entry.from_ms, entry.until_ms, entry.committed_ns = (
                    computed_from_ms,
                    computed_until_ms,
                    now_ns,
                )
                entry.last_ns = entry.previous_ns = 0
                entry.lineage_unknown = not rests(entry, rests_on)
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
        return [entry is not None and rests(entry, rests_on) for entry in entries]

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
