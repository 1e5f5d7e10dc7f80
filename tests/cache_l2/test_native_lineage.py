"""What a page rests on: instances, lineage that a commit can vouch for, and chains up to the root (rules R2 and R3)."""

from __future__ import annotations

import pytest

from kv_types import limits
from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import PAGE, UNKNOWN_INSTANCE, NativeArena, chain, selection

STORED = (PutStatus.STORED, RefuseReason.NONE)


def instances(world: NativeArena, keys: list[bytes]) -> list[int]:
    with world.reader.lease(0, b"".join(keys), namespace=1) as lease:
        assert lease.pages == len(keys)
        return lease.instances()


def lineage_known(world: NativeArena, keys: list[bytes]) -> list[bool]:
    found = [world.arena.find(key) for key in keys]
    return [not one["lineage_unknown"] for one in found if one is not None]


def test_every_way_to_a_page_names_its_instance() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    answers = world.reserve(keys)
    world.commit([answer.reservation for answer in answers])
    own = [answer.reservation + 2**32 for answer in answers]
    packed = b"".join(keys)
    lease = world.reader.lease(0, packed, namespace=1)
    assert (lease.instances(), lease.instance) == (own, own[3])
    lease.release()
    assert (lease.instances(), lease.instance) == (own, own[3]), "of a released lease too"
    assert world.reader.get(0, packed, bytearray(4 * PAGE), page_bytes=PAGE, namespace=1)[2] == own[3]
    assert (
        world.reader.get(0, packed, bytearray(2 * PAGE), page_bytes=PAGE, start=2, namespace=1)[2] == own[3]
    )
    longer = b"".join(chain("a", 6))
    with world.reader.lease(0, longer, start=1, namespace=1) as partial:
        assert (partial.instances(), partial.instance) == (own[1:], own[3])
    absent = b"".join(chain("b", 2))
    assert world.reader.get(0, absent, bytearray(2 * PAGE), page_bytes=PAGE, namespace=1)[2] == 0
    with world.reader.lease(0, absent, namespace=1) as nothing:
        assert (nothing.instances(), nothing.instance) == ([], 0)


def test_a_page_computed_again_is_another_instance() -> None:
    world = NativeArena()
    keys = chain("a", 1)
    world.put(keys)
    first = instances(world, keys)
    world.hide(keys[0])
    world.put(keys)
    assert instances(world, keys) != first


def test_a_page_vouches_for_its_lineage_only_where_what_it_rests_on_is_its_ancestor() -> None:
    world = NativeArena()
    trunk, stray = chain("a", 3), chain("stray", 3)
    world.put(trunk)
    world.put(stray)
    on_trunk, on_stray = instances(world, trunk), instances(world, stray)
    cases = {
        "nothing was reused": (0, True),
        "its parent": (on_trunk[2], True),
        "further up": (on_trunk[0], True),
        "another chain": (on_stray[2], False),
        "unknown": (UNKNOWN_INSTANCE, False),
        "an instance that never was": (on_trunk[2] + 2**33, False),
        "a reservation": (on_trunk[2] - 2**32, False),
    }
    for what, (rests_on, known) in cases.items():
        fresh = chain(f"child: {what}", 3)
        reserved = [answer.reservation for answer in world.reserve(fresh, parent=trunk[2])]
        asked = world.arena.lineage_known(row=world.row, reservations=reserved, rests_on=rests_on)
        assert asked == [known] * 3, what
        world.commit(reserved, rests_on=rests_on)
        assert lineage_known(world, fresh) == [known] * 3, what


def test_a_page_that_was_replaced_while_the_request_ran_is_not_its_ancestor() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    world.put(keys[:2], producer=1)
    rests_on = instances(world, keys[:2])[1]
    world.hide(keys[0])
    world.put(keys[:2], producer=2)
    assert world.put(keys[2:], parent=keys[1], producer=3, rests_on=rests_on) == [STORED] * 2
    assert lineage_known(world, keys) == [True, True, False, False]
    assert world.count(selection(provenances=[1])) == (2, 2 * PAGE), "they may rest on pages of producer 1"
    assert sum(world.hiding(selection(provenances=[1]))) == 2
    assert world.resident(keys) == 2


def test_pages_in_one_commit_inherit_what_is_known_of_the_one_before() -> None:
    world = NativeArena(slots=4096, entries=8192, segment_bytes=1 << 20)
    (root,) = chain("root", 1)
    world.put([root])
    rests_on = instances(world, [root])[0]
    deep = chain("deep", limits.BATCH_PAGES_MAX)
    assert world.put(deep, parent=root, rests_on=rests_on) == [STORED] * len(deep)
    assert all(lineage_known(world, deep[:: len(deep) // 16]))


def test_no_call_looks_at_more_ancestors_than_it_may() -> None:
    most = limits.ANCESTORS_WALKED_MAX
    world = NativeArena(slots=most + 256, entries=2 * most, segment_bytes=1 << 20)
    deep = chain("deep", most + 8)
    for begin in range(0, len(deep), 1024):
        world.put(deep[begin : begin + 1024], parent=deep[begin - 1] if begin else None)
    reused = {}
    for depth in (0, 7, 8, 9):
        with world.reader.lease(0, b"".join(deep[: depth + 1]), namespace=1) as lease:
            reused[depth] = lease.instance
    for depth, known in ((0, False), (7, False), (8, True), (9, True)):
        leaf = chain(f"leaf {depth}", 1)
        world.put(leaf, parent=deep[-1], rests_on=reused[depth])
        assert lineage_known(world, leaf) == [known], f"{len(deep) - depth} ancestors up"


def test_lineage_of_what_a_row_does_not_hold_is_not_known() -> None:
    world = NativeArena()
    other = world.arena.open_row(2)
    held = world.reserve(chain("a", 1), row=other)[0].reservation
    assert (
        world.arena.lineage_known(row=world.row, reservations=[held, 0, 2**64 - 1], rests_on=0) == [False] * 3
    )
    assert world.arena.lineage_known(row=other, reservations=[held], rests_on=0) == [True]
    with pytest.raises(ValueError, match="not open"):
        world.arena.lineage_known(row=world.rows - 1, reservations=[], rests_on=0)


def test_the_chain_of_a_page_leads_to_its_root() -> None:
    world = NativeArena()
    keys, reserved = chain("a", 4), chain("b", 3)
    world.put(keys)
    world.reserve(reserved, parent=keys[1])
    assert world.arena.chain(keys[3], pages_max=4) == b"".join(keys)
    assert world.arena.chain(keys[3], pages_max=3) is None
    assert world.arena.chain(keys[0], pages_max=1) == keys[0]
    assert world.arena.chain(reserved[2], pages_max=9) == b"".join([*keys[:2], *reserved])
    assert world.arena.chain(bytes(32), pages_max=9) == b""
    world.hide(keys[1])
    assert world.arena.chain(reserved[0], pages_max=9) == b"", "cut off with its parent"
    with pytest.raises(ValueError, match="32 bytes"):
        world.arena.chain(b"short", pages_max=1)


def test_a_chain_lies_in_one_namespace() -> None:
    """Otherwise hiding a namespace could overlook a page that stands on one of another."""
    world = NativeArena()
    keys = chain("a", 4)
    refused = (PutStatus.REFUSED, RefuseReason.PARENT_ABSENT)
    world.put(keys[:2], namespace=1)
    assert world.put(keys[2:], parent=keys[1], namespace=2) == [refused] * 2
    assert world.put(keys, namespace=2) == [refused] * 4
    assert world.put(keys[2:], parent=keys[1], namespace=1) == [STORED] * 2
    world.arena.check_invariants()
