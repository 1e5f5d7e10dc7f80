"""Hiding and counting what an invalidation names in bounded steps: what goes, what stays, what is held back."""

from __future__ import annotations

import pytest

from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import (
    PAGE,
    PROVENANCE_OVERFLOW,
    UNKNOWN_INSTANCE,
    NativeArena,
    Selection,
    chain,
    now_ns,
    payload,
    selection,
)

STORED = (PutStatus.STORED, RefuseReason.NONE)
INVALIDATED = (PutStatus.REFUSED, RefuseReason.INVALIDATED)
PARENT_ABSENT = (PutStatus.REFUSED, RefuseReason.PARENT_ABSENT)


def test_a_subtree_goes_from_its_leaves_on_in_steps_of_bounded_work() -> None:
    world = NativeArena(slots=4096, entries=4096, segment_bytes=1 << 20)
    trunk = chain("trunk", 40)
    world.put(trunk)
    branches = [chain(f"branch{number}", 60) for number in range(40)]
    for at, branch in zip(trunk, branches, strict=True):
        world.put(branch, parent=at)
    total = 40 + 40 * 60
    hidden = []
    for step in world.hiding(selection(key=trunk[0]), work_max=100):
        hidden.append(step)
        assert step <= 100
        left = world.arena.statistics()["entries_visible"]
        assert left == total - sum(hidden)
        assert (world.resident(trunk) > 0) == (left > 0), "the root goes last"
        world.arena.check_invariants()
    assert sum(hidden) == total
    # each page is looked at once on the way down and hidden once
    assert len(hidden) <= 2 * total / 100 + 2


def test_a_chain_deeper_than_a_step_is_hidden_all_the_same() -> None:
    world = NativeArena(slots=4096, entries=4096, segment_bytes=1 << 20)
    deep = chain("deep", 1000)
    world.put(deep)
    steps = list(world.hiding(selection(key=deep[10]), work_max=7))
    assert (sum(steps), world.resident(deep)) == (990, 10)
    assert len(steps) <= 2 * 990 / 7 + 2
    assert sum(world.hiding(selection(), work_max=1)) == 10


def test_what_is_named_is_hidden_and_nothing_else() -> None:
    world = NativeArena()
    ours, theirs = chain("ours", 6), chain("theirs", 6)
    world.put(ours[:3], producer=1, computed_ms=(100, 200), revision=5)
    world.put(ours, producer=2, computed_ms=(300, 400), revision=6)
    world.put(theirs, producer=1, computed_ms=(300, 400), revision=6, namespace=2)

    def named(which: Selection) -> int:
        return world.count(which)[0]

    assert named(selection()) == 12
    assert named(selection(namespaces=[2])) == named(selection(namespaces=[0, 2, 77])) == 6
    assert named(selection(namespaces=[])) == named(selection(namespaces=[3])) == 0
    assert named(selection(key=ours[4])) == named(selection(key=ours[4], namespaces=[1])) == 2
    assert named(selection(key=ours[4], namespaces=[2])) == 0
    assert named(selection(key=bytes(32))) == 0
    assert named(selection(provenances=[2])) == 3
    assert named(selection(provenances=[1])) == 12, "what stands on a named page goes too"
    assert named(selection(provenances=[1], key=ours[3])) == 0
    assert named(selection(provenances=[2], key=ours[1], namespaces=[1])) == 3
    assert named(selection(provenances=[])) == 0
    assert named(selection(since_ms=201)) == 9
    assert named(selection(since_ms=401)) == 0
    assert named(selection(until_ms=99)) == 0
    assert named(selection(until_ms=299)) == 6
    assert named(selection(since_ms=201, until_ms=299)) == 0
    assert named(selection(since_revision=6, namespaces=[1])) == 3
    assert named(selection(until_revision=5)) == 6
    assert named(selection(since_revision=7)) == 0
    assert world.count(selection(provenances=[2])) == (3, 3 * PAGE)
    assert sum(world.hiding(selection(provenances=[2]))) == 3
    assert (world.resident(ours), world.resident(theirs, namespace=2)) == (3, 6)
    assert sum(world.hiding(selection(until_ms=299))) == 3
    assert (world.resident(ours), world.resident(theirs, namespace=2)) == (0, 6)
    world.arena.check_invariants()


