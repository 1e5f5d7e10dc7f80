"""Eviction of the native core against an independent model: tails first, least recently used, prefix-closed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_l2._native import Lease
from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import NativeArena, chain, now_ns, payload

STORED = (PutStatus.STORED, RefuseReason.NONE)
KNOWN = (PutStatus.KNOWN, RefuseReason.NONE)
FULL = (PutStatus.REFUSED, RefuseReason.FULL)
SLOTS = 16
SEGMENT = 64 * 1024
BIG = 65_536  # one page a segment: 16 slots in an arena of 1 MiB
CHAINS = [chain(f"{root}/{leaf}", 10) for root in "ab" for leaf in "uvwxyz"]
CHAIN_NUMBERS = st.integers(0, len(CHAINS) - 1)


def test_c12_a_long_chain_put_piecewise_into_a_full_store_keeps_its_head() -> None:
    world = NativeArena(slots=256)
    for number in range(256):
        world.put(chain(f"old{number}", 1))
    keys = chain("long", 700)
    for begin in range(0, 700, 88):
        part = keys[begin : begin + 88]
        world.put(part, parent=keys[begin - 1] if begin else None)
        resident = world.resident(keys)
        assert resident >= min(begin + 88, 256) - 1
        assert world.arena.statistics()["entries_visible"] >= resident
        world.arena.check_invariants()
    assert world.resident(keys) == 256


def test_c32_700_pages_at_once_keep_their_head() -> None:
    world = NativeArena(slots=256)
    keys = chain("long", 700)
    outcomes = world.put(keys)
    assert outcomes == [STORED] * 256 + [FULL] * 444
    assert world.resident(keys) == 256
    other = chain("other", 100)
    assert world.put(other) == [STORED] * 100
    assert world.resident(keys) == 156, "tails go first"
    assert world.put(keys) == [KNOWN] * 156 + [STORED] * 100 + [FULL] * 444
    assert (world.resident(keys), world.resident(other)) == (256, 0)


def test_the_table_of_entries_evicts_across_sizes() -> None:
    world = NativeArena(slots=512, entries=20)
    small, large = chain("small", 10), chain("large", 10)
    world.put(small)
    world.put(large, page_bytes=8192)
    assert world.put(chain("new", 3)) == [STORED] * 3
    assert (world.resident(small), world.resident(large)) == (7, 10), (
        "the oldest leaves go, whatever their size"
    )
    world.arena.check_invariants()


def test_segments_move_to_the_class_that_has_none() -> None:
    world = NativeArena(slots=256)
    small = [chain(f"s{i}", 1) for i in range(256)]
    for one in small:
        world.put(one)
    world.reader.lease(
        0, small[0][0], namespace=1
    ).release()  # the coldest segment is not the first one any more
    large = chain("large", 3)
    assert world.put(large, page_bytes=12_288) == [STORED] * 3
    statistics = world.arena.statistics()
    assert (statistics["evictions_segment"], statistics["evictions_capacity"]) == (16, 0)
    assert world.resident(small[0]) == 1
    assert sum(world.resident(one) for one in small) == 240
    world.arena.check_invariants()


def test_a_segment_with_a_leased_page_is_not_taken() -> None:
    world = NativeArena(slots=256)
    small = [chain(f"s{i}", 1) for i in range(256)]
    for one in small:
        world.put(one)
    leases = [world.reader.lease(0, small[i][0], namespace=1) for i in range(0, 256, 16)]
    assert world.put(chain("large", 1), page_bytes=12_288) == [FULL]
    leases[3].release()
    assert world.put(chain("large", 1), page_bytes=12_288) == [STORED]
    assert [bytes(lease[0]) for lease in leases[:3]] == [payload(small[i][0]) for i in range(0, 48, 16)]
    world.arena.check_invariants()


def test_a_busy_class_outgrows_a_cold_one() -> None:
    world = NativeArena(slots=256)
    for number in range(240):
        world.put(chain(f"cold{number}", 1))
    before = world.arena.statistics()
    assert before["segments_free"] == 1
    for number in range(200):
        assert world.put(chain(f"busy{number}", 1), page_bytes=8192) == [STORED]
    assert world.arena.statistics()["evictions_segment"] >= 100
    assert sum(world.resident(chain(f"busy{number}", 1)) for number in range(100, 200)) >= 56
    world.arena.check_invariants()


def test_equal_access_times_go_by_the_lowest_entry() -> None:
    world = NativeArena(slots=256)
    singles = [chain(f"s{i}", 1) for i in range(256)]
    ids = [world.reserve(one, now=5)[0].reservation for one in singles]
    assert world.commit(ids[::-1], now=5) == [STORED] * 256
    order = sorted(range(256), key=lambda i: ids[i] & 0xFFFF_FFFF)
    for step in range(0, 256, 16):
        new = [chain(f"new{step}-{i}", 1) for i in range(16)]
        for one in new:
            assert world.put(one) == [STORED]
        assert [world.resident(singles[i]) for i in order] == [0] * (step + 16) + [1] * (240 - step)


def test_a_read_page_outlives_an_older_unread_one() -> None:
    world = NativeArena(slots=256)
    singles = [chain(f"s{i}", 1) for i in range(256)]
    for one in singles:
        world.put(one)
    for one in singles[:255]:
        world.reader.lease(0, one[0], namespace=1).release()
    assert world.put(chain("new", 1)) == [STORED]
    assert [world.resident(one) for one in singles] == [1] * 255 + [0]
    assert world.put(chain("newer", 1)) == [STORED]
    assert world.resident(singles[0]) == 0


def test_no_eviction_looks_at_all_pages_that_were_read_without_a_note_that_came_through() -> None:
    """It takes what seems to be the coldest; a few later all have been looked at, and it is the coldest of all again."""
    pages, looks, noted = 6144, 2048, 1024
    world = NativeArena(slots=pages, segment_bytes=1 << 20, entries=pages)
    singles = [chain(f"s{i}", 1) for i in range(pages)]
    for one in singles:
        world.put(one)
    for one in reversed(singles):  # so that what was stored last is what was read first
        world.reader.lease(0, one[0], namespace=1).release()

    for number in range(4):
        assert world.put(chain(f"new{number}", 1)) == [STORED]
    gone = [number for number, one in enumerate(singles) if not world.resident(one)]
    assert gone == [noted + looks, noted + 2 * looks + 1, pages - 2, pages - 1]
    assert world.arena.statistics()["notes_lost"] == pages - noted
    world.arena.check_invariants()


@dataclass
class ModelPage:
    """What the naive model knows of a resident page."""

    parent: bytes | None
    touched: int
    handle: int
    mortal: bool = False
    children: set[bytes] = field(default_factory=set)


class NaiveStore:
    """Pages by key, with the plainest eviction that keeps the promise: scan everything, take the coldest leaf."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.pages: dict[bytes, ModelPage] = {}
        self.leased: dict[int, list[tuple[bytes, int]]] = {}  # lease -> (key, birth of the page)
        self.ghosts: list[tuple[bytes, int]] = []  # hidden but leased
        self.time = 0

    def is_leased(self, page: tuple[bytes, int]) -> bool:
        return any(page in pages for pages in self.leased.values())

    def free_slots(self) -> int:
        return self.slots - len(self.pages) - len(self.ghosts)

    def drop(self, key: bytes) -> None:
        page = self.pages[key]
        for child in list(page.children):
            self.drop(child)
        if page.parent is not None:
            self.pages[page.parent].children.discard(key)
        del self.pages[key]
        if self.is_leased((key, page.handle)):
            self.ghosts.append((key, page.handle))

    def reclaim(self) -> None:
        self.ghosts = [ghost for ghost in self.ghosts if self.is_leased(ghost)]

    def evict(self, pages: int, *, keep: bytes | None) -> None:
        for _ in range(pages):
            leaves = [
                (page.touched, page.handle, key)
                for key, page in self.pages.items()
                if not page.children and key != keep and not self.is_leased((key, page.handle))
            ]
            if not leaves:
                return
            self.drop(min(leaves)[2])

    def put(self, keys: list[bytes], *, mortal: bool) -> list[tuple[int, int]]:
        """Outcomes of a put; handles of new pages are filled in afterwards."""
        self.time += 1
        outcomes: list[tuple[int, int]] = []
        missing = sum(key not in self.pages for key in keys)
        parent: bytes | None = None
        for key in keys:
            if outcomes and outcomes[-1] == FULL:
                outcomes.append(FULL)
                continue
            if key in self.pages:
                self.pages[key].touched = self.time
                outcomes.append(KNOWN)
            else:
                if self.free_slots() == 0:
                    self.reclaim()
                if self.free_slots() == 0:
                    self.evict(missing, keep=parent)
                if self.free_slots() == 0:
                    outcomes.append(FULL)
                    continue
                # Handles of pages being put are unknown yet and never compared: they are ancestors or the tail.
                self.pages[key] = ModelPage(parent=parent, touched=self.time + 1, handle=-1, mortal=mortal)
                if parent is not None:
                    self.pages[parent].children.add(key)
                missing -= 1
                outcomes.append(STORED)
            parent = key
        self.time += 1
        return outcomes


