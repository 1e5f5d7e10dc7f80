"""One hazard for a whole chain: what it pins however its pages are hidden, evicted, looked at and let go, beside a naive twin."""

from __future__ import annotations

import mmap
import os
import random
import struct
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from cache_l2._native import Lease, Reader
from kv_types.outcomes import MissReason, PutStatus, RefuseReason
from tests.cache_l2.test_native_processes import kill, line_of, start
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns, payload

STORED = (PutStatus.STORED, RefuseReason.NONE)
VIEW, COPY = 1, 2
PAGES_MOST = (1 << 30) - 1


def leased(world: NativeArena) -> int:
    """Pages that are leased, each as often as it is, over all rows."""
    return sum(world.arena.row_statistics(row)["leases"] for row in range(world.rows))


def hidden(world: NativeArena) -> int:
    """Hidden pages that are still there."""
    world.arena.expire(now_ns())
    return world.arena.statistics()["entries_hidden_leased"]


def test_a_chain_costs_one_lease_and_pins_all_its_pages() -> None:
    world = NativeArena(slots=256)
    keys = chain("a", 100)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1, start=20)
    assert (lease.pages, world.reader.held(), leased(world)) == (80, 1, 80)
    world.hide(keys[90])
    world.hide(keys[50])
    world.hide(keys[0])
    assert hidden(world) == 80, "those below the lease are free"
    for number in range(40):
        world.put(chain(f"filler{number}", 8))
    assert [bytes(view) for view in lease] == [payload(key) for key in keys[20:]]
    lease.release()
    assert (hidden(world), leased(world)) == (0, 0)
    world.arena.check_invariants()


def test_a_released_lease_keeps_the_pages_between_those_that_are_looked_at() -> None:
    world = NativeArena(slots=64)
    keys = chain("a", 10)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    arrays = {index: np.frombuffer(lease[index], dtype=np.uint8) for index in (2, 4, 7)}
    lease.release()
    world.hide(keys[0])
    assert hidden(world) == 6
    for number in range(30):
        world.put(chain(f"filler{number}", 4))
    for gone, left in ((4, 6), (7, 1), (2, 0)):
        assert {index: array.tobytes() for index, array in arrays.items()} == {
            index: payload(keys[index]) for index in arrays
        }
        del arrays[gone]
        assert hidden(world) == left
    world.arena.check_invariants()


def test_what_is_leased_is_not_evicted_while_there_is_room_elsewhere() -> None:
    world = NativeArena(slots=256)
    keys, other = chain("a", 100), chain("b", 156)
    world.put(keys)
    world.put(other)
    with world.reader.lease(0, b"".join(keys), namespace=1):
        assert [status for status, _ in world.put(chain("new", 156))] == [PutStatus.STORED] * 156
        assert (world.resident(keys), world.resident(other)) == (100, 0)
        assert world.put(chain("more", 1))[0] == STORED
        assert world.resident(keys) == 100
    assert world.put(chain("last", 250))[-1] == STORED
    assert world.resident(keys) < 100


def test_a_leaf_stays_whose_hidden_children_are_leased() -> None:
    """Hiding it would free nothing: the lease of what stood on it covers it, too."""
    world = NativeArena(slots=256)
    keys = chain("a", 3)
    world.put(keys)
    for number in range(253):
        world.put(chain(f"single{number}", 1))
    with world.reader.lease(0, b"".join(keys), namespace=1):
        world.hide(keys[1])
        assert [status for status, _ in world.put(chain("new", 200))] == [PutStatus.STORED] * 200
        assert (hidden(world), world.resident(keys)) == (2, 1)
    assert hidden(world) == 0


def test_pages_whose_time_is_over_leave_the_cover() -> None:
    world = NativeArena(slots=64)
    keys, second = chain("a", 6), now_ns() // 10**9
    world.put(keys[:2])
    reservations = world.reserve(keys[2:], parent=keys[1], expiry_s=second)
    world.commit([one.reservation for one in reservations])
    with world.reader.lease(0, b"".join(keys), namespace=1) as lease:
        assert (lease.pages, lease.reason, leased(world)) == (2, MissReason.EXPIRED, 2)
        world.hide(keys[0])
        assert hidden(world) == 2
        assert [bytes(view) for view in lease] == [payload(key) for key in keys[:2]]
    assert hidden(world) == 0


