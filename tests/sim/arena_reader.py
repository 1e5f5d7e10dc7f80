"""A model of the native arena's reader half: look-ups by rules R16 and R17 in the steps in which they look at shared memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kv_types.ids import KEY_BYTES
from kv_types.outcomes import MissReason
from kv_types.validity import EngineMode
from tests.sim.arena import ModelArena
from tests.sim.arena_entries import REQUEST_VIEWS, Entry, Row

ATTEMPTS = 5
_BYTES_OF_WORD = 8
Found = tuple[Entry, int]
"""An entry and the generation that it was found with."""


class ModelReader:
    """A client's mapping; the same methods as cache_l2._native.Reader."""

    def __init__(self, arena: ModelArena, row: int, *, writable: bool = True) -> None:
        self._arena = arena
        self._row: Row = arena.rows[row]
        self._writable = writable
        self._give_way = arena.give_way
        self._closing = False
        self._held = 0

    @property
    def life(self) -> bytes:
        return self._arena.life

    @property
    def closed(self) -> bool:
        self._check()
        return self._arena.closed

    @property
    def view(self) -> int:
        self._check()
        self._give_way()
        return self._arena.view

    def stamp(self) -> tuple[int, bytes, int]:
        self._check()
        ring = self._arena.ring
        for _ in range(1000):
            view = self._arena.view
            self._give_way()
            record = ring[view % len(ring)]
            if record[0] == view:
                return view, record[1], record[2]
        raise RuntimeError("events overwrite the ring faster than it can be read")

    def freshness_ns(self) -> int:
        self._check()
        self._give_way()
        return self._arena.freshness_ns

    def set_applied_view(self, view: int) -> None:
        self._check()
        self._give_way()
        self._row.applied_view = view

    def claim_freshness(self, freshness_ns: int | None = None) -> tuple[int, int]:
        self._check()
        for_ever = (1 << 64) - 1
        unlimited = (
            freshness_ns == for_ever and self._row.engine == EngineMode.KEEP and self._arena.keep_granted
        )
        self._give_way()
        granted = for_ever if unlimited else self._arena.freshness_ns
        claimed = granted if freshness_ns is None else min(freshness_ns, granted)
        self._give_way()
        self._row.own_freshness_ns = claimed
        self._give_way()
        return claimed, self._arena.view

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        self._check()
        ring, now = self._arena.ring, self._arena.view
        if view > now or now - view > len(ring):
            return None
        events = []
        for at in range(view + 1, now + 1):
            self._give_way()
            record = ring[at % len(ring)]
            if record[0] != at:
                return None
            events.append(record)
        return events

    def begin_request(self) -> tuple[int, int, bytes, int]:
        self._check()
        free = (slot for slot in range(REQUEST_VIEWS) if slot not in self._row.requests)
        slot = next(free, -1)
        if slot >= 0:
            self._row.requests[slot] = self._arena.view
        self._give_way()
        return (slot, *self.stamp())

    def advance_request(self, slot: int, view: int) -> None:
        self._check()
        if slot < 0:
            return
        if slot not in self._row.requests or view > self._arena.view:
            raise ValueError("no such request, or a view that is not published")
        self._row.requests[slot] = max(self._row.requests[slot], view)

    def end_request(self, slot: int) -> None:
        self._check()
        self._row.requests.pop(slot, None)

    # --- look-ups ---

    def match(self, keys: Any, *, start: int = 0) -> tuple[int, int]:
        chain = self._chain(keys, start)
        for _ in range(ATTEMPTS):
            if self._arena.closed:
                return 0, MissReason.CLOSED
            freshness_ns = self._arena.freshness_ns  # F first, then the view (rule R16)
            self._give_way()
            view = self._arena.view
            found, _ = self._walk(chain, start)
            self._give_way()
            now_ns = self._arena.now_ns()
            if now_ns >= freshness_ns:
                return 0, MissReason.STALE
            if self._arena.view == view:
                pages, reason = _cut_expired(found, now_ns)
                return pages, _reason(reason, pages, len(chain) - start)
        return 0, MissReason.RACED

    def lease(self, counter: int, keys: Any, *, start: int = 0, may_load: bool = False) -> ModelLease:
        chain = self._chain(keys, start)
        self._begin(counter, len(chain))
        lease = self._look_up(chain, start, lease_ns=0)
        self._settle(counter, self._counted(chain, start, lease.pages, lease.reason, 0), may_load)
        return lease

    def complete_lease(
        self, counter: int, keys: Any, *, start: int = 0, l3_from: int | None = None, reason: int = 0
    ) -> ModelLease:
        chain = self._chain(keys, start)
        lease = self._look_up(chain, start, lease_ns=0)
        if lease.reason == MissReason.ABSENT and reason:
            lease.reason = reason
        counted = self._counted(chain, start, lease.pages, lease.reason, 0)
        self._complete(counter, _loaded(counted, start, lease.pages, l3_from))
        return lease

    def pin(self, instance: int) -> ModelLease | None:
        """See cache_l2._native.Reader.pin."""
        self._check()
        entry = self._arena.of_instance(instance)
        if entry is None:
            return None
        lease = ModelLease(self, [(entry, entry.generation)], None, self._arena.view)
        lease.pin(0)
        return lease if lease.pages else None

    def get(
        self,
        counter: int,
        keys: Any,
        destinations: Any,
        *,
        page_bytes: int,
        start: int = 0,
        lease_ns: int = 5_000_000_000,
        kernel: int = -1,
        instances: Any = None,
        may_load: bool = False,
    ) -> tuple[int, int, int]:
        chain = self._chain(keys, start)
        self._begin(counter, len(chain))
        pages, reason, instance = self._copy_out(chain, destinations, page_bytes, start, lease_ns, instances)
        self._settle(counter, self._counted(chain, start, pages, reason, page_bytes), may_load)
        return pages, reason, instance

    def complete_get(
        self,
        counter: int,
        keys: Any,
        destinations: Any,
        *,
        page_bytes: int,
        start: int = 0,
        lease_ns: int = 5_000_000_000,
        kernel: int = -1,
        instances: Any = None,
        l1: int | None = None,
        l3_from: int | None = None,
        reason: int = 0,
    ) -> tuple[int, int, int]:
        chain, first = self._chain(keys, start), start if l1 is None else l1
        pages, missed, instance = self._copy_out(chain, destinations, page_bytes, start, lease_ns, instances)
        if missed == MissReason.ABSENT and reason:
            missed = reason
        counted = _loaded(self._counted(chain, start, pages, missed, page_bytes), start, pages, l3_from)
        counted["l1"] = first
        counted["l2"] += start - first
        counted["bytes_read"] += (start - first) * page_bytes
        self._complete(counter, counted)
        return pages, missed, instance

    def _copy_out(
        self, chain: list[bytes], destinations: Any, page_bytes: int, start: int, lease_ns: int, instances: Any
    ) -> tuple[int, int, int]:
        lease = self._look_up(chain, start, lease_ns=lease_ns)
        pages, reason = lease.pages, lease.reason
        whole = memoryview(destinations).cast("B") if not isinstance(destinations, list) else None
        for index in range(pages):
            self._give_way()
            target = (
                whole[index * page_bytes : (index + 1) * page_bytes]
                if whole is not None
                else memoryview(destinations[index]).cast("B")
            )
            target[:] = _bytes(lease._pages[index][0].place, page_bytes)
        if lease.still_there() < pages or (pages and self._arena.now_ns() >= lease.deadline_ns):
            pages, reason = 0, int(MissReason.LEASE_EXPIRED)
        lease.release()
        if instances is not None and pages:
            words = memoryview(instances).cast("B").cast("Q")
            if start:
                words[start - 1] = lease.stands_on
            words[start : start + pages] = memoryview(_packed(lease.instances()[:pages])).cast("B").cast("Q")
        return pages, reason, lease.instances()[pages - 1] if pages else 0

    def _look_up(self, chain: list[bytes], start: int, *, lease_ns: int) -> ModelLease:
        self._give_way()
        lease, reason = ModelLease(self, [], None, 0), MissReason.RACED
        for _ in range(ATTEMPTS):
            if self._arena.closed:
                reason = MissReason.CLOSED
                break
            freshness_ns = self._arena.freshness_ns  # F first, then the view (rule R16)
            self._give_way()
            view = self._arena.view
            found, parent = self._walk(chain, start)
            lease = ModelLease(self, found, parent, view)
            lease.pin(lease_ns)
            self._give_way()
            now_ns = self._arena.now_ns()
            if now_ns >= freshness_ns or self._arena.view != view:
                lease.release()
                lease = ModelLease(self, [], None, view)
                if now_ns >= freshness_ns:
                    reason = MissReason.STALE
                    break
                continue
            pages, cut = _cut_expired(lease._pages, now_ns)
            lease.cut(pages)
            lease.touch(now_ns, lease_ns)
            reason = _reason(cut, pages, len(chain) - start)
            break
        lease.reason = int(reason)
        return lease

    def _walk(self, chain: list[bytes], start: int) -> tuple[list[Found], Found | None]:
        """Visible pages of chain[start:], each on the one just before; and the page below the first."""
        found: list[Found] = []
        parent: Found | None = None
        for key in chain[start:]:
            self._give_way()
            entry = self._arena.index.get(key)
            if entry is None or entry.generation & 1:
                break
            below = parent if not found else found[-1]
            if not found and start:
                below = parent = self._below(entry, chain[start - 1])
                if below is None:
                    break
            stands = (below[0].number + 1, below[1]) if below is not None else (0, 0)
            if (entry.parent_number, entry.parent_generation) != stands:
                break
            found.append((entry, entry.generation))
        return found, parent if found else None

    def _below(self, entry: Entry, key: bytes) -> Found | None:
        if not entry.parent_number:
            return None
        parent = self._arena.entries[entry.parent_number - 1]
        is_there = (
            parent.key == key and parent.generation == entry.parent_generation and not parent.generation & 1
        )
        return (parent, parent.generation) if is_there else None

    # --- counting and filling ---

    def counts(self, counter: int) -> dict[str, int]:
        self._check()
        return self._arena.row_counts(self._arena.rows.index(self._row), counter)

    def count_outcome(self, counter: int, *, requested: int, l1: int, reason: int) -> None:
        self._check()
        self._begin(counter, requested)
        self._count(
            counter,
            {"requested": requested, "l1": l1, f"miss_{int(reason)}": requested - l1, "look_ups": 1},
        )

    def complete(
        self,
        counter: int,
        *,
        requested: int,
        l1: int,
        l2: int = 0,
        l3: int = 0,
        reason: int = 0,
        bytes_read: int = 0,
    ) -> None:
        self._check()
        missed = requested - l1 - l2 - l3
        counted = {"requested": requested, "l1": l1, "l2": l2, "l3": l3, f"miss_{int(reason)}": missed}
        self._complete(counter, counted | {"look_ups": 1, "bytes_read": bytes_read})

    def _begin(self, counter: int, pages: int) -> None:
        self._arena.asked += pages
        self._counts(counter)["begun"] += pages

    def _settle(self, counter: int, counted: dict[str, int], may_load: bool) -> None:
        """Count a look-up, unless somebody is to complete it once what it lacks has been loaded."""
        if not may_load or not counted.get(f"miss_{int(MissReason.ABSENT)}"):
            self._count(counter, counted)

    def _complete(self, counter: int, counted: dict[str, int]) -> None:
        counts = self._counts(counter)
        if counted["requested"] > counts["begun"] - counts["requested"]:
            raise ValueError("no look-up of so many pages is under way")
        self._count(counter, counted)

    def _counts(self, counter: int) -> Counter[str]:
        return self._row.counts.setdefault(counter, Counter())

    @staticmethod
    def _counted(chain: list[bytes], start: int, pages: int, reason: int, page_bytes: int) -> dict[str, int]:
        return {
            "requested": len(chain), "l1": start, "l2": pages, "l3": 0,
            f"miss_{int(reason)}": len(chain) - start - pages, "look_ups": 1, "bytes_read": pages * page_bytes,
        }  # fmt: skip

    def _count(self, counter: int, counted: dict[str, int]) -> None:
        counts = self._counts(counter)
        self._give_way()
        counts.update(counted)

    def slot(self, offset: int, size: int) -> memoryview:
        """See cache_l2._native.Reader.slot."""
        self._check()
        place = memoryview(self._arena.entries[offset].place).cast("B")
        assert size == len(place), "a simulated page has two words"
        return place

    def fill(
        self, offsets: Sequence[int], sources: Any, *, page_bytes: int, counter: int = 0, kernel: int = -1
    ) -> None:
        self._check()
        if not self._writable:
            raise ValueError("this mapping is read-only")
        for offset, source in zip(offsets, sources, strict=True):
            words = memoryview(source).cast("B")
            place = self._arena.entries[offset].place
            for half in range(2):
                self._give_way()
                begin = half * page_bytes // 2
                place[half] = int.from_bytes(words[begin : begin + _BYTES_OF_WORD], "little")
        self._counts(counter)["bytes_written"] += len(offsets) * page_bytes

    def held(self) -> int:
        self._check()
        return self._held

    def close(self) -> bool:
        self._closing = True
        return not self._held

    # --- inside ---

    def _chain(self, keys: Any, start: int) -> list[bytes]:
        self._check()
        packed = bytes(keys) if not isinstance(keys, bytes) else keys
        chain = [packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)]
        if len(packed) % KEY_BYTES or not 0 <= start <= len(chain):
            raise ValueError(f"{len(packed)} bytes of keys from {start} on")
        return chain

    def _check(self) -> None:
        if self._closing:
            raise ValueError("this mapping was closed")


