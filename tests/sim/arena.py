"""A model of the native arena's writer half in plain Python: header, ring, rows, reservations and commits over a tree of pages.

It follows rules R14 to R17 step by step. What it answers is compared with the real native core by test_arena_model.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b

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
    U64_MAX,
    VISIBLE,
    Entry,
    Row,
    ancestors,
    end_of,
    expired,
    line_of,
    rests,
    stands_on_line,
)
from tests.sim.arena_notes import NotingTree


class ModelArena(NotingTree):
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
        self._births = 0

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
        self.recall_grants(row)
        for entry in list(self.rows[row].reservations.values()):
            if entry.state == RESERVED:
                self._quarantine(entry)

    def end_row(self, row: int) -> None:
        it = self.rows[row]
        if not it.state:
            return
        self._read_row(it)
        for entry in list(it.reservations.values()):
            self._end_reservation(entry)
        self.end_grants(row)
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
            "grants": len(it.offers) + len(it.taken),
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
        gives_way: bool = False,
        granted: Sequence[int] = (),
    ) -> list[tuple[int, int, int, int]]:
        self.read_notes(notes_max=U64_MAX, now_ns=now_ns)
        wanted = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        above, stopped = self._admit_parent(row, parent, namespace_slot, now_ns, gives_way=gives_way)
        results = []
        for index, key in enumerate(wanted):
            self._pinned = above
            reason, entry, is_new = RefuseReason(stopped), None, False
            if not stopped:
                self._clear_way(key, now_ns, gives_way=gives_way)
                missing = sum(one not in self.index for one in wanted[index:])
                slot = granted[index] if granted else 0
                reason, entry, is_new = self._reserve_one(
                    self.rows[row], key, above, namespace_slot, missing, slot=slot
                )
            if entry is None:
                stopped = reason
                self.counters["refused"] += not gives_way
                results.append((int(PutStatus.REFUSED), int(reason), 0, 0))
            elif not is_new:
                self.counters["known"] += not gives_way
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
                entry.gives_way = gives_way
                results.append((int(PutStatus.STORED), 0, entry.instance, entry.number))
                above = entry
        self._pinned = None
        self.drop_grants(row=row, ids=granted)  # those that are left
        return results

    def _admit_parent(
        self, row: int, parent: bytes | None, namespace_slot: int, now_ns: int, *, gives_way: bool
    ) -> tuple[Entry | None, int]:
        if parent is None:
            return None, 0
        entry = self.index.get(parent)
        if entry is None or entry.namespace_slot != namespace_slot:
            return None, RefuseReason.PARENT_ABSENT
        if entry.state == RESERVED:
            is_absent = entry.row != row or now_ns > entry.deadline_ns or entry.gives_way != gives_way
        else:
            is_absent = expired(entry, now_ns)
            if is_absent:
                self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
                self._reclaim()
        return (None, RefuseReason.PARENT_ABSENT) if is_absent else (entry, 0)

    def _clear_way(self, key: bytes, now_ns: int, *, gives_way: bool) -> None:
        """Take what is none any more from under a key."""
        entry = self.index.get(key)
        if entry is not None and entry.state == VISIBLE and expired(entry, now_ns):
            self._hide_subtree(entry, RefuseReason.PARENT_ABSENT)
            self._reclaim()
        elif entry is not None and entry.state == RESERVED:
            gives = now_ns <= entry.deadline_ns and entry.gives_way and not gives_way
            self.counters["gave_way"] += gives
            if gives or now_ns > entry.deadline_ns:
                self._quarantine(entry)

    def _reserve_one(
        self, row: Row, key: bytes, above: Entry | None, namespace_slot: int, missing: int, *, slot: int
    ) -> tuple[RefuseReason, Entry | None, bool]:
        """(reason, entry, is new); `missing` pages still need room, but one that lies in a granted `slot`."""
        entry = self.index.get(key)
        if entry is None:
            if len(row.reservations) >= RESERVATIONS_PER_CLIENT_MAX:
                return RefuseReason.QUOTA, None, False
            if slot:
                taken = row.taken.pop(slot, None)
                return (
                    (RefuseReason.EXPIRED if taken is None else RefuseReason.NONE),
                    taken,
                    taken is not None,
                )
            if not self.find_room(row, missing):
                return RefuseReason.FULL, None, False
            return RefuseReason.NONE, self._free.pop(), True
        if entry.state == RESERVED:
            return RefuseReason.BUSY, None, False
        if entry.parent is above and entry.namespace_slot == namespace_slot:
            return RefuseReason.NONE, entry, False
        return RefuseReason.PARENT_ABSENT, None, False

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
                is_known = rests(entry, rests_on)
                entry.birth, entry.rests_on = self._draw_birth(), U64_MAX
                if is_known:
                    reused = self.entries[(rests_on & 0xFFFFFFFF) - 1] if rests_on else None
                    entry.rests_on = reused.line if reused is not None else 0
                self._tell(
                    entry, incarnation, revision, producer, computed_from_ms, computed_until_ms, now_ns
                )
                entry.lineage_unknown = not is_known
                self._publish(entry)
                results.append((int(PutStatus.STORED), 0))
            else:
                if entry is not None:
                    self._end_reservation(entry)
                results.append((int(PutStatus.REFUSED), int(reason)))
            self.counters["stored" if reason is RefuseReason.NONE else "refused"] += 1
        return results

    def publish_loaded(
        self,
        *,
        row: int,
        reservation: int,
        incarnation: bytes,
        revision: int,
        producer: int,
        computed_from_ms: int,
        computed_until_ms: int,
        birth: int,
        rests_on: int,
        expiry_s: int,
        now_ns: int,
    ) -> tuple[int, int]:
        entry = self._reserved_by(row, reservation)
        if entry is None:
            return int(PutStatus.REFUSED), int(RefuseReason.EXPIRED)
        reason = end_of(entry, now_ns)
        if reason is not RefuseReason.NONE:
            self._end_reservation(entry)
            return int(PutStatus.REFUSED), int(reason)
        entry.birth, entry.rests_on = birth, rests_on
        entry.expiry_s = min(filter(None, (entry.expiry_s, expiry_s)), default=0)
        self._tell(entry, incarnation, revision, producer, computed_from_ms, computed_until_ms, now_ns)
        entry.lineage_unknown = not stands_on_line(entry, rests_on)
        self._publish(entry)
        self.counters["loaded"] += 1
        return int(PutStatus.STORED), 0

    def loaded_lineage_known(self, *, row: int, reservation: int, rests_on: int) -> bool:
        entry = self._reserved_by(row, reservation)
        return entry is not None and stands_on_line(entry, rests_on)

    def _draw_birth(self) -> int:
        """Differs from all others in a world: lives do."""
        self._births += 1
        return int.from_bytes(
            blake2b(self.life + self._births.to_bytes(8, "little"), digest_size=8).digest(), "little"
        )

    def _tell(
        self, entry: Entry, incarnation: bytes, revision: int, producer: int, from_ms: int, until_ms: int,
        now_ns: int,
    ) -> None:  # fmt: skip
        """What a page says of itself once it is published."""
        entry.incarnation, entry.revision, entry.provenance = incarnation, revision, producer
        entry.from_ms, entry.until_ms, entry.committed_ns = from_ms, until_ms, now_ns
        entry.last_ns = entry.previous_ns = 0
        entry.line = line_of(entry)

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
        return self._fields_of(entry)

    def instance(self, key: bytes) -> int | None:
        entry = self.index.get(key)
        return None if entry is None or entry.state != VISIBLE else entry.instance

    def describe(self, instance: int) -> dict[str, int | bytes] | None:
        entry = self._visible(instance)
        return None if entry is None else self._fields_of(entry)

    def used_pages(self, *, begin: int, count: int) -> tuple[int, list[int]]:
        end = min(begin + count, len(self.entries))
        used = [one.instance for one in self.entries[begin:end] if one.state == VISIBLE and one.last_ns]
        return (0 if end == len(self.entries) else end), used

    def cold_used_pages(self, *, turn: int, count: int) -> list[int]:
        used = [one for one in self.entries if one.state == VISIBLE and one.last_ns]
        return [one.instance for one in sorted(used, key=lambda one: (one.last_ns, one.number))[:count]]

    def set_elsewhere(self, instance: int, is_elsewhere: bool) -> None:
        """What is evicted here is chosen without regard to costs."""

    def set_losing_costs(self, *, elsewhere: float, attention_pages: int) -> None:
        """See set_elsewhere."""

    def _visible(self, instance: int) -> Entry | None:
        number = (instance & 0xFFFFFFFF) - 1
        entry = self.entries[number] if 0 <= number < len(self.entries) else None
        return entry if entry is not None and entry.state == VISIBLE and entry.instance == instance else None

    def _fields_of(self, entry: Entry) -> dict[str, int | bytes]:
        parent: int | bytes = entry.parent.key if entry.parent is not None else 0
        return {
            "generation": entry.generation, "entry": entry.number, "key": entry.key, "parent": parent,
            "namespace_slot": entry.namespace_slot, "revision": entry.revision, "incarnation": entry.incarnation,
            "producer": entry.provenance, "lineage_unknown": int(entry.lineage_unknown),
            "payload_bytes": entry.payload_bytes, "expiry_s": entry.expiry_s, "computed_from_ms": entry.from_ms,
            "computed_until_ms": entry.until_ms, "birth": entry.birth, "line": entry.line, "rests_on": entry.rests_on,
        }  # fmt: skip

    def statistics(self) -> dict[str, int]:
        states = Counter(entry.state for entry in self.entries)
        leased = self._leased()
        hidden = [entry.hidden_view for entry in self._waiting if entry in leased]
        return {
            "entries_total": len(self.entries), "entries_visible": states[VISIBLE], "entries_reserved": states[RESERVED],
            "entries_hidden_leased": states[HIDDEN], "entries_quarantined": states[QUARANTINED],
            "oldest_hidden_view": min(hidden, default=0), "loaded": 0, "gave_way": 0,
            "notes_read": 0, "notes_lost": 0, **self.counters,
        }  # fmt: skip

    def namespace_entries(self, namespace_slot: int) -> int:
        return sum(entry.state != FREE and entry.namespace_slot == namespace_slot for entry in self.entries)

    def evict_namespace(self, namespace_slot: int) -> int:
        raise AssertionError("no simulated sidecar runs out of numbers of namespaces")

    def close(self) -> None:
        self.close_header()