def test_what_is_not_known_of_a_page_matches() -> None:
    world = NativeArena()
    (unknown,), (overflown,), (timeless,), (known,) = (chain(name, 1) for name in "abcd")
    world.put([unknown], producer=1, computed_ms=(5, 6), revision=3, rests_on=UNKNOWN_INSTANCE)
    world.put([overflown], producer=PROVENANCE_OVERFLOW, computed_ms=(5, 6), revision=3)
    world.put([timeless], producer=1, revision=3)
    world.put([known], producer=1, computed_ms=(5, 6), revision=3)

    def hit(which: Selection) -> set[bytes]:
        keys = (unknown, overflown, timeless, known)
        return {key for key in keys if world.count({**which, "key": key})[0]}

    assert hit(selection(provenances=[2])) == {unknown, overflown}
    assert hit(selection(since_ms=100)) == hit(selection(until_ms=1)) == {unknown, timeless}
    assert hit(selection(since_revision=4)) == {unknown}
    assert hit(selection(since_ms=6, until_ms=5)) == {unknown, overflown, timeless, known}


def test_reservations_in_the_way_are_cut_off_where_key_or_namespace_name_them() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    for which, reason in (
        (selection(key=keys[2]), INVALIDATED),
        (selection(namespaces=[1]), INVALIDATED),
        (selection(), INVALIDATED),
        (selection(namespaces=[2]), STORED),
        (selection(provenances=[0]), STORED),
        (selection(provenances=[0], key=keys[2]), STORED),
    ):
        answers = world.reserve(keys)
        assert sum(world.hiding(which)) == 0
        assert world.commit([answers[2].reservation]) != [STORED]
        first = world.commit([answers[0].reservation])
        if which["key"] is None:
            assert first == [reason]
        assert world.commit([answers[3].reservation]) == [PARENT_ABSENT if reason == STORED else INVALIDATED]
        world.arena.abort(row=world.row, reservations=[answer.reservation for answer in answers])
        world.hide(keys[0])
        world.arena.check_invariants()


def test_reservations_on_a_named_page_go_with_it() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    world.put(keys[:2], producer=7)
    answers = world.reserve(keys)
    assert sum(world.hiding(selection(provenances=[7]))) == 2
    assert world.commit([answer.reservation for answer in answers[2:]]) == [INVALIDATED] * 2
    assert world.put(keys) == [STORED] * 4, "and can be computed again at once (I9)"


def test_c36_hidden_at_once_freed_at_the_last_release() -> None:
    world = NativeArena()
    keys = chain("a", 5)
    world.put(keys)
    first, second = (
        world.reader.lease(0, b"".join(keys), namespace=1),
        world.reader.lease(0, b"".join(keys[:3]), namespace=1),
    )
    answers = world.reserve([*keys, chain("b", 1)[0]])
    assert sum(world.hiding(selection(namespaces=[1]), work_max=2)) == 5
    assert world.resident(keys) == 0
    assert world.commit([answers[5].reservation]) == [INVALIDATED]
    assert world.arena.statistics()["entries_hidden_leased"] == 5
    assert [bytes(view) for view in first] == [payload(key) for key in keys]
    first.release()
    world.arena.expire(0)
    assert world.arena.statistics()["entries_hidden_leased"] == 3
    second.release()
    world.arena.expire(0)
    assert world.arena.statistics()["entries_hidden_leased"] == 0
    assert world.put(keys) == [STORED] * 5


def test_the_oldest_view_at_which_a_leased_page_was_hidden() -> None:
    world = NativeArena()

    def oldest() -> int:
        return world.arena.statistics()["oldest_hidden_view"]

    def publish() -> int:
        return world.arena.publish_event(incarnation=bytes(16), revision=1, kind=2, payload=b"")

    a, b = chain("a", 2), chain("b", 2)
    world.put(a)
    world.put(b)
    of_a, of_b = (
        world.reader.lease(0, b"".join(a), namespace=1),
        world.reader.lease(0, b"".join(b), namespace=1),
    )
    before = world.arena.view
    world.hide(a[1])
    assert oldest() == before
    publish()
    world.hide(b[0] + a[0])
    assert oldest() == before
    of_a.release()
    assert oldest() == before + 1, "told at once, whether its memory is freed yet or not"
    of_b.release()
    assert oldest() == 0
    world.put(a)
    with world.reader.lease(0, b"".join(a), namespace=1):
        assert oldest() == 0, "a visible page holds nothing back"


