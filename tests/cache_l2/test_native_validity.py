"""Header, views, freshness, requests and accounting of the native core (rules R14, R16, R19 and R20)."""

from __future__ import annotations

import os
import threading

import pytest

from cache_l2._native import Reader
from kv_types.outcomes import MissReason
from tests.support.native_arena import FAR_NS, NO_LOG, PAGE, NativeArena, chain, now_ns
from tests.support.polling import wait_until


def publish(world: NativeArena, revision: int, *, payload: bytes = b"", kind: int = 1) -> int:
    return world.arena.publish_event(incarnation=b"i" * 16, revision=revision, kind=kind, payload=payload)


def test_a_stale_arena_serves_nothing() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    world.put(keys)
    packed = b"".join(keys)
    world.arena.publish_freshness(now_ns() - 1)
    assert world.reader.match(packed, namespace=1) == (0, MissReason.STALE)
    lease = world.reader.lease(0, packed, namespace=1)
    assert (lease.pages, lease.reason, list(lease)) == (0, MissReason.STALE, [])
    assert world.reader.get(0, packed, bytearray(3 * PAGE), page_bytes=PAGE, namespace=1)[:2] == (
        0,
        MissReason.STALE,
    )
    assert world.reader.held() == 0
    world.arena.publish_freshness(FAR_NS)
    assert world.reader.freshness_ns() == FAR_NS
    assert world.reader.match(packed, namespace=1) == (3, MissReason.NONE)


def test_a_closed_arena_serves_nothing() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys)
    assert world.reader.closed is False
    world.arena.close_header()
    assert bool(world.reader.closed)
    assert world.reader.match(keys[0], namespace=1) == (0, MissReason.CLOSED)
    assert world.reader.lease(0, keys[0], namespace=1).reason == MissReason.CLOSED
    assert world.counts()["miss_3"] == 1


def test_events_and_stamps_go_with_their_views() -> None:
    world = NativeArena(ring_records=8)
    assert world.reader.stamp() == (1, NO_LOG, 0)
    assert publish(world, 41, payload=b"x" * 432, kind=7) == 2
    assert publish(world, 42) == 3
    assert world.arena.view == world.reader.view == 3
    assert world.reader.stamp() == (3, b"i" * 16, 42)
    assert world.reader.events_since(1) == [(2, b"i" * 16, 41, 7, b"x" * 432), (3, b"i" * 16, 42, 1, b"")]
    assert world.reader.events_since(3) == []
    assert world.reader.events_since(4) is None, "a view of another life"
    for revision in range(43, 50):
        publish(world, revision)
    assert world.reader.events_since(1) is None, "overrun"
    assert world.reader.events_since(2) is not None
    with pytest.raises(ValueError, match="432"):
        publish(world, 50, payload=b"x" * 433)
    with pytest.raises(ValueError, match="incarnation"):
        world.arena.publish_event(incarnation=b"", revision=1, kind=1, payload=b"")


def test_requests_hold_back_drained() -> None:
    world = NativeArena()
    slot, view, incarnation, revision = world.reader.begin_request()
    assert (view, incarnation, revision) == world.reader.stamp()
    publish(world, 5)
    second = world.reader.begin_request()
    assert second[1:] == (2, b"i" * 16, 5)
    assert world.arena.row_statistics(world.row)["oldest_view"] == 1
    world.reader.end_request(slot)
    world.reader.end_request(slot)
    assert world.arena.row_statistics(world.row)["oldest_view"] == 2
    world.reader.end_request(second[0])
    assert world.arena.row_statistics(world.row)["oldest_view"] == 0
    slots = [world.reader.begin_request()[0] for _ in range(256)]
    assert sorted(slots) == list(range(256))
    none_left = world.reader.begin_request()
    assert none_left == (-1, 2, b"i" * 16, 5)
    world.reader.end_request(-1)
    for taken in slots:
        world.reader.end_request(taken)
    assert world.reader.begin_request()[0] in range(256)
    with pytest.raises(ValueError, match="slot"):
        world.reader.end_request(256)


