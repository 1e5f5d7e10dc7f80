"""Loads in the native core: births, reservations that give way, and pages whose ancestors were replaced."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from cache_l2._native import Arena
from kv_types import limits
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.validity import UNKNOWN_INSTANCE, stored_instance
from tests.support.native_arena import FAR_NS, NO_LOG, PAGE, NativeArena, chain, now_ns, payload, selection

STORED = (PutStatus.STORED, RefuseReason.NONE)
KNOWN = (PutStatus.KNOWN, RefuseReason.NONE)


def refused(reason: RefuseReason) -> tuple[int, int]:
    return (PutStatus.REFUSED, reason)


def fact(world: NativeArena, key: bytes, name: str) -> int:
    found = world.arena.find(key)
    assert found is not None, "the page is not there"
    value = found[name]
    assert isinstance(value, int)
    return value


def births(world: NativeArena, keys: list[bytes]) -> list[int]:
    return [fact(world, key, "birth") for key in keys]


def lines(world: NativeArena, keys: list[bytes]) -> list[int]:
    return [fact(world, key, "line") for key in keys]


def unknown(world: NativeArena, keys: list[bytes]) -> list[bool]:
    return [bool(fact(world, key, "lineage_unknown")) for key in keys]


def instances(world: NativeArena, keys: list[bytes]) -> list[int]:
    with world.reader.lease(0, b"".join(keys), namespace=1) as lease:
        assert lease.pages == len(keys)
        return lease.instances()


# --- births ---


def test_each_computation_has_a_birth_of_its_own_in_whatever_life() -> None:
    keys = chain("a", 64)
    drawn: list[int] = []
    for life in (os.urandom(16), bytes(16), bytes(16)):
        world = NativeArena(slots=128, life=life)
        for _ in range(3):
            world.put(keys)
            drawn += births(world, keys)
            world.hide(keys[0])
    assert len(set(drawn)) == len(drawn) == 9 * 64
    assert not {0, UNKNOWN_INSTANCE} & set(drawn)
    assert len({b - a for a, b in pairwise(drawn)}) == len(drawn) - 1, (
        "the next one can't be told from the last"
    )
    assert sum(birth.bit_count() for birth in drawn) / len(drawn) == pytest.approx(32, abs=1)


def test_a_line_is_the_births_from_the_root_on_whatever_the_arena() -> None:
    keys, worlds = chain("a", 3), (NativeArena(), NativeArena(), NativeArena())
    for world, root in zip(worlds, (11, 11, 10), strict=True):
        world.load(keys, [root, 12, 13], rests_on=0)
    same, again, other = (lines(world, keys) for world in worlds)
    assert same == again
    assert not set(same) & set(other), "on another root, each is another"
    assert not {0, UNKNOWN_INSTANCE} & {*same, *other}


def test_a_put_keeps_the_line_of_what_it_rests_on() -> None:
    world = NativeArena()
    trunk = chain("a", 3)
    world.put(trunk)
    reused, line = instances(world, trunk), lines(world, trunk)
    assert [fact(world, key, "rests_on") for key in trunk] == [0, 0, 0], "nothing was reused"
    cases = {"parent": (reused[2], line[2]), "root": (reused[0], line[0]), "nothing": (0, 0),
             "unknown": (UNKNOWN_INSTANCE, UNKNOWN_INSTANCE), "no ancestor": (reused[2] + 2**33, UNKNOWN_INSTANCE)}  # fmt: skip
    for name, (rests_on, kept) in cases.items():
        keys = chain(f"leaf: {name}", 2)
        assert world.put(keys, parent=trunk[2], rests_on=rests_on) == [STORED] * 2
        assert [fact(world, key, "rests_on") for key in keys] == [kept] * 2, name
        assert unknown(world, keys) == [kept == UNKNOWN_INSTANCE] * 2, name


def test_a_loaded_page_keeps_its_birth_and_what_it_rests_on() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    assert world.load(keys, [11, 12, 13], rests_on=0) == [STORED] * 3
    assert births(world, keys) == [11, 12, 13]
    leaf = chain("leaf", 1)
    reused = lines(world, keys)[1]
    assert world.load(leaf, [14], parent=keys[2], rests_on=reused) == [STORED]
    assert (fact(world, leaf[0], "rests_on"), unknown(world, leaf)) == (reused, [False])
    stray = chain("stray", 1)
    assert world.load(stray, [15], parent=keys[2], rests_on=99) == [STORED]
    assert (fact(world, stray[0], "rests_on"), unknown(world, stray)) == (99, [True]), (
        "told on as it was told"
    )
    for birth in (0, UNKNOWN_INSTANCE):
        with pytest.raises(ValueError, match="birth"):
            world.publish_loaded(1, birth)
    assert world.arena.statistics()["loaded"] == 5
    assert world.arena.statistics()["stored"] == 0, "puts are counted apart"


def test_a_loaded_page_vouches_for_its_lineage_only_above_the_very_computation() -> None:
    """What an origin selector takes: all of producer 1, and whatever may rest on a page of it."""
    keys, tail = chain("a", 2), chain("tail", 2)
    for name, parents, is_known in (
        ("the same computation, computed here", "put", True),
        ("the same computation, loaded", "load", True),
        ("computed again here", "put again", False),
        ("another one's, loaded", "load other", False),
        ("the same computation on another one's, loaded", "load on other", False),
    ):
        world = NativeArena()
        world.put(keys, producer=2)
        (root, born), line = births(world, keys), lines(world, keys)[1]
        if parents != "put":
            world.hide(keys[0])
        if parents == "put again":
            world.put(keys, producer=2)
        elif parents == "load":
            world.load(keys, [root, born], producer=2)
        elif parents == "load other":
            world.load(keys, [5, 6], producer=2)
        elif parents == "load on other":
            world.load(keys, [5, born], producer=2)
        (reserved, second) = world.reserve(tail, parent=keys[1], gives_way=True)
        asked = world.arena.loaded_lineage_known(
            row=world.row, reservation=reserved.reservation, rests_on=line
        )
        assert asked == is_known, name
        assert world.publish_loaded(reserved.reservation, 77, rests_on=line, producer=3) == STORED
        line = lines(world, tail[:1])[0]
        assert world.publish_loaded(second.reservation, 78, rests_on=line, producer=3) == STORED
        assert unknown(world, tail) == [not is_known, False], name
        hidden = sum(world.hiding(selection(provenances=[1])))
        assert hidden == (0 if is_known else 2), f"{name}: the second goes with the first"
        world.arena.check_invariants()


def test_what_a_page_rests_on_is_found_through_pages_that_rest_on_the_same() -> None:
    """A run of one request costs one walk, not one a page; and it is right, whoever made the pages between."""
    most = limits.ANCESTORS_WALKED_MAX
    world = NativeArena(slots=most + 256, entries=2 * most, segment_bytes=1 << 20)
    trunk = chain("trunk", most - 1)
    for begin in range(0, len(trunk), 1024):
        run = trunk[begin : begin + 1024]
        world.load(run, range(begin + 1, begin + 1 + len(run)), parent=trunk[begin - 1] if begin else None)
    deep, line = chain("deep", 64), lines(world, trunk[:2])
    assert world.load(deep, range(10_000, 10_064), parent=trunk[-1], rests_on=line[0]) == [STORED] * 64
    assert unknown(world, deep) == [False] * 64, "the second is further from the first page than is walked"
    far = chain("far", 1)
    assert world.load(far, [20_000], parent=deep[-1], rests_on=line[1]) == [STORED]
    assert unknown(world, far) == [True], "too far, and nobody between rests on the same"
    flagged = chain("flagged", 2)
    assert world.load(flagged, [30_000, 30_001], parent=far[0], rests_on=40_000) == [STORED] * 2
    assert unknown(world, flagged) == [True, True]


def test_describing_looks_at_one_instance() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys, revision=9, producer=4, computed_ms=(1, 2))
    first, second = instances(world, keys)
    told = world.arena.describe(second)
    found = world.arena.find(keys[1])
    assert told is not None
    assert found is not None
    assert found.items() >= told.items()
    assert found.keys() - told.keys() == {"leases", "last_access_ns", "previous_access_ns"}
    assert (told["parent"], told["key"], told["revision"]) == (keys[0], keys[1], 9)
    reserved = world.reserve(chain("b", 1))[0].reservation
    strangers = (0, UNKNOWN_INSTANCE, first + 2**33, first + 1000, reserved, stored_instance(reserved))
    assert [world.arena.describe(one) for one in strangers] == [None] * len(strangers)
    world.hide(keys[1])
    assert world.arena.describe(second) is None
    assert world.arena.describe(first) is not None


# --- reservations that give way ---


def test_a_put_takes_the_key_of_what_is_being_loaded() -> None:
    world = NativeArena(slots=16)
    keys = chain("a", 4)
    loading = world.reserve(keys, gives_way=True)
    other = world.arena.open_row(2)
    answers = world.reserve(keys, row=other)
    assert [answer.status for answer in answers] == [PutStatus.STORED] * 4
    assert not {answer.offset for answer in answers} & {answer.offset for answer in loading}
    assert world.arena.statistics()["entries_quarantined"] == 1
    assert world.arena.statistics()["gave_way"] == 1, "what stood on it was cut off with it"
    world.arena.check_invariants()
    world.reader.fill([answer.offset for answer in answers], [payload(key) for key in keys], page_bytes=PAGE)
    # The transfer goes on: its bytes arrive in places that nobody else has.
    world.reader.fill([answer.offset for answer in loading], [b"\xff" * PAGE] * 4, page_bytes=PAGE)
    assert world.commit([answer.reservation for answer in answers], row=other) == [STORED] * 4
    with world.reader.lease(0, b"".join(keys), namespace=1) as lease:
        assert [bytes(page) for page in lease] == [payload(key) for key in keys]
    assert world.publish_loaded(loading[0].reservation, 5) == refused(RefuseReason.EXPIRED)
    assert world.publish_loaded(loading[1].reservation, 6) == refused(RefuseReason.PARENT_ABSENT)
    world.arena.abort(row=world.row, reservations=[loading[2].reservation, loading[3].reservation])
    assert world.arena.row_statistics(world.row)["reservations"] == 0
    assert world.arena.statistics()["entries_quarantined"] == 0
    assert births(world, keys)[0] != 5
    world.arena.check_invariants()


def test_the_place_of_a_load_that_gave_way_is_nobodys_until_its_holder_is_done() -> None:
    world = NativeArena(slots=16, segment_bytes=64 * 1024)  # 256 slots of a page in an arena of 1 MiB
    keys, fillers = chain("a", 1), [chain(f"filler {number}", 1)[0] for number in range(300)]
    deadline = now_ns() + 1_000_000
    loading = world.reserve(keys, gives_way=True, deadline_ns=deadline)[0]
    world.put(keys)
    for moment in (deadline + 1, deadline + 10**12):
        world.arena.expire(moment)
        for filler in fillers:
            world.put([filler])
        offsets = {fact(world, filler, "data_offset") for filler in fillers if world.resident([filler])}
        assert len(offsets) > 200
        assert loading.offset not in offsets, "its bytes may still arrive"
    world.arena.abort(row=world.row, reservations=[loading.reservation])
    for filler in fillers:
        world.put([filler])
    assert loading.offset in {fact(world, one, "data_offset") for one in fillers if world.resident([one])}


def test_the_same_row_s_puts_take_over_as_well() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.reserve(keys, gives_way=True)
    assert world.put(keys) == [STORED] * 2


def test_two_loads_of_a_page_are_busy_to_each_other_and_loads_to_puts() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.reserve(keys, gives_way=True)
    again = world.reserve(keys, gives_way=True)
    assert [answer.reason for answer in again] == [RefuseReason.BUSY] * 2
    other = chain("b", 2)
    world.reserve(other)
    assert [answer.reason for answer in world.reserve(other, gives_way=True)] == [RefuseReason.BUSY] * 2


def test_a_load_whose_time_is_over_gives_way_to_loads_too() -> None:
    world = NativeArena()
    keys = chain("a", 1)
    (late,) = world.reserve(keys, gives_way=True, deadline_ns=now_ns() - 1)
    (again,) = world.reserve(keys, gives_way=True)
    assert again.status == PutStatus.STORED
    assert world.arena.statistics()["gave_way"] == 0
    assert world.publish_loaded(late.reservation, 1) == refused(RefuseReason.EXPIRED)
    assert world.publish_loaded(again.reservation, 2) == STORED


def test_puts_stand_on_no_load_and_loads_on_no_put() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    world.reserve(keys[:2], gives_way=True)
    assert [one.reason for one in world.reserve(keys[2:], parent=keys[1])] == [RefuseReason.PARENT_ABSENT] * 2
    on_load = world.reserve(keys[2:], parent=keys[1], gives_way=True)
    assert [one.status for one in on_load] == [PutStatus.STORED] * 2
    other = chain("b", 4)
    world.reserve(other[:2])
    refusal = world.reserve(other[2:], parent=other[1], gives_way=True)
    assert [one.reason for one in refusal] == [RefuseReason.PARENT_ABSENT] * 2


def test_loads_are_published_parents_first_and_refused_when_what_is_below_them_was_hidden() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    first, second, third = world.reserve(keys, gives_way=True)
    assert world.publish_loaded(second.reservation, 2) == refused(RefuseReason.PARENT_ABSENT)
    assert world.publish_loaded(first.reservation, 1) == STORED
    assert world.publish_loaded(third.reservation, 3) == refused(RefuseReason.PARENT_ABSENT)
    on_it = world.reserve(keys[1:], parent=keys[0], gives_way=True)
    world.hide(keys[0])
    assert world.publish_loaded(on_it[0].reservation, 2) == refused(RefuseReason.INVALIDATED)
    assert world.publish_loaded(on_it[1].reservation, 3) == refused(RefuseReason.INVALIDATED)
    assert world.publish_loaded(on_it[1].reservation, 3) == refused(RefuseReason.EXPIRED), "it has ended"
    assert world.arena.row_statistics(world.row)["reservations"] == 0


def test_a_known_page_is_stood_on_by_a_load() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    world.put(keys[:2])
    assert world.load(keys, [1, 2, 3, 4]) == [KNOWN, KNOWN, STORED, STORED]
    assert world.resident(keys) == 4
    assert world.arena.statistics()["known"] == 0, "of puts"


@pytest.mark.parametrize("what", ["expired reservations", "loads", "expired pages"])
def test_what_goes_out_of_the_way_of_a_put_is_room_that_it_needs(what: str) -> None:
    """Pages that stood on what went must be counted again, or the room for them is made one by one, or for all."""
    world = NativeArena(slots=256)
    keys = chain("a", 8)
    if what == "expired pages":
        world.put(keys, expiry_s=1)
    else:
        is_load = what == "loads"
        held = world.reserve(keys, gives_way=is_load, deadline_ns=FAR_NS if is_load else now_ns() - 1)
        assert all(one.status == PutStatus.STORED for one in held)
    rest = [chain(f"rest {number}", 1)[0] for number in range(248)]
    assert [world.put([key]) for key in rest] == [[STORED]] * 248
    assert world.put(keys) == [STORED] * 8
    gone = sum(not world.resident([key]) for key in rest)
    assert gone == (0 if what == "expired pages" else 8), "no more than were needed"


def test_a_load_makes_no_more_room_than_it_takes_and_none_of_what_it_stands_on() -> None:
    world = NativeArena(slots=256)
    keys = chain("a", 40)
    world.put(keys[:8])
    rest = [chain(f"rest {number}", 1)[0] for number in range(248)]
    for key in rest:
        world.put([key])
    leased = world.reader.lease(0, rest[0], namespace=1)
    assert world.load(keys, range(1, 41)) == [KNOWN] * 8 + [STORED] * 32
    assert world.resident(keys) == 40
    assert sum(not world.resident([key]) for key in rest) == 32
    assert world.resident([rest[0]]) == 1, "it is leased"
    leased.release()


def test_a_load_takes_no_memory_ahead_of_need() -> None:
    """A put takes a colder segment of another size once it has evicted as much of its own; a load only for want of both."""
    for gives_way, moves in ((True, False), (False, True)):
        world = NativeArena(slots=32, segment_bytes=64 * 1024)
        cold = [chain(f"cold {number}", 1)[0] for number in range(16)]
        for key in cold:
            world.put([key], page_bytes=8192)  # two segments of eight
        for number in range(16 * 14):
            world.put([chain(f"warm {number}", 1)[0]])
        for number in range(40):
            (one,) = world.reserve([chain(f"new {number}", 1)[0]], gives_way=gives_way)
            assert world.commit([one.reservation]) == [STORED]
        left = sum(world.resident([key]) for key in cold)
        assert (left < 16) == moves


def test_a_row_that_ends_ends_its_loads() -> None:
    world = NativeArena()
    row = world.arena.open_row(7)
    keys = chain("a", 2)
    world.reserve(keys, row=row, gives_way=True)
    world.put(keys[:1])
    world.arena.orphan_row(row)
    assert world.arena.statistics()["entries_quarantined"] == 2
    world.arena.end_row(row)
    assert world.arena.statistics()["entries_quarantined"] == 0
    world.arena.check_invariants()


def test_only_an_own_open_row_publishes() -> None:
    world = NativeArena()
    reserved = world.reserve(chain("a", 1), gives_way=True)[0].reservation
    row = world.arena.open_row(7)
    assert world.publish_loaded(reserved, 1, row=row) == refused(RefuseReason.EXPIRED)
    assert not world.arena.loaded_lineage_known(row=row, reservation=reserved, rests_on=0)
    with pytest.raises(ValueError, match="not open"):
        world.publish_loaded(reserved, 1, row=row + 1)
    arena: Arena = world.arena
    with pytest.raises(ValueError, match="producer"):
        arena.publish_loaded(
            row=world.row, reservation=reserved, incarnation=NO_LOG, revision=0, producer=2**32, computed_from_ms=0,
            computed_until_ms=0, birth=1, rests_on=0, expiry_s=0, now_ns=0,
        )  # fmt: skip
    assert world.publish_loaded(reserved, 1) == STORED