class ModelLease:
    """Pinned pages; what stands in their places is read when it is asked for."""

    def __init__(self, reader: ModelReader, found: list[Found], parent: Found | None, view: int) -> None:
        self._reader = reader
        self._pages = found
        self._parent = parent
        self._hazards: list[tuple[Entry, int]] = []
        self._instances = [
            (generation & 0xFFFFFFFF) << 32 | (entry.number + 1) for entry, generation in found
        ]
        self.view = view
        self.reason = int(MissReason.ABSENT)
        self.deadline_ns = 0
        self._released = False

    def pin(self, lease_ns: int) -> None:
        """Hazards, then another look at every generation (rule R17)."""
        hazards = [(entry, (1 << 64) - 1 if lease_ns else 0) for entry, _ in self._pages]
        self._hazards = hazards
        self._reader._row.hazards += hazards
        self._reader._held += len(hazards)
        self._reader._give_way()
        if self._parent is not None and self._parent[0].generation != self._parent[1]:
            self.cut(0)
        self.cut(self.still_there())

    def still_there(self) -> int:
        """Pages, from the first on, whose generation is the one that they were found with."""
        for index, (entry, generation) in enumerate(self._pages):
            if entry.generation != generation:
                return index
        return len(self._pages)

    def cut(self, pages: int) -> None:
        """Keep the first pages only."""
        for hazard in self._hazards[pages:]:
            self._drop(hazard)
        self._hazards, self._pages = self._hazards[:pages], self._pages[:pages]
        self._instances = self._instances[:pages]

    def touch(self, now_ns: int, lease_ns: int) -> None:
        """Note the access; a copy gets its deadline."""
        for entry, _ in self._pages:
            entry.previous_ns, entry.last_ns = entry.last_ns, now_ns
        if lease_ns:
            self.deadline_ns = now_ns + lease_ns
            for hazard in self._hazards:
                self._drop(hazard)
            self._hazards = [(entry, self.deadline_ns) for entry, _ in self._pages]
            self._reader._row.hazards += self._hazards
            self._reader._held += len(self._hazards)

    def _drop(self, hazard: tuple[Entry, int]) -> None:
        hazards = self._reader._row.hazards
        if hazard in hazards:
            hazards.remove(hazard)
        self._reader._held -= 1

    @property
    def pages(self) -> int:
        return len(self._pages)

    @property
    def instance(self) -> int:
        return self._instances[-1] if self._instances else 0

    def instances(self) -> list[int]:
        return list(self._instances)

    @property
    def stands_on(self) -> int:
        if self._parent is None or not self._pages:
            return 0
        return (self._parent[1] & 0xFFFFFFFF) << 32 | (self._parent[0].number + 1)

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> memoryview:
        if self._released:
            raise ValueError("the lease was released")
        entry = self._pages[index][0]
        return memoryview(_bytes(entry.place, entry.payload_bytes))

    def __iter__(self) -> Iterator[memoryview]:
        return (self[index] for index in range(len(self._pages)))

    def release(self) -> None:
        if not self._released:
            self._released = True
            for hazard in self._hazards:
                self._drop(hazard)
            self._hazards = []

    def __enter__(self) -> ModelLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _bytes(place: list[int], page_bytes: int) -> bytes:
    half = page_bytes // 2
    return b"".join(word.to_bytes(_BYTES_OF_WORD, "little").ljust(half, b"\0") for word in place)


def _packed(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def _cut_expired(found: list[Found], now_ns: int) -> tuple[int, MissReason]:
    for index, (entry, _) in enumerate(found):
        if entry.expiry_s and entry.expiry_s <= now_ns // 1_000_000_000:
            return index, MissReason.EXPIRED
    return len(found), MissReason.ABSENT


def _reason(cut: MissReason, pages: int, wanted: int) -> MissReason:
    return MissReason.NONE if pages == wanted and cut is MissReason.ABSENT else cut


def _loaded(counted: dict[str, int], start: int, pages: int, l3_from: int | None) -> dict[str, int]:
    """Of the pages found from `start` on, those from index `l3_from` on are L3's."""
    end = start + pages
    counted["l3"] = max(0, end - max(start, end if l3_from is None else l3_from))
    counted["l2"] = pages - counted["l3"]
    return counted