def test_one_request_slot_can_stand_for_many_and_only_go_forward() -> None:
    world = NativeArena()
    slot, view, _, _ = world.reader.begin_request()

    def oldest() -> int:
        return world.arena.row_statistics(world.row)["oldest_view"]

    for revision in range(3):
        publish(world, revision)
    assert (view, oldest()) == (1, 1)
    world.reader.advance_request(slot, 3)
    assert oldest() == 3
    world.reader.advance_request(slot, 2)
    assert oldest() == 3
    with pytest.raises(ValueError, match="not published"):
        world.reader.advance_request(slot, 5)
    world.reader.end_request(slot)
    with pytest.raises(ValueError, match="no request holds"):
        world.reader.advance_request(slot, 4)
    world.reader.advance_request(-1, 4)
    with pytest.raises(ValueError, match="slot"):
        world.reader.advance_request(256, 4)
    assert oldest() == 0


def test_a_request_can_rest_on_an_older_view() -> None:
    world = NativeArena()
    for revision in range(3):
        publish(world, revision)
    slot, *present = world.reader.begin_request(view=2)
    assert tuple(present) == world.reader.stamp(), "what is returned is the present"
    assert world.arena.row_statistics(world.row)["oldest_view"] == 2
    world.reader.advance_request(slot, 3)
    assert world.arena.row_statistics(world.row)["oldest_view"] == 3
    world.reader.end_request(slot)
    for none in (0, 5, 2**64 - 1):
        with pytest.raises(ValueError, match="published"):
            world.reader.begin_request(view=none)
    assert world.arena.row_statistics(world.row)["oldest_view"] == 0
    assert sorted(world.reader.begin_request(view=1)[0] for _ in range(256)) == list(range(256)), (
        "a refused one takes no slot"
    )


def test_applied_view_is_told() -> None:
    world = NativeArena()
    world.reader.set_applied_view(3)
    assert world.arena.row_statistics(world.row)["applied_view"] == 3


def test_an_engine_says_what_it_is_and_until_when_it_serves_without_asking() -> None:
    world = NativeArena()
    row = world.arena.open_row(5, engine=1)
    engine = world.attach(row)

    def state() -> tuple[int, int]:
        statistics = world.arena.row_statistics(row)
        return statistics["engine"], statistics["own_freshness_ns"]

    assert state() == (1, 0)
    assert world.arena.row_statistics(world.row)["engine"] == 0
    publish(world, 1)
    world.arena.publish_freshness(77)
    assert engine.claim_freshness() == (77, 2)
    assert state() == (1, 77)
    assert engine.claim_freshness(2**64 - 1) == (77, 2), "nobody has granted more"
    assert state() == (1, 77)
    world.arena.grant_keep(True)
    assert engine.claim_freshness() == (77, 2)
    assert engine.claim_freshness(2**64 - 1) == (2**64 - 1, 2)
    assert state() == (1, 2**64 - 1)
    world.arena.grant_keep(False)
    assert engine.claim_freshness(2**64 - 1) == (77, 2)
    assert engine.claim_freshness(0) == (0, 2)
    assert state() == (1, 0)
    engine.claim_freshness(55)
    world.arena.end_row(row)
    assert world.arena.open_row(6, engine=2) == row
    assert state() == (2, 0), "a row is given cleared"


@pytest.mark.parametrize(("engine", "unlimited"), [(0, 77), (1, 2**64 - 1), (2, 77)])
def test_nobody_claims_more_than_a_fence_waits_out_or_the_log_knows_of(engine: int, unlimited: int) -> None:
    world = NativeArena()
    client = world.attach(world.arena.open_row(5, engine=engine))
    world.arena.publish_freshness(77)
    world.arena.grant_keep(True)
    assert [client.claim_freshness(asked)[0] for asked in (76, 77, 78, 2**63, 2**64 - 2)] == [
        76,
        77,
        77,
        77,
        77,
    ]
    assert client.claim_freshness(2**64 - 1)[0] == unlimited


