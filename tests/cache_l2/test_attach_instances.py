"""Instances over an attachment: what leases, gets and puts call a page is one thing, and L2 marks what stands on none."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2.attach_registrations import Registration
from cache_l2.reader import AttachedArena, Reserved
from kv_types.ids import PageKey
from kv_types.outcomes import STORED
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, stored_instance
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import stamp_of
from tests.support.pages import buffers, chain, namespace_of, packed, pages_of

SIZE = 4096


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@pytest.fixture
def arena(site: AttachSite) -> Iterator[AttachedArena]:
    with site.attach() as attached:
        yield attached


@pytest.fixture
def registration(arena: AttachedArena) -> Registration:
    return register(arena, namespace_of())


def put(
    arena: AttachedArena,
    registration: Registration,
    keys: list[PageKey],
    *,
    start: int = 0,
    rests_on: int = UNKNOWN_INSTANCE,
) -> list[int]:
    """Store keys[start:] and return their instances as the writer knows them."""
    parent = keys[start - 1] if start else None
    places = arena.reserve(registration, parent, packed(keys[start:]), deadline_s=10.0)
    reserved = [place for place in places if isinstance(place, Reserved)]
    assert len(reserved) == len(keys) - start, places
    arena.reader.fill([one.offset for one in reserved], pages_of(keys[start:], SIZE), page_bytes=SIZE)
    ids = [one.id for one in reserved]
    assert arena.commit(ids, stamp=stamp_of(arena), rests_on=rests_on, deadline_s=10.0) == [STORED] * len(ids)
    return [stored_instance(one) for one in ids]


def get(
    arena: AttachedArena, registration: Registration, keys: list[PageKey], start: int = 0
) -> tuple[int, int, list[int]]:
    """(pages, instance of the last, what was told a key)."""
    told = array("Q", [7] * len(keys))
    pages, _, last = arena.reader.get(
        registration.counter, packed(keys), buffers(len(keys) - start, SIZE), page_bytes=SIZE, start=start,
        instances=told, namespace=registration.number,
    )  # fmt: skip
    return pages, last, list(told)


def is_marked(site: AttachSite, key: PageKey) -> bool:
    entry = site.call(lambda store: store._arena.find(key))
    assert entry is not None
    return bool(entry["lineage_unknown"])


def test_writers_and_readers_call_a_page_the_same(arena: AttachedArena, registration: Registration) -> None:
    keys = chain(5)
    stored = put(arena, registration, keys[:4])
    assert get(arena, registration, keys) == (4, stored[-1], [*stored, 7])
    with arena.reader.lease(registration.counter, packed(keys), namespace=registration.number) as lease:
        assert (lease.instances(), lease.instance, lease.stands_on) == (stored, stored[-1], NO_INSTANCE)
    assert lease.instance == stored[-1]


def test_a_look_up_behind_others_tells_what_it_stands_on(
    arena: AttachedArena, registration: Registration
) -> None:
    keys = chain(4)
    stored = put(arena, registration, keys)
    assert get(arena, registration, keys, 2) == (2, stored[3], [7, *stored[1:]])
    with arena.reader.lease(
        registration.counter, packed(keys), start=3, namespace=registration.number
    ) as lease:
        assert (lease.stands_on, lease.instances()) == (stored[2], [stored[3]])
    for start in (4, 0):
        missing = chain(1) + keys[1:] if start == 0 else [*keys, *chain(1)]
        assert get(arena, registration, missing, start) == (0, NO_INSTANCE, [7] * len(missing))
        with arena.reader.lease(
            registration.counter, packed(missing), start=start, namespace=registration.number
        ) as lease:
            assert (lease.stands_on, lease.instances(), lease.instance) == (NO_INSTANCE, [], NO_INSTANCE)


def test_a_page_that_was_computed_anew_is_another_one(
    site: AttachSite, arena: AttachedArena, registration: Registration
) -> None:
    keys = chain(2)
    before = put(arena, registration, keys)
    assert site.call(lambda store: store.hide_pages(keys[:1])) == 2
    after = put(arena, registration, keys)
    assert not set(before) & set(after)
    assert get(arena, registration, keys) == (2, after[-1], after)


@pytest.mark.parametrize("room", [bytearray(7), bytes(16), array("Q", [0])])
def test_room_that_can_hold_no_instances_is_refused(
    arena: AttachedArena, registration: Registration, room: object
) -> None:
    with pytest.raises(ValueError, match="instances"):
        arena.reader.get(
            registration.counter, packed(chain(2)), buffers(2, SIZE), namespace=registration.number,
            page_bytes=SIZE, instances=room,  # type: ignore[arg-type]
        )  # fmt: skip


def test_pages_that_stand_on_what_they_rest_on_are_not_marked(
    site: AttachSite, arena: AttachedArena, registration: Registration
) -> None:
    keys = chain(6)
    stored = put(arena, registration, keys[:2], rests_on=NO_INSTANCE)
    put(arena, registration, keys[:4], start=2, rests_on=stored[-1])
    put(arena, registration, keys, start=4, rests_on=stored[0])
    assert [is_marked(site, key) for key in keys] == [False] * 6


@pytest.mark.parametrize("rests_on", ["unknown", "gone", "elsewhere"])
def test_pages_that_rest_on_something_else_are_marked(
    site: AttachSite, arena: AttachedArena, registration: Registration, rests_on: str
) -> None:
    keys, other = chain(3), chain(1)
    gone = put(arena, registration, keys[:1], rests_on=NO_INSTANCE)[0]
    site.call(lambda store: store.hide_pages(keys[:1]))
    put(arena, registration, keys[:1], rests_on=NO_INSTANCE)
    elsewhere = put(arena, registration, other, rests_on=NO_INSTANCE)[0]
    number = {"unknown": UNKNOWN_INSTANCE, "gone": gone, "elsewhere": elsewhere}[rests_on]
    put(arena, registration, keys, start=1, rests_on=number)
    assert [is_marked(site, key) for key in keys] == [False, True, True]


def test_a_commit_that_says_nothing_counts_as_resting_on_anything(
    site: AttachSite, arena: AttachedArena, registration: Registration
) -> None:
    keys = chain(1)
    (place,) = arena.reserve(registration, None, packed(keys), deadline_s=10.0)
    assert isinstance(place, Reserved)
    assert arena.commit([place.id], stamp=stamp_of(arena), deadline_s=10.0) == [STORED]
    assert is_marked(site, keys[0])


def test_an_instance_wraps_as_its_reservation_does() -> None:
    assert stored_instance(1 << 32 | 5) == 2 << 32 | 5
    assert stored_instance(0xFFFF_FFFF << 32 | 5) == 5
