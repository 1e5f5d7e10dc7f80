"""AttachedArena used by many threads and closed in odd moments: no call is lost, no row is given back too early."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cache_l2.attach_registrations import Registration
from cache_l2.reader import AttachedArena, Reserved
from kv_types.errors import ClosedError
from kv_types.outcomes import STORED, Known, Refused
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import check, put, stamp_of
from tests.support.pages import buffers, chain, namespace_of, packed, page_of
from tests.support.polling import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path, arena_bytes=32 << 20, client_rows=16) as started:
        yield started


def test_calls_of_many_threads_get_their_own_answers(site: AttachSite) -> None:
    with site.attach() as arena:
        registration = register(arena, namespace_of())
        stamp = stamp_of(arena)

        def work(number: int) -> int:
            keys = chain(1 + number % 7)
            places = arena.reserve(registration, None, packed(keys), deadline_s=10.0)
            ids = []
            for key, place in zip(keys, places, strict=True):
                assert isinstance(place, Reserved)
                arena.reader.fill([place.offset], [page_of(key, 4096)], page_bytes=4096)
                ids.append(place.id)
            assert arena.commit(ids, stamp=stamp, deadline_s=10.0) == [STORED] * len(keys)
            return check(arena, registration, keys)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(200))) == [1 + number % 7 for number in range(200)]
    assert site.statistic("stored") == sum(1 + number % 7 for number in range(200))


def test_threads_that_race_for_one_chain_store_it_once(site: AttachSite) -> None:
    keys = chain(20)
    arenas = [site.attach() for _ in range(4)]
    barrier = threading.Barrier(4)

    def race(arena: AttachedArena) -> int:
        registration = register(arena, namespace_of())
        barrier.wait(10)
        places = arena.reserve(registration, None, packed(keys), deadline_s=10.0)
        ids = [place.id for place in places if isinstance(place, Reserved)]
        for key, place in zip(keys, places, strict=True):
            if isinstance(place, Reserved):
                arena.reader.fill([place.offset], [page_of(key, 4096)], page_bytes=4096)
            else:
                assert isinstance(place, Known | Refused)
        return sum(outcome == STORED for outcome in arena.commit(ids, stamp=stamp_of(arena), deadline_s=10.0))

    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(race, arenas))
    assert sum(stored) == 20
    assert check(arenas[0], register(arenas[0], namespace_of()), keys) == 20
    for arena in arenas:
        arena.close()


def test_a_closed_attachment_says_so(site: AttachSite) -> None:
    arena = site.attach()
    registration = register(arena, namespace_of())
    arena.close()
    assert not arena.alive
    calls: list[Callable[[], object]] = [
        lambda: arena.reader,
        lambda: arena.ping(deadline_s=1.0),
        lambda: arena.reserve(registration, None, packed(chain(1)), deadline_s=1.0),
        lambda: arena.commit([1], stamp=site.store.stamp(), deadline_s=1.0),
        lambda: arena.abort([1]),
        lambda: register(arena, namespace_of()),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="attach again"):
            call()


def test_closing_while_others_wait_ends_their_calls(site: AttachSite) -> None:
    arena = site.attach()
    register(arena, namespace_of())
    stalled, resume = threading.Event(), threading.Event()

    def stall(_: object) -> None:
        stalled.set()
        resume.wait(10)

    with ThreadPoolExecutor(2) as pool:
        blocked = pool.submit(site.call, stall)
        assert stalled.wait(10)
        answers = pool.submit(arena.ping, deadline_s=10.0)
        wait_until(lambda: arena._channel.calls_under_way > 0, what="the call to be under way")
        arena.close()
        assert answers.result(5) is False
        resume.set()
        blocked.result(10)


def test_a_row_with_leases_is_not_given_back_when_its_attachment_closes(site: AttachSite) -> None:
    arena = site.attach()
    registration = register(arena, namespace_of())
    keys = chain(2)
    put(arena, registration, keys)
    lease = arena.reader.lease(registration.counter, packed(keys), namespace=registration.number)
    view = lease[0]
    arena.close()
    wait_until(lambda: site.statistic("clients_orphaned") == 1, what="the row to be orphaned")
    site.call(lambda store: store.hide_all())
    filler = site.attach()
    for _ in range(3):
        put(filler, register(filler, namespace_of()), chain(500))
    assert bytes(view) == page_of(keys[0], registration.page_bytes), "leased bytes were overwritten"
    del view
    lease.release()
    wait_until(lambda: site.statistic("leases") == 0, what="the lease to end")
    filler.close()


def test_a_released_lease_that_is_kept_around_does_not_keep_the_row(site: AttachSite) -> None:
    arena = site.attach()
    registration = register(arena, namespace_of())
    keys = chain(2)
    put(arena, registration, keys)
    leases = [
        arena.reader.lease(registration.counter, packed(keys), namespace=registration.number)
        for _ in range(2)
    ]
    looked_at = bytes(leases[1][0])
    for lease in leases:
        lease.release()
    arena.close()
    wait_until(lambda: site.statistic("server.processes") == 0, what="the row to be freed")
    assert site.statistic("server.orphaned") == 0
    assert len(leases[0]) == 2
    assert looked_at
    with pytest.raises(ValueError, match="released"):
        leases[1][0]


def test_a_row_is_not_given_back_while_another_thread_is_inside_a_call(site: AttachSite) -> None:
    keys = chain(64)
    for _ in range(10):
        arena = site.attach()
        registration = register(arena, namespace_of(units=16))
        if arena.reader.match(packed(keys), namespace=registration.number)[0] == 0:
            put(arena, registration, keys)
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(_copy_until_closed, arena, registration, packed(keys))
            wait_until(lambda: site.statistic("leases") > 0, what="a copy to be under way")
            arena.close()
            copying.result(20)
        site.call(lambda store: store.check_invariants())
    attached = site.statistic("clients_attached") + site.statistic("clients_orphaned")
    assert attached <= 1 + 10
    assert site.statistic("leases") == 0


def _copy_until_closed(arena: AttachedArena, registration: Registration, keys: bytes) -> None:
    destinations = buffers(len(keys) // 32, registration.page_bytes)
    try:
        while True:
            arena.reader.get(
                registration.counter,
                keys,
                destinations,
                page_bytes=registration.page_bytes,
                namespace=registration.number,
            )
    except (ClosedError, ValueError):
        return


def test_a_name_is_shown_and_limited_in_bytes(site: AttachSite) -> None:
    from kv_types.errors import LimitExceededError

    with site.attach(name="é" * 32):
        assert site.call(lambda _: site.server.processes()[0].name) == "é" * 32
        assert site.call(lambda _: site.server.processes()[0].pid) == os.getpid()
    with pytest.raises(LimitExceededError):
        site.attach(name="é" * 33)
