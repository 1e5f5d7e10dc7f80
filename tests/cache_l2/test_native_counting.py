"""Look-ups that wait for a load are counted once, when it is over; and single pages are pinned uncounted."""

from __future__ import annotations

from array import array

import pytest

from kv_types.outcomes import MissReason
from kv_types.validity import UNKNOWN_INSTANCE
from tests.support.native_arena import FAR_NS, PAGE, NativeArena, chain, payload, selection

ABSENT, NO_ROOM, NONE = int(MissReason.ABSENT), int(MissReason.NO_ROOM), int(MissReason.NONE)


def joined(keys: list[bytes]) -> bytes:
    return b"".join(keys)


def told(world: NativeArena) -> dict[str, int]:
    """The counters of look-ups that are not zero."""
    return {name: count for name, count in world.counts().items() if count and name != "bytes_written"}


def instances(world: NativeArena, keys: list[bytes]) -> list[int]:
    with world.reader.lease(1, joined(keys), namespace=1) as lease:
        return lease.instances()


def test_a_look_up_that_ends_short_is_counted_when_it_is_completed() -> None:
    world = NativeArena()
    keys = chain("a", 10)
    world.put(keys[:3])
    with world.reader.lease(0, joined(keys), may_load=True, namespace=1) as first:
        assert (first.pages, first.reason) == (3, ABSENT)
        assert told(world) == {"begun": 10}
    world.load(keys[3:7], range(1, 5), parent=keys[2])
    with world.reader.complete_lease(0, joined(keys), l3_from=3, reason=NO_ROOM, namespace=1) as lease:
        assert (lease.pages, lease.reason) == (7, NO_ROOM)
        assert [bytes(page) for page in lease] == [payload(key) for key in keys[:7]]
    assert told(world) == {
        "begun": 10, "requested": 10, "l2": 3, "l3": 4, f"miss_{NO_ROOM}": 3, "bytes_read": 7 * PAGE, "look_ups": 1,
    }  # fmt: skip
    assert world.reader.held() == 0


@pytest.mark.parametrize("may_load", [False, True])
def test_a_full_hit_is_counted_at_once(may_load: bool) -> None:
    world = NativeArena()
    keys = chain("a", 3)
    world.put(keys)
    world.reader.lease(0, joined(keys), may_load=may_load, namespace=1).release()
    world.reader.get(0, joined(keys), bytearray(3 * PAGE), page_bytes=PAGE, may_load=may_load, namespace=1)
    assert told(world) == {"begun": 6, "requested": 6, "l2": 6, "bytes_read": 6 * PAGE, "look_ups": 2}


def test_only_what_a_load_could_help_waits_for_one() -> None:
    """Stale, closed, raced or expired look-ups, and those without a lease to give, are over."""
    world = NativeArena(leases_per_row=1)
    keys = chain("a", 4)
    world.put(keys)
    held = world.reader.pin(world.arena.instance(keys[0]) or 0)
    assert world.reader.lease(0, joined(keys), may_load=True, namespace=1).reason == MissReason.LEASE_LIMIT
    assert held is not None
    held.release()
    world.arena.publish_freshness(1)
    assert world.reader.lease(0, joined(keys), may_load=True, namespace=1).reason == MissReason.STALE
    into = bytearray(4 * PAGE)
    assert (
        world.reader.get(0, joined(keys), into, page_bytes=PAGE, may_load=True, namespace=1)[1]
        == MissReason.STALE
    )
    world.arena.publish_freshness(FAR_NS)
    world.arena.close_header()
    assert world.reader.lease(0, joined(keys), may_load=True, namespace=1).reason == MissReason.CLOSED
    counts = world.counts()
    assert (counts["begun"], counts["requested"]) == (16, 16)