def test_every_page_asked_for_is_accounted_for() -> None:
    world = NativeArena()
    keys = chain("a", 10)
    world.put(keys[:6])
    packed = b"".join(keys)
    world.reader.lease(2, packed, start=2, namespace=1).release()
    world.reader.get(2, packed[: 5 * 32], bytearray(5 * PAGE), page_bytes=PAGE, namespace=1)
    world.reader.count_outcome(2, requested=7, l1=7, reason=MissReason.NONE)
    world.reader.count_outcome(2, requested=4, l1=1, reason=MissReason.UNREACHABLE)
    world.reader.match(packed, namespace=1)
    with world.reader.lease_uncounted(packed, start=2, namespace=1) as lease:
        assert (lease.pages, lease.reason) == (4, MissReason.ABSENT)
        assert world.reader.held() == 1
    counts = world.counts(counter=2)
    assert counts["begun"] == counts["requested"] == 10 + 5 + 7 + 4
    assert (counts["l1"], counts["l2"], counts["miss_1"], counts["miss_9"]) == (2 + 7 + 1, 4 + 5, 4, 3)
    assert (counts["look_ups"], counts["bytes_read"]) == (4, 9 * PAGE)
    assert world.counts(counter=0)["bytes_written"] == 6 * PAGE
    world.arena.reset_counts(world.row, 2)
    assert set(world.counts(counter=2).values()) == {0}
    with pytest.raises(ValueError, match="reason"):
        world.reader.count_outcome(0, requested=4, l1=1, reason=MissReason.NONE)
    with pytest.raises(ValueError, match="l1"):
        world.reader.count_outcome(0, requested=1, l1=2, reason=MissReason.ABSENT)
    with pytest.raises(ValueError, match="counter"):
        world.reader.lease(32, packed, namespace=1)


def test_counts_are_consistent_while_threads_count() -> None:
    """Every read of the block adds up, though four threads rewrite it all the time."""
    world = NativeArena()
    keys = chain("a", 6)
    world.put(keys[:4])
    packed = b"".join(keys)
    rounds = 2000

    def work() -> None:
        for number in range(rounds):
            world.reader.lease(0, packed, start=number % 7, namespace=1).release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counts = world.counts()
        assert counts["begun"] >= counts["requested"]
    for thread in threads:
        thread.join()
    counts = world.counts()
    assert counts["begun"] == counts["requested"] == 4 * rounds * 6
    assert world.reader.held() == 0


def test_look_ups_survive_a_storm_of_events() -> None:
    """While events are published without pause a look-up answers in bounded time: its pages, or RACED and none."""
    keys = chain("a", 400)
    world = NativeArena(slots=512, ring_records=4)
    world.put(keys)
    packed = b"".join(keys)
    stop = threading.Event()
    published = 0

    def storm() -> None:
        nonlocal published
        while not stop.is_set():
            published = publish(world, 1)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        wait_until(lambda: published > 1, what="the first event")
        for _ in range(300):
            pages, reason = world.reader.match(packed, namespace=1)
            assert (pages, reason) in {(400, MissReason.NONE), (0, MissReason.RACED)}
            view, incarnation, _ = world.reader.stamp()
            assert (view > 1, incarnation) == (True, b"i" * 16)
    finally:
        stop.set()
        thread.join()
    assert world.reader.match(packed, namespace=1) == (400, MissReason.NONE)


def test_a_header_of_another_life_or_layout_is_refused() -> None:
    world = NativeArena()
    mine = world.life
    world.life = os.urandom(16)
    with pytest.raises(ValueError, match="another life"):
        world.attach(world.row)
    world.life = mine
    with pytest.raises(ValueError, match="beyond"):
        world.attach(world.rows)
    control, clients, data = world.arena.duplicate_descriptors(writable=False)
    with pytest.raises(ValueError, match="magic"):
        Reader(control_fd=data, clients_fd=clients, data_fd=control, row=0, life=mine, writable=False)
    for descriptor in (control, clients, data):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
