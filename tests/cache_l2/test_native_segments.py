"""Segments that move between size classes: nothing that is held keeps one for good, and no call gives up too much."""

from __future__ import annotations

import time

from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import NativeArena, chain, now_ns, payload

STORED = (PutStatus.STORED, RefuseReason.NONE)
FULL = (PutStatus.REFUSED, RefuseReason.FULL)
LARGE = 12_288
SLOTS = 16  # of a segment of small pages
SECOND_NS = 1_000_000_000


def full_of_small() -> tuple[NativeArena, list[bytes]]:
    """An arena of 16 segments, each with 16 small pages of their own."""
    world = NativeArena(slots=256)
    keys = [chain(f"s{number}", 1)[0] for number in range(256)]
    for key in keys:
        assert world.put([key]) == [STORED]
    return world, keys


def test_leases_that_relieve_each_other_keep_no_segment() -> None:
    """At any time each segment has a leased page; one that is to be vacated gets no new leases."""
    world, keys = full_of_small()
    leases = [world.reader.lease(0, key, namespace=1) for key in keys[::SLOTS]]
    large = chain("large", 1)
    assert world.put(large, page_bytes=LARGE) == [FULL]
    for turn in range(1, SLOTS):
        later = [world.reader.lease(0, key, namespace=1) for key in keys[turn::SLOTS]]
        for lease in leases:
            lease.release()
        leases = later
        if world.put(large, page_bytes=LARGE) == [STORED]:
            break
    assert turn == 1
    assert world.arena.statistics()["segments_moved"] == 1
    for lease, key in zip(leases, keys[1::SLOTS], strict=True):
        assert lease.pages == 0 or bytes(lease[0]) == payload(key)
    world.arena.check_invariants()


def test_a_reservation_keeps_a_segment_until_it_ends() -> None:
    world = NativeArena(slots=256)
    held = []
    for segment in range(16):
        held += world.reserve(chain(f"held{segment}", 1))
        for number in range(SLOTS - 1):
            assert world.put(chain(f"s{segment}-{number}", 1)) == [STORED]
    large = chain("large", 1)
    assert world.put(large, page_bytes=LARGE) == [FULL]
    assert world.commit([one.reservation for one in held]) == [STORED] * 16
    assert world.put(large, page_bytes=LARGE) == [STORED]
    world.arena.check_invariants()


def test_a_segment_that_is_held_for_too_long_is_given_back_to_its_class() -> None:
    world, keys = full_of_small()
    leases = [world.reader.lease(0, key, namespace=1) for key in keys[::SLOTS]]
    large, later_ns = chain("large", 1), now_ns() + 11 * SECOND_NS
    assert world.put(large, page_bytes=LARGE) == [FULL]
    resident = sum(world.resident([key]) for key in keys)
    assert resident == 256 - SLOTS, "what was in it is gone, leased or not"
    (answer,) = world.reserve(large, page_bytes=LARGE, now=later_ns)
    assert answer.reason == RefuseReason.FULL
    world.arena.check_invariants()
    for number in range(SLOTS - 1):
        assert world.put(chain(f"new{number}", 1)) == [STORED]
    assert [bytes(lease[0]) for lease in leases] == [payload(key) for key in keys[::SLOTS]]


def test_all_segments_of_a_class_come_back_when_it_is_no_longer_used() -> None:
    world, keys = full_of_small()
    for number in range(400):
        assert world.put(chain(f"large{number}", 1), page_bytes=LARGE) == [STORED]
    assert sum(world.resident([key]) for key in keys) <= SLOTS
    for number in range(800):
        assert world.put(chain(f"again{number}", 1)) == [STORED]
    assert sum(world.resident(chain(f"large{number}", 1)) for number in range(400)) <= 5
    world.arena.check_invariants()


def test_a_new_size_is_stored_at_once_where_nobody_holds_anything() -> None:
    """A segment of the smallest pages has more of them than one call gives up elsewhere."""
    world = NativeArena(slots=3 * 16_384, segment_bytes=64 << 20, entries=50_000)
    for number in range(3 * 16_384 // 64):
        rows = world.reserve(chain(f"chain{number}", 64))
        world.commit([row.reservation for row in rows])
    assert world.arena.statistics()["segments_free"] == 0
    (outcome,) = world.reserve(chain("large", 1), page_bytes=1 << 20)
    assert outcome.status == PutStatus.STORED
    assert world.arena.statistics()["entries_visible"] == 2 * 16_384
    world.arena.check_invariants()


def test_what_hangs_on_one_segment_goes_in_bounded_steps() -> None:
    """All pages stand on the first segment's one: giving it away would empty the arena, so another one goes."""
    world = NativeArena(slots=16 * 1024, segment_bytes=1 << 22, entries=20_000)
    root = chain("root", 1)
    world.put(root)
    keys = [chain(f"child{number}", 5)[4] for number in range(16 * 1024 - 1)]
    for at in range(0, len(keys), 1024):
        for key in keys[at : at + 1024]:
            (answer,) = world.reserve([key], parent=root[0])
            world.commit([answer.reservation])
    before = world.arena.statistics()["entries_visible"]
    assert world.put(chain("large", 1), page_bytes=LARGE) == [STORED]
    gone = before + 1 - world.arena.statistics()["entries_visible"]
    assert gone == 1024
    assert world.resident(root) == 1
    world.arena.check_invariants()


def test_a_long_chain_on_which_a_put_is_under_way_holds_up_no_call_and_goes_when_that_ends() -> None:
    world = NativeArena(slots=16_384, segment_bytes=64 << 20, entries=32_768)
    keys = chain("long", 16_383)
    for begin in range(0, len(keys), 1024):
        world.put(keys[begin : begin + 1024], parent=keys[begin - 1] if begin else None)
    (held,) = world.reserve(chain("next", 1), parent=keys[-1])
    spent_s = []
    for number in range(3):
        began_s = time.perf_counter()
        (answer,) = world.reserve(chain(f"large{number}", 1), page_bytes=1 << 20)
        spent_s.append(time.perf_counter() - began_s)
        assert answer.reason == RefuseReason.FULL
    assert min(spent_s) < 0.1, "each page's whole chain was looked at, again and again"
    world.arena.abort(row=world.row, reservations=[held.reservation])
    reasons = [world.reserve(chain("large", 1), page_bytes=1 << 20)[0].reason for _ in range(8)]
    assert RefuseReason.NONE in reasons
    world.arena.check_invariants()