def test_a_census_counts_each_page_once_over_several_selections() -> None:
    world = NativeArena()
    keys, other = chain("a", 6), chain("b", 3)
    world.put(keys, producer=1)
    world.put(other, producer=2)
    assert world.count(selection(key=keys[2]), census=5) == (4, 4 * PAGE)
    assert world.count(selection(key=keys[1]), census=5) == (1, PAGE)
    assert world.count(selection(), census=5) == (4, 4 * PAGE)
    assert world.count(selection(), census=5) == (0, 0)
    assert world.count(selection(), census=6) == world.count(selection()) == (9, 9 * PAGE)
    world.hide(other[0])
    world.put(other)
    assert world.count(selection(), census=6) == (3, 3 * PAGE), "other pages under the same keys"
    begun = world.arena.count_step(**selection(), cursor=0, work_max=1, census=7)[0]
    world.arena.count_step(**selection(), cursor=0, work_max=1, census=8)
    with pytest.raises(ValueError, match="ended by others"):
        world.arena.count_step(**selection(), cursor=begun, work_max=1, census=7)
    with pytest.raises(ValueError, match="ended by others"):
        world.arena.count_step(**selection(), cursor=1 << 40, work_max=1)


def test_more_walks_than_there_is_room_for_end_the_oldest_count_and_no_hiding() -> None:
    world = NativeArena()
    keys = chain("a", 30)
    world.put(keys)
    counts = [world.arena.count_step(**selection(), cursor=0, work_max=1)[0] for _ in range(5)]
    with pytest.raises(ValueError, match="ended by others"):
        world.arena.count_step(**selection(), cursor=counts[0], work_max=1)
    for cursor in counts[1:]:
        assert world.arena.count_step(**selection(), cursor=cursor, work_max=100) == (-1, 30, 30 * PAGE)
    cursors = [world.arena.hide_step(**selection(key=key), cursor=0, work_max=1)[0] for key in keys[29:20:-1]]
    for key, cursor in zip(keys[29:20:-1], cursors, strict=True):
        following = cursor
        while following != -1:
            following, _ = world.arena.hide_step(**selection(key=key), cursor=following, work_max=3)
        assert world.arena.find(key) is None
    assert world.resident(keys) == 21


def test_a_page_under_which_a_walk_stands_may_go_and_its_neighbours_stay() -> None:
    for counting in (False, True):
        world = NativeArena()
        (root,), ours = chain("root", 1), chain("ours", 5)
        (neighbour,) = chain("neighbour", 1)
        world.put([root])
        world.put([neighbour], parent=root, producer=9)
        world.put(ours, parent=root)
        step = world.arena.count_step if counting else world.arena.hide_step
        which = selection(key=ours[0], provenances=[9])
        cursor = step(**which, cursor=0, work_max=2)[0]
        assert world.hide(ours[0]) == 5
        assert step(**which, cursor=cursor, work_max=100)[:2] == (-1, 0)
        assert world.resident([root, neighbour]) == 2


def test_what_stood_on_a_counted_page_is_not_taken_for_what_comes_after_it() -> None:
    world = NativeArena()
    (root,), (neighbour,), ours = chain("root", 1), chain("neighbour", 1), chain("ours", 5)
    world.put([root])
    world.put([neighbour], parent=root)
    world.put(ours, parent=root, producer=1)
    which = selection(provenances=[1])
    cursor, pages, _ = world.arena.count_step(**which, cursor=0, work_max=4)
    assert pages == 2
    world.hide(ours[0])
    assert world.arena.count_step(**which, cursor=cursor, work_max=100) == (-1, 0, 0)


@pytest.mark.parametrize("end", ["abort", "quarantine", "evict", "hide"])
def test_a_page_at_which_a_walk_stands_may_go_and_the_walk_goes_on_behind_it(end: str) -> None:
    slots = 256
    world = NativeArena(slots=slots)
    (named,), (first,) = chain("named", 1), chain("first", 1)
    world.put([named], producer=1)
    if end in ("abort", "quarantine"):
        deadline = now_ns() + 10**12
        reserved = world.reserve([first], deadline_ns=deadline)
    else:
        world.put([first])
    which = selection(provenances=[1])
    cursor, _ = world.arena.hide_step(**which, cursor=0, work_max=2)
    if end == "abort":
        world.arena.abort(row=world.row, reservations=[reserved[0].reservation])
    elif end == "quarantine":
        world.arena.expire(deadline + 1)
    elif end == "hide":
        world.hide(first)
    else:
        world.reader.lease(0, named, namespace=1).release()
        assert world.put(chain("other", slots - 1)) == [STORED] * (slots - 1)
        assert (world.resident([named]), world.resident([first])) == (1, 0)
    assert world.arena.hide_step(**which, cursor=cursor, work_max=10_000) == (-1, 1)
    assert world.resident([named]) == 0
    world.arena.check_invariants()