def test_a_get_is_completed_from_where_it_ended() -> None:
    world = NativeArena()
    keys = chain("a", 8)
    world.put(keys[:4])
    known = instances(world, keys[:4])
    into, words = bytearray(8 * PAGE), array("Q", [0] * 8)
    first = world.reader.get(
        0,
        joined(keys),
        memoryview(into)[: 7 * PAGE],
        page_bytes=PAGE,
        start=1,
        may_load=True,
        instances=words,
        namespace=1,
    )
    assert first == (3, ABSENT, known[3])
    assert told(world) == {"begun": 8}
    world.load(keys[4:6], [1, 2], parent=keys[3])
    second = world.reader.complete_get(
        0, joined(keys), memoryview(into)[3 * PAGE : 7 * PAGE], page_bytes=PAGE, start=4, l1=1, l3_from=4,
        reason=NO_ROOM, instances=words, namespace=1,
    )  # fmt: skip
    assert second[:2] == (2, NO_ROOM)
    assert bytes(into[: 5 * PAGE]) == b"".join(payload(key) for key in keys[1:6])
    assert words[:4].tolist() == known
    assert second[2] == words[5] != 0
    assert told(world) == {
        "begun": 8, "requested": 8, "l1": 1, "l2": 3, "l3": 2, f"miss_{NO_ROOM}": 2, "bytes_read": 5 * PAGE, "look_ups": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("l3_from", "l2", "l3"), [(None, 6, 0), (0, 0, 6), (2, 2, 4), (6, 6, 0), (99, 6, 0), (2**64 - 1, 6, 0)]
)
def test_what_counts_as_loaded(l3_from: int | None, l2: int, l3: int) -> None:
    world = NativeArena()
    keys = chain("a", 6)
    for _ in range(2):
        world.reader.lease(0, joined(keys), may_load=True, namespace=1).release()
    world.put(keys)
    world.reader.complete_lease(0, joined(keys), l3_from=l3_from, namespace=1).release()
    into = bytearray(6 * PAGE)
    assert (
        world.reader.complete_get(0, joined(keys), into, page_bytes=PAGE, l3_from=l3_from, namespace=1)[0]
        == 6
    )
    counts = world.counts()
    assert (counts["l2"], counts["l3"]) == (2 * l2, 2 * l3)


def test_the_reason_of_a_load_stands_for_what_is_still_absent_and_for_nothing_else() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    for _ in range(4):
        world.reader.lease(0, joined(keys), may_load=True, namespace=1).release()
    assert world.reader.complete_lease(0, joined(keys), reason=NO_ROOM, namespace=1).reason == NO_ROOM
    assert world.reader.complete_lease(0, joined(keys), namespace=1).reason == ABSENT, (
        "the load found no reason: it is gone again"
    )
    world.arena.publish_freshness(1)
    assert (
        world.reader.complete_lease(0, joined(keys), reason=NO_ROOM, namespace=1).reason == MissReason.STALE
    )
    world.arena.publish_freshness(FAR_NS)
    world.put(keys)
    assert world.reader.complete_lease(0, joined(keys), reason=NO_ROOM, namespace=1).reason == NONE
    counts = world.counts()
    assert (counts[f"miss_{NO_ROOM}"], counts[f"miss_{ABSENT}"], counts["miss_2"], counts["l2"]) == (
        4,
        4,
        4,
        4,
    )


def test_a_look_up_is_completed_with_what_its_first_phase_found() -> None:
    world = NativeArena()
    keys = chain("a", 6)
    world.put(keys[:2])
    lease = world.reader.lease(0, joined(keys), start=1, may_load=True, namespace=1)
    world.reader.complete(
        0, requested=6, l1=1, l2=lease.pages, reason=int(MissReason.L3_UNAVAILABLE), bytes_read=PAGE
    )
    assert told(world) == {
        "begun": 6, "requested": 6, "l1": 1, "l2": 1, "miss_16": 4, "bytes_read": PAGE, "look_ups": 1,
    }  # fmt: skip