def test_leases_of_long_chains_end_with_a_killed_process() -> None:
    world = NativeArena(slots=512, leases_per_row=4096)
    chains = [chain(f"c{number}/{number}", 100) for number in range(4)]
    for one in chains:
        world.put(one)
    row = world.arena.open_row(1)
    child = start(world, row, "hoard", chains, look_ups=2000)
    assert line_of(child) == "2000"
    assert world.arena.row_statistics(row)["leases"] == 200_000
    assert world.arena.statistics()["leased_bytes"] == 400 * PAGE
    assert (world.arena.find(chains[1][50]) or {})["leases"] == 500
    for one in chains:
        world.hide(one[10])
    assert world.put(chain("new", 200))[-1] == (PutStatus.REFUSED, RefuseReason.FULL)
    kill(child)
    assert hidden(world) == 360
    world.arena.end_row(row)
    assert hidden(world) == 0
    assert world.put(chain("new", 200))[-1] == STORED
    world.arena.check_invariants()


# --- what hostile clients write ---


def cover(kind: int, pages: int, entry: int) -> int:
    return kind << 62 | pages << 32 | (entry + 1)


def write_row(world: NativeArena, row: int, words: list[int], key: bytes) -> list[Lease]:
    """Write hazards into a row, over those of leases on the page under `key`, as its client could; these must be kept."""
    reader = world.attach(row, writable=False)
    leases = [reader.lease(0, key, namespace=1) for _ in words]
    instance = world.arena.instance(key)
    assert instance is not None
    descriptors = world.arena.duplicate_descriptors(writable=False)
    with mmap.mmap(descriptors[1], world.arena.geometry["clients_bytes"]) as clients:
        written = struct.pack("<QQ", cover(VIEW, 1, (instance & 0xFFFFFFFF) - 1), 0)
        first = clients.find(written * len(words))
        assert first > 0
        for number, word in enumerate(words):
            struct.pack_into("<QQ", clients, first + 16 * number, word, 0)
    for descriptor in descriptors:
        os.close(descriptor)
    return leases


def entry_of(world: NativeArena, key: bytes) -> int:
    instance = world.arena.instance(key)
    assert instance is not None
    return (instance & 0xFFFFFFFF) - 1


@pytest.mark.parametrize("kind", [0, VIEW, COPY, 3])
def test_garbage_in_a_cover_holds_no_more_than_there_is(kind: int) -> None:
    world = NativeArena(slots=256)
    keys, other = chain("a", 60), chain("b", 5)
    world.put(keys)
    world.put(other)
    row = world.arena.open_row(1)
    tail, middle = entry_of(world, keys[-1]), entry_of(world, keys[30])
    words = [cover(kind, pages, entry) for pages in (0, 1, 7, PAGES_MOST) for entry in (tail, middle)]
    words += [cover(kind, PAGES_MOST, entry) for entry in (world.entries, world.entries - 1, 2**32 - 2)]
    _kept = write_row(world, row, words, keys[0])
    statistics = world.arena.row_statistics(row)
    if kind == COPY:
        assert statistics["leases"] == 0, "their time is over"
    else:
        assert statistics["leases"] == 2 * (1 + 1 + 7) + 60 + 31 + 1
        assert world.arena.statistics()["leased_bytes"] == 60 * PAGE
    with world.reader.lease(0, b"".join(other), namespace=1) as lease:
        world.hide(keys[0])
        world.hide(other[0])
        assert hidden(world) == (5 if kind == COPY else 65)
        for number in range(60):
            world.put(chain(f"filler{number}", 4))
        assert [bytes(view) for view in lease] == [payload(key) for key in other]
    world.arena.end_row(row)
    assert hidden(world) == 0
    world.arena.check_invariants()


def test_a_cover_of_a_page_that_is_gone_holds_what_took_its_entry_and_nothing_else() -> None:
    """As of a reader that was slow between its walk and its hazard: it looks again, and finds that nothing is pinned."""
    world = NativeArena(slots=64, entries=64)
    keys = chain("a", 5)
    world.put(keys)
    row = world.arena.open_row(1)
    gone = entry_of(world, keys[4])
    world.hide(keys[4])
    assert world.put(chain("b", 1)) == [STORED]
    assert entry_of(world, chain("b", 1)[0]) == gone
    _kept = write_row(world, row, [cover(VIEW, 5, gone)], keys[0])
    world.hide(keys[0])
    assert hidden(world) == 0
    world.hide(chain("b", 1)[0])
    assert hidden(world) == 1
    world.arena.end_row(row)
    assert hidden(world) == 0


# --- beside a naive twin ---


