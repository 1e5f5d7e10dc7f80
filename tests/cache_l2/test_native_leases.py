"""Leases of the native core: what they pin, when they end, and what timed copies do."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from kv_types.outcomes import MissReason, PutStatus, RefuseReason
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns, payload

FULL = (PutStatus.REFUSED, RefuseReason.FULL)
STORED = (PutStatus.STORED, RefuseReason.NONE)


def one_slot_short() -> tuple[NativeArena, list[list[bytes]]]:
    """An arena whose 256 slots are all taken by single pages."""
    world = NativeArena(slots=256)
    singles = [chain(f"s{i}", 1) for i in range(256)]
    for one in singles:
        assert world.put(one) == [STORED]
    return world, singles


def test_views_show_the_pages_and_end_with_the_lease() -> None:
    world = NativeArena()
    keys = chain("a", 5)
    world.put(keys)
    with world.reader.lease(0, b"".join(keys), namespace=1) as lease:
        assert (lease.pages, lease.reason, len(lease), lease.view) == (
            5,
            MissReason.NONE,
            5,
            world.arena.view,
        )
        views = list(lease)
        assert [bytes(view) for view in views] == [payload(key) for key in keys]
        assert all(view.readonly and view.nbytes == PAGE for view in views)
        assert lease[-1] is lease[4]
        with pytest.raises(IndexError):
            lease[5]
        with pytest.raises(TypeError):
            views[0][0] = 1
        assert world.reader.held() == 1
        assert world.arena.row_statistics(world.row)["leases"] == 5
    assert world.reader.held() == 0
    with pytest.raises(ValueError, match="released"):
        views[0].tobytes()
    with pytest.raises(ValueError, match="released"):
        lease[0]


def test_a_view_that_is_still_looked_at_keeps_its_page() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    array = np.frombuffer(lease[1], dtype=np.uint8)
    part = lease[2][100:200]
    lease.release()
    assert world.arena.row_statistics(world.row)["leases"] == 2
    world.hide(keys[0])
    assert world.arena.statistics()["entries_hidden_leased"] == 2
    assert array.tobytes() == payload(keys[1])
    assert part.tobytes() == payload(keys[2])[100:200]
    del array
    gc.collect()
    assert world.arena.row_statistics(world.row)["leases"] == 1
    world.arena.expire(now_ns())
    assert world.arena.statistics()["entries_hidden_leased"] == 1
    part.release()
    assert world.reader.held() == 0
    world.arena.expire(now_ns())
    assert world.arena.statistics()["entries_hidden_leased"] == 0


def test_a_view_released_by_its_user_is_made_anew() -> None:
    world = NativeArena()
    keys = chain("a", 1)
    world.put(keys)
    with world.reader.lease(0, keys[0], namespace=1) as lease:
        with lease[0] as view:
            assert bytes(view) == payload(keys[0])
        assert bytes(lease[0]) == payload(keys[0])


def test_a_dropped_lease_lets_go() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    view = lease[0]
    del lease
    assert (world.reader.held(), world.arena.row_statistics(world.row)["leases"]) == (1, 1)
    assert bytes(view) == payload(keys[0])
    del view
    assert world.reader.held() == 0


def test_c11_nothing_is_freed_early_and_counts_never_go_below_zero() -> None:
    world = NativeArena(slots=256)
    keys = chain("a", 2)
    world.put(keys)
    other = world.attach(world.arena.open_row(2))
    mine, theirs = (
        world.reader.lease(0, b"".join(keys), namespace=1),
        other.lease(0, b"".join(keys), namespace=1),
    )
    mine.release()
    mine.release()
    with mine:
        pass
    assert (world.reader.held(), other.held()) == (0, 1)
    assert world.hide(keys[0]) == 2
    assert world.arena.statistics()["entries_hidden_leased"] == 2
    for number in range(400):
        world.put(chain(f"filler{number}", 1))
    assert [bytes(view) for view in theirs] == [payload(key) for key in keys]
    theirs.release()
    theirs.release()
    world.arena.expire(now_ns())
    assert world.arena.statistics()["entries_hidden_leased"] == 0
    world.arena.check_invariants()


def test_c32_a_store_full_of_leased_pages_says_full() -> None:
    world, singles = one_slot_short()
    leases = [world.reader.lease(0, one[0], namespace=1) for one in singles]
    new = chain("new", 2)
    assert world.put(new) == [FULL, FULL]
    assert world.arena.statistics()["evictions_capacity"] == 0, "hiding leased pages would gain nothing"
    leases[100].release()
    assert world.put(new) == [STORED, FULL]
    assert world.resident(singles[100]) == 0
    assert all(
        bytes(lease[0]) == payload(one[0]) for lease, one in list(zip(leases, singles, strict=True))[:100]
    )
    for lease in leases:
        lease.release()
    assert world.put(new[1:], parent=new[0]) == [STORED]
    world.arena.check_invariants()


def test_invalidated_and_leased_pages_are_created_anew_at_once() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    world.put(keys)
    old = world.reader.lease(0, b"".join(keys), namespace=1)
    world.hide(keys[0])
    assert world.put(keys) == [STORED] * 3
    new = world.reader.lease(0, b"".join(keys), namespace=1)
    assert new.pages == 3
    assert world.arena.statistics()["entries_hidden_leased"] == 3
    assert [bytes(view) for view in old] == [bytes(view) for view in new]
    old.release()
    new.release()
    world.arena.expire(now_ns())
    assert world.arena.statistics()["entries_hidden_leased"] == 0
    assert world.resident(keys) == 3


def test_a_client_holds_at_most_its_limit_of_leases_however_long_they_are() -> None:
    world = NativeArena(leases_per_row=2)
    keys = chain("a", 8)
    world.put(keys)
    packed, destination = b"".join(keys), bytearray(8 * PAGE)
    first, second = (world.reader.lease(0, packed, namespace=1) for _ in range(2))
    assert (first.pages, second.pages) == (8, 8)
    refused = world.reader.lease(0, packed, namespace=1)
    assert (refused.pages, refused.reason) == (0, MissReason.LEASE_LIMIT)
    copied = world.reader.get(0, packed, destination, page_bytes=PAGE, namespace=1)
    assert copied[:2] == (0, MissReason.LEASE_LIMIT)
    assert world.reader.pin(first.instance) is None
    refused.release()
    first.release()
    copied = world.reader.get(0, packed, destination, page_bytes=PAGE, namespace=1)
    assert copied[:2] == (8, MissReason.NONE)
    assert bytes(destination) == b"".join(payload(key) for key in keys)
    assert world.counts()["miss_6"] == 8 + 8


def test_c11_a_release_after_expiry_frees_once_and_only_what_is_its_own() -> None:
    world = NativeArena(slots=256)
    keys, second = chain("a", 2), now_ns() // 10**9 + 1000
    world.put(keys, expiry_s=second)
    other = world.attach(world.arena.open_row(2))
    mine, theirs = (
        world.reader.lease(0, b"".join(keys), namespace=1),
        other.lease(0, b"".join(keys), namespace=1),
    )
    assert world.arena.expire(second * 10**9) == 2
    mine.release()
    mine.release()
    world.arena.expire(second * 10**9)
    assert world.arena.statistics()["entries_hidden_leased"] == 2, "the other client still reads them"
    assert [bytes(view) for view in theirs] == [payload(key) for key in keys]
    theirs.release()
    theirs.release()
    world.arena.expire(second * 10**9)
    statistics = world.arena.statistics()
    assert (statistics["entries_hidden_leased"], statistics["leased_bytes"]) == (0, 0)
    assert (world.reader.held(), other.held()) == (0, 0)
    world.arena.check_invariants()


def test_c30_a_copy_that_outlasts_its_lease_serves_nothing() -> None:
    world = NativeArena(slots=512)
    keys = chain("a", 200)
    world.put(keys)
    destination = bytearray(200 * PAGE)
    packed = b"".join(keys)
    assert world.reader.get(0, packed, destination, page_bytes=PAGE, lease_ns=1, namespace=1)[:2] == (
        0,
        MissReason.LEASE_EXPIRED,
    )
    assert world.reader.get(0, packed, destination, page_bytes=PAGE, namespace=1)[:2] == (
        200,
        MissReason.NONE,
    )
    counts = world.counts()
    assert (counts["l2"], counts["miss_5"], counts["bytes_read"]) == (200, 200, 200 * PAGE)
    assert world.reader.held() == 0


def test_a_closed_reader_keeps_its_memory_for_living_leases() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    view = lease[0]
    world.reader.close()
    assert bytes(view) == payload(keys[0])
    assert world.arena.row_statistics(world.row)["leases"] == 2
    with pytest.raises(ValueError, match="closed"):
        world.reader.match(keys[0], namespace=1)
    with pytest.raises(ValueError, match="closed"):
        world.reader.held()
    lease.release()
    assert world.arena.row_statistics(world.row)["leases"] == 0
    world.reader.close()


def test_an_arena_that_is_gone_leaves_its_readers_their_memory() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    world.arena.close()
    assert bytes(lease[1]) == payload(keys[1])
    assert world.reader.closed
    assert world.reader.match(b"".join(keys), namespace=1) == (0, MissReason.CLOSED)
    lease.release()


def test_row_statistics_count_leases_and_their_bytes() -> None:
    world = NativeArena()
    keys = chain("a", 4)
    world.put(keys)
    with (
        world.reader.lease(0, b"".join(keys), namespace=1),
        world.reader.lease(0, b"".join(keys[:2]), namespace=1),
    ):
        statistics = world.arena.row_statistics(world.row)
        assert (statistics["leases"], statistics["leased_bytes"]) == (6, 6 * PAGE)
        assert world.arena.statistics()["leased_bytes"] == 4 * PAGE
    assert world.arena.row_statistics(world.row)["leases"] == 0


def test_a_row_tells_since_when_what_it_leases_is_hidden() -> None:
    world = NativeArena()
    keys, other = chain("a", 2), chain("b", 1)
    world.put(keys)
    world.put(other)
    second = world.arena.open_row(1)

    def told(row: int) -> int:
        return world.arena.row_statistics(row)["oldest_hidden_view"]

    def published() -> int:
        return world.arena.publish_event(incarnation=bytes(16), revision=1, kind=1, payload=b"")

    with world.reader.lease(0, other[0], namespace=1):
        with world.reader.lease(0, b"".join(keys), namespace=1):
            assert told(world.row) == 0
            first = published()
            world.hide(keys[1])
            later = published()
            world.hide(other[0])
            assert told(world.row) == world.arena.statistics()["oldest_hidden_view"] == first
            assert told(second) == 0, "it leases nothing"
        assert told(world.row) == later
    assert told(world.row) == 0