def test_nothing_is_completed_that_was_not_begun() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    world.put(keys[:2])
    reader = world.reader
    into = bytearray(4 * PAGE)
    for more in (lambda: reader.complete_lease(0, joined(keys), reason=NO_ROOM, namespace=1),
                 lambda: reader.complete_get(0, joined(keys), into, page_bytes=PAGE, reason=NO_ROOM, namespace=1),
                 lambda: reader.complete(0, requested=4, l1=0, reason=NO_ROOM)):  # fmt: skip
        with pytest.raises(ValueError, match="under way"):
            more()
        assert reader.held() == 0
    assert told(world) == {}
    reader.lease(0, joined(keys), may_load=True, namespace=1).release()
    with pytest.raises(ValueError, match="under way"):
        reader.complete(0, requested=5, l1=0, reason=NO_ROOM)
    reader.complete(0, requested=4, l1=0, reason=NO_ROOM)
    with pytest.raises(ValueError, match="under way"):
        reader.complete(0, requested=1, l1=0, reason=NO_ROOM)
    assert told(world) == {"begun": 4, "requested": 4, f"miss_{NO_ROOM}": 4, "look_ups": 1}


def test_what_can_not_be_counted_is_refused() -> None:
    world = NativeArena()
    keys = joined(chain("a", 4))
    reader = world.reader
    reader.lease(0, keys, may_load=True, namespace=1)
    for wrong in (
        {"l1": 5},
        {"l1": 2, "l2": 3},
        {"l1": 1, "l2": 1, "l3": 3},
        {"l1": 0, "reason": 32},
        {"l1": 3},
    ):
        with pytest.raises(ValueError, match=r"served|reason"):
            reader.complete(0, **({"requested": 4, "l1": 0} | wrong))
    with pytest.raises(ValueError, match="reason"):
        reader.complete_lease(0, keys, reason=32, namespace=1)
    with pytest.raises(ValueError, match="l1"):
        reader.complete_get(0, keys, bytearray(4 * PAGE), page_bytes=PAGE, l1=1, namespace=1)
    with pytest.raises(ValueError, match="counter"):
        reader.complete(32, requested=4, l1=4)
    reader.complete(0, requested=4, l1=4)


# --- pins ---


def test_a_pin_holds_one_page_and_counts_nothing() -> None:
    world = NativeArena(slots=16)
    keys = chain("a", 3)
    world.put(keys)
    names = instances(world, keys)
    before, accessed = world.counts(), world.arena.find(keys[1])
    pin = world.reader.pin(names[1])
    assert pin is not None
    assert (pin.pages, pin.reason, pin.instances(), pin.stands_on) == (1, NONE, [names[1]], 0)
    assert world.counts() == before
    found = world.arena.find(keys[1])
    assert accessed is not None
    assert found is not None
    assert (found["last_access_ns"], found["leases"]) == (accessed["last_access_ns"], 1)
    world.hide(keys[0])
    for number in range(300):
        world.put(chain(f"filler {number}", 1))
    assert bytes(pin[0]) == payload(keys[1]), "it stays while it is looked at, though it was hidden"
    assert world.arena.statistics()["entries_hidden_leased"] == 1
    assert world.reader.pin(names[1]) is None
    pin.release()
    world.arena.expire(1)
    assert world.arena.statistics()["entries_hidden_leased"] == 0


def test_only_the_very_page_is_pinned() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys)
    first, second = instances(world, keys)
    reserved = world.reserve(chain("b", 1))[0].reservation
    for stranger in (
        0,
        1,
        UNKNOWN_INSTANCE,
        first + 2**33,
        second - 2**32,
        first + 4096,
        reserved,
        reserved + 2**32,
    ):
        assert world.reader.pin(stranger) is None
    world.hide(keys[1])
    world.put(keys[1:], parent=keys[0])
    assert world.reader.pin(second) is None, "it was computed again"
    assert world.reader.held() == 0
    with pytest.raises(TypeError):
        world.reader.pin(-1)


def test_a_pin_asks_for_no_freshness_and_needs_a_lease() -> None:
    world = NativeArena(leases_per_row=2)
    keys = chain("a", 3)
    world.put(keys)
    names = [name for key in keys for name in instances(world, keys[: keys.index(key) + 1])[-1:]][:2]
    world.arena.publish_freshness(1)
    pins = [world.reader.pin(name) for name in names]
    assert all(pin is not None for pin in pins)
    assert world.reader.pin(names[0]) is None, "no lease is left"
    for pin in pins:
        assert pin is not None
        pin.release()
    assert world.count(selection()) == (3, 3 * PAGE)