@dataclass
class Holding:
    """One lease of the twin: the pages that it found, and the views of them that are out."""

    reader: int
    lease: Lease
    keys: list[bytes]
    instances: list[int]
    views: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    is_released: bool = False

    def pinned(self) -> list[int]:
        """What must stay: everything until the release, then from the first to the last page with a view."""
        if not self.is_released:
            return self.instances
        return self.instances[min(self.views) : max(self.views) + 1] if self.views else []


class Twin:
    """Two clients that lease and look at chains of one tree while its pages come and go."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = NativeArena(slots=256, entries=256, leases_per_row=64)
        self.rows = [self.world.row, self.world.arena.open_row(2)]
        self.readers: list[Reader] = [self.world.reader, self.world.attach(self.rows[1])]
        self.chains = [chain(f"t{root}/{leaf}", 24) for root in range(3) for leaf in range(4)]
        self.holdings: list[Holding] = []
        self.fillers = 0

    def step(self) -> None:
        """One thing that happens."""
        what = self.random.choice("ppplllvvvrrdddhe")
        {"p": self.put, "l": self.lease, "v": self.view, "r": self.release, "d": self.drop, "h": self.hide, "e": self.evict}[
            what
        ]()  # fmt: skip

    def put(self) -> None:
        keys = self.random.choice(self.chains)
        self.world.put(keys[: self.random.randint(1, len(keys))])

    def lease(self) -> None:
        if len(self.holdings) >= 40:
            return
        keys = self.random.choice(self.chains)
        keys = keys[: self.random.randint(1, len(keys))]
        start = self.random.choice([0, 0, self.random.randrange(len(keys))])
        reader = self.random.randrange(2)
        lease = self.readers[reader].lease(0, b"".join(keys), namespace=1, start=start)
        assert lease.pages <= len(keys) - start
        if lease.pages:
            self.holdings.append(Holding(reader, lease, keys[start:], lease.instances()))

    def view(self) -> None:
        held = [one for one in self.holdings if not one.is_released]
        if held:
            one = self.random.choice(held)
            index = self.random.randrange(len(one.instances))
            one.views.setdefault(index, np.frombuffer(one.lease[index], dtype=np.uint8))

    def release(self) -> None:
        if self.holdings:
            one = self.random.choice(self.holdings)
            one.lease.release()
            one.is_released = True

    def drop(self) -> None:
        viewed = [one for one in self.holdings if one.views]
        if viewed:
            one = self.random.choice(viewed)
            del one.views[self.random.choice(list(one.views))]

    def hide(self) -> None:
        self.world.hide(self.random.choice(self.random.choice(self.chains)))

    def evict(self) -> None:
        self.fillers += 1
        self.world.put(chain(f"filler{self.fillers}", self.random.randint(1, 60)))

    def check(self) -> None:
        """Everything that can be asked of leases, against what the holdings say."""
        arena = self.world.arena
        arena.expire(now_ns())
        self.holdings = [one for one in self.holdings if one.pinned()]
        visible = {arena.instance(key): key for keys in self.chains for key in keys}
        pinned = [instance for one in self.holdings for instance in one.pinned()]
        for reader, row in enumerate(self.rows):
            own = [one for one in self.holdings if one.reader == reader]
            figures = arena.row_statistics(row)
            assert self.readers[reader].held() == len(own)
            assert figures["leases"] == sum(len(one.pinned()) for one in own)
            assert figures["leased_bytes"] == figures["leases"] * PAGE
            is_hidden = any(instance not in visible for one in own for instance in one.pinned())
            assert (figures["oldest_hidden_view"] != 0) == is_hidden
        statistics = arena.statistics()
        assert statistics["entries_hidden_leased"] == len({one for one in pinned if one not in visible})
        assert statistics["leased_bytes"] == len(set(pinned)) * PAGE
        for instance in set(pinned) & set(visible):
            assert (arena.find(visible[instance]) or {})["leases"] == pinned.count(instance)
        for one in self.holdings:
            for index, array in one.views.items():
                assert array.tobytes() == payload(one.keys[index])
        arena.check_invariants()

    def end(self) -> None:
        """Let go of everything: nothing hidden is left."""
        for one in self.holdings:
            one.lease.release()
            one.is_released = True
            one.views.clear()
        self.check()
        assert self.world.arena.statistics()["entries_hidden_leased"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_chains_beside_a_twin_that_counts_every_page(seed: int) -> None:
    twin = Twin(seed)
    for _ in range(400):
        twin.step()
        twin.check()
    twin.end()