class EvictionMachine(RuleBasedStateMachine):
    """Puts, leases, releases, invalidations and expiries in any order, natively and naively."""

    @initialize()
    def begin(self) -> None:
        self.world = NativeArena(
            slots=SLOTS, page_bytes=BIG, segment_bytes=SEGMENT, entries=64, leases_per_row=64
        )
        self.model = NaiveStore(SLOTS)
        self.leases: dict[int, tuple[Lease, list[bytes]]] = {}
        self.number = 0

    @rule(number=CHAIN_NUMBERS, depth=st.integers(1, 10), mortal=st.booleans())
    def put(self, number: int, depth: int, mortal: bool) -> None:
        which = CHAINS[number]
        expiry_s = now_ns() // 10**9 + 10_000 if mortal else 0
        expected = self.model.put(which[:depth], mortal=mortal)
        assert self.world.put(which[:depth], expiry_s=expiry_s) == expected
        for key in which[:depth]:
            page = self.model.pages.get(key)
            if page is not None and page.handle == -1:
                found = self.world.arena.find(key)
                assert found is not None
                assert isinstance(found["entry"], int)
                page.handle = found["entry"]

    def look(self, keys: list[bytes]) -> tuple[Lease, list[bytes]]:
        """A lease and the keys it holds, in the arena and in the model's access times."""
        lease = self.world.reader.lease(0, b"".join(keys), namespace=1)
        held = keys[: lease.pages]
        assert held == [key for key in keys if key in self.model.pages]
        self.model.time += 1
        for key in held:
            self.model.pages[key].touched = self.model.time
        return lease, held

    @rule(number=CHAIN_NUMBERS, depth=st.integers(1, 10))
    def touch(self, number: int, depth: int) -> None:
        self.look(CHAINS[number][:depth])[0].release()

    @precondition(lambda self: len(self.leases) < 4)
    @rule(number=CHAIN_NUMBERS, depth=st.integers(1, 10))
    def lease(self, number: int, depth: int) -> None:
        lease, held = self.look(CHAINS[number][:depth])
        self.number += 1
        self.model.leased[self.number] = [(key, self.model.pages[key].handle) for key in held]
        self.leases[self.number] = (lease, held)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.leases)))
        lease, held = self.leases.pop(number)
        assert [bytes(view) for view in lease] == [payload(key, BIG) for key in held]
        lease.release()
        del self.model.leased[number]

    @rule(number=CHAIN_NUMBERS, depth=st.integers(0, 9))
    def hide(self, number: int, depth: int) -> None:
        which = CHAINS[number]
        before = len(self.model.pages)
        if which[depth] in self.model.pages:
            self.model.drop(which[depth])
        assert self.world.hide(which[depth]) == before - len(self.model.pages)
        self.model.reclaim()

    @rule()
    def expire(self) -> None:
        before = len(self.model.pages)
        for key in [key for key, page in self.model.pages.items() if page.mortal]:
            if key in self.model.pages:
                self.model.drop(key)
        hidden = self.world.arena.expire(now_ns() + 20_000 * 10**9)
        assert hidden == before - len(self.model.pages)
        self.model.reclaim()

    @invariant()
    def the_same_pages_are_resident(self) -> None:
        if not hasattr(self, "world"):
            return
        for which in CHAINS:
            in_model = [key for key in which if key in self.model.pages]
            assert which[: len(in_model)] == in_model, "the model itself has a hole"
            assert self.world.resident(which) == len(in_model)
        assert self.world.arena.statistics()["entries_visible"] == len(self.model.pages)
        self.world.arena.check_invariants()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.leases.clear()
            self.world.reader.close()
            self.world.arena.close()


TestEvictionAgainstTheModel = EvictionMachine.TestCase
TestEvictionAgainstTheModel.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEvictionAgainstTheModel = pytest.mark.timeout(120)(TestEvictionAgainstTheModel)
