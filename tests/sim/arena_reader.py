"""A model of the native arena's reader half: look-ups by rules R16 and R17 in the steps in which they look at shared memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kv_types.ids import KEY_BYTES
from kv_types.outcomes import MissReason
from kv_types.validity import EngineMode
from tests.sim.arena import ModelArena
from tests.sim.arena_entries import REQUEST_VIEWS, Entry, Row
from tests.sim.arena_lease import BYTES_OF_WORD, Found, ModelLease, bytes_of
from tests.sim.arena_notes import note
from tests.sim.arena_poster import Poster
from tests.sim.arena_posts import Ring

ATTEMPTS = 5


class ModelReader(Poster):
    """A client's mapping; the same methods as cache_l2._native.Reader."""

    def __init__(
        self, arena: ModelArena, row: int, *, writable: bool = True, ring: Ring | None = None
    ) -> None:
        """`ring` is the doorbell: without one it posts nothing and waits for no post."""
        self._arena = arena
        self._ring = ring
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
    def recording(self) -> bool:
        return False

    @property
    def keep_granted(self) -> bool:
        self._check()
        return self._arena.keep_granted

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
        view = self._arena.view
        self._give_way()
        if not self._arena.closed:
            return claimed, view
        self._row.own_freshness_ns = 0
        return 0, 0

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

    def begin_request(self, *, view: int | None = None) -> tuple[int, int, bytes, int]:
        self._check()
        present = self._arena.view
        if view is not None and not 0 < view <= present:
            raise ValueError(f"view {view} is none of the {present} published ones")
        free = (slot for slot in range(REQUEST_VIEWS) if slot not in self._row.requests)
        slot = next(free, -1)
        if slot >= 0:
            self._row.requests[slot] = present if view is None else view
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

    def match(self, keys: Any, *, namespace: int, start: int = 0, may_await: bool = True) -> tuple[int, int]:
        chain = self._chain(keys, start)
        pages, reason = self._match(chain, namespace, start)
        while may_await and self._await(chain, start + pages, reason):
            pages, reason = self._match(chain, namespace, start)
        return pages, reason

    def _await(self, chain: list[bytes], at: int, reason: int) -> bool:
        """Whether a page that was absent had been posted, and is settled by now."""
        if self._ring is None or reason != MissReason.ABSENT or at >= len(chain):
            return False
        return self._arena.is_posted(chain[at]) and self._arena.await_settled(chain[at])

    def _match(self, chain: list[bytes], namespace: int, start: int) -> tuple[int, int]:
        for _ in range(ATTEMPTS):
            if self._arena.closed:
                return 0, MissReason.CLOSED
            freshness_ns = self._arena.freshness_ns  # F first, then the view (rule R16)
            self._give_way()
            view = self._arena.view
            found, _ = self._walk(chain, start, namespace)
            self._give_way()
            now_ns = self._arena.now_ns()
            if now_ns >= freshness_ns:
                return 0, MissReason.STALE
            if self._arena.view == view:
                pages, reason = _cut_expired(found, now_ns)
                return pages, _reason(reason, pages, len(chain) - start)
        return 0, MissReason.RACED

    def lease(
        self, counter: int, keys: Any, *, namespace: int, start: int = 0, may_load: bool = False
    ) -> ModelLease:
        asked = self._begin(counter, keys, start)
        lease = self._look_up(keys, start, namespace, lease_ns=0, is_noted=True)
        if not (may_load and lease.reason == MissReason.ABSENT):
            self._count(counter, asked, start, lease.pages, lease.reason, 0)
        return lease

    def lease_uncounted(self, keys: Any, *, namespace: int, start: int = 0) -> ModelLease:
        return self._look_up(keys, start, namespace, lease_ns=0)

    def complete_lease(
        self,
        counter: int,
        keys: Any,
        *,
        namespace: int,
        start: int = 0,
        l3_from: int | None = None,
        reason: int = 0,
        may_await: bool = True,
    ) -> ModelLease:
        asked = len(self._chain(keys, start))
        lease = self._look_up(keys, start, namespace, lease_ns=0, may_await=may_await)
        end = start + lease.pages
        l3 = end - max(start, end if l3_from is None else min(l3_from, end))
        if lease.reason == MissReason.ABSENT and reason:
            lease.reason = reason
        self._check_under_way(counter, asked)
        self._count(counter, asked, start, lease.pages - l3, lease.reason, 0, l3=l3)
        return lease

    def complete(
        self, counter: int, *, requested: int, l1: int, l2: int = 0, l3: int = 0, reason: int = 0, bytes_read: int = 0
    ) -> None:  # fmt: skip
        self._check_under_way(counter, requested)
        self._count(counter, requested, l1, l2, reason, 0, l3=l3)
        self._counts(counter)["bytes_read"] += bytes_read

    def pin(self, instance: int) -> ModelLease | None:
        self._check()
        number = (instance & 0xFFFFFFFF) - 1
        if not 0 <= number < len(self._arena.entries):
            return None
        entry = self._arena.entries[number]
        if entry.generation & 1 or entry.instance != instance:
            return None
        lease = ModelLease(self, [(entry, entry.generation)], None, self._arena.view)
        self._give_way()
        lease.pin(0)
        lease.reason = int(MissReason.NONE)
        return lease if lease.pages else None

    def get(
        self,
        counter: int,
        keys: Any,
        destinations: Any,
        *,
        namespace: int,
        page_bytes: int,
        start: int = 0,
        lease_ns: int = 5_000_000_000,
        kernel: int = -1,
        instances: Any = None,
        may_load: bool = False,
    ) -> tuple[int, int, int]:
        asked = self._begin(counter, keys, start)
        pages, reason, instance = self._copy_out(
            keys, destinations, namespace=namespace, page_bytes=page_bytes, start=start, lease_ns=lease_ns,
            instances=instances, is_noted=True,
        )  # fmt: skip
        if not (may_load and reason == MissReason.ABSENT):
            self._count(counter, asked, start, pages, reason, page_bytes)
        return pages, reason, instance

    def complete_get(
        self,
        counter: int,
        keys: Any,
        destinations: Any,
        *,
        namespace: int,
        page_bytes: int,
        start: int = 0,
        lease_ns: int = 5_000_000_000,
        kernel: int = -1,
        instances: Any = None,
        l1: int | None = None,
        l3_from: int | None = None,
        reason: int = 0,
        may_await: bool = True,
    ) -> tuple[int, int, int]:
        asked = len(self._chain(keys, start))
        pages, ended, instance = self._copy_out(
            keys, destinations, namespace=namespace, page_bytes=page_bytes, start=start, lease_ns=lease_ns,
            instances=instances, may_await=may_await,
        )  # fmt: skip
        served, end = start if l1 is None else l1, start + pages
        l3 = end - max(start, end if l3_from is None else min(l3_from, end))
        if ended == MissReason.ABSENT and reason:
            ended = reason
        self._check_under_way(counter, asked)
        self._count(counter, asked, served, end - served - l3, ended, page_bytes, l3=l3)
        return pages, ended, instance

    def _copy_out(
        self,
        keys: Any,
        destinations: Any,
        *,
        namespace: int,
        page_bytes: int,
        start: int,
        lease_ns: int,
        instances: Any,
        may_await: bool = True,
        is_noted: bool = False,
    ) -> tuple[int, int, int]:
        lease = self._look_up(
            keys, start, namespace, lease_ns=lease_ns, may_await=may_await, is_noted=is_noted
        )
        pages, reason = lease.pages, lease.reason
        whole = memoryview(destinations).cast("B") if not isinstance(destinations, list) else None
        for index in range(pages):
            self._give_way()
            target = (
                whole[index * page_bytes : (index + 1) * page_bytes]
                if whole is not None
                else memoryview(destinations[index]).cast("B")
            )
            target[:] = bytes_of(lease._pages[index][0].place, page_bytes)
        if lease.still_there() < pages or (pages and self._arena.now_ns() >= lease.deadline_ns):
            pages, reason = 0, int(MissReason.LEASE_EXPIRED)
        lease.release()
        if instances is not None and pages:
            words = memoryview(instances).cast("B").cast("Q")
            if start:
                words[start - 1] = lease.stands_on
            words[start : start + pages] = memoryview(_packed(lease.instances()[:pages])).cast("B").cast("Q")
        return pages, reason, lease.instances()[pages - 1] if pages else 0

    def _begin(self, counter: int, keys: Any, start: int) -> int:
        """Count what is asked for."""
        asked = len(self._chain(keys, start))
        self._arena.asked += asked
        self._counts(counter)["begun"] += asked
        self._give_way()
        return asked

    def _look_up(
        self, keys: Any, start: int, namespace: int, *, lease_ns: int, may_await: bool = True, is_noted: bool = False
    ) -> ModelLease:  # fmt: skip
        chain = self._chain(keys, start)
        lease = self._pin(chain, start, namespace, lease_ns, is_noted=is_noted)
        while may_await and self._await(chain, start + lease.pages, lease.reason):
            lease.release()
            lease = self._pin(chain, start, namespace, lease_ns, is_noted=is_noted)
        if is_noted:
            note(self._arena, self._row, chain, start, lease)
        return lease

    def _pin(
        self, chain: list[bytes], start: int, namespace: int, lease_ns: int, *, is_noted: bool
    ) -> ModelLease:
        lease, reason = ModelLease(self, [], None, 0), MissReason.RACED
        for _ in range(ATTEMPTS):
            if self._arena.closed:
                reason = MissReason.CLOSED
                break
            freshness_ns = self._arena.freshness_ns  # F first, then the view (rule R16)
            self._give_way()
            view = self._arena.view
            found, parent = self._walk(chain, start, namespace)
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
            lease.touch(now_ns, lease_ns, is_noted=is_noted)
            reason = _reason(cut, pages, len(chain) - start)
            break
        lease.reason = int(reason)
        return lease

    def _walk(self, chain: list[bytes], start: int, namespace: int) -> tuple[list[Found], Found | None]:
        """Visible pages of chain[start:], each on the one just before; and the page below the first.

        The first one tells of which namespace all are.
        """
        found: list[Found] = []
        parent: Found | None = None
        for key in chain[start:]:
            self._give_way()
            entry = self._arena.index.get(key)
            if entry is None or entry.generation & 1 or (not found and entry.namespace_slot != namespace):
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
        self._arena.asked += requested
        self._counts(counter)["begun"] += requested
        self._count(counter, requested, l1, 0, reason, 0)

    def _counts(self, counter: int) -> Counter[str]:
        return self._row.counts.setdefault(counter, Counter())

    def _check_under_way(self, counter: int, pages: int) -> None:
        counts = self._counts(counter)
        if counts["begun"] - counts["requested"] < pages:
            raise ValueError("no look-up of so many pages is under way")

    def _count(
        self, counter: int, wanted: int, start: int, pages: int, reason: int, page_bytes: int, *, l3: int = 0
    ) -> None:
        counts = self._counts(counter)
        self._give_way()
        counts.update(
            {
                "requested": wanted,
                "l1": start,
                "l2": pages,
                "l3": l3,
                f"miss_{int(reason)}": wanted - start - pages - l3,
                "look_ups": 1,
                "bytes_read": (pages + l3) * page_bytes,
            }
        )

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
                place[half] = int.from_bytes(words[begin : begin + BYTES_OF_WORD], "little")
        self._counts(counter)["bytes_written"] += len(offsets) * page_bytes

    def slot(self, offset: int, size: int) -> memoryview:
        """See cache_l2._native.Reader.slot."""
        self._check()
        place = memoryview(self._arena.entries[offset].place).cast("B")
        assert size == len(place), "a simulated page has two words"
        return place

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


def _packed(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def _cut_expired(found: list[Found], now_ns: int) -> tuple[int, MissReason]:
    for index, (entry, _) in enumerate(found):
        if entry.expiry_s and entry.expiry_s <= now_ns // 1_000_000_000:
            return index, MissReason.EXPIRED
    return len(found), MissReason.ABSENT


def _reason(cut: MissReason, pages: int, wanted: int) -> MissReason:
    return MissReason.NONE if pages == wanted and cut is MissReason.ABSENT else cut
