"""A daemon that is stopped, resumed and killed: its clients wait no longer than they said, and learn what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2.attach_registrations import Registration
from cache_l2.reader import AttachedArena, Reserved
from kv_types.errors import DeadlineExceededError
from kv_types.outcomes import MissReason, Refused, RefuseReason
from tests.support.attach_daemon import AttachDaemon
from tests.support.attach_site import SMALL, register
from tests.support.attach_worker import check, put, stamp_of
from tests.support.pages import chain, namespace_of, packed, page_of
from tests.support.polling import wait_until
from tests.support.timing import timed

FRESHNESS_LEASE_S = 0.5
DEADLINE_S = 0.1
SLACK_S = 0.25
"""What two busy cores may add to a deadline."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[AttachDaemon]:
    with AttachDaemon(tmp_path, **{**SMALL, "lease_s": FRESHNESS_LEASE_S}) as started:
        yield started


@pytest.fixture
def arena(daemon: AttachDaemon) -> Iterator[AttachedArena]:
    with daemon.attach() as attached:
        yield attached


@pytest.fixture
def registration(arena: AttachedArena) -> Registration:
    return register(arena, namespace_of())


def test_c34_a_stopped_daemon_keeps_nobody_waiting_and_its_pages_become_stale(
    daemon: AttachDaemon, arena: AttachedArena, registration: Registration
) -> None:
    keys = chain(3)
    put(arena, registration, keys)
    ids = [place.id for place in _reserve(arena, registration, 2)]
    stamp = stamp_of(arena)
    daemon.stop()
    late = [Refused(RefuseReason.DEADLINE)]

    def reserves() -> None:
        assert arena.reserve(registration, None, packed(chain(1)), deadline_s=DEADLINE_S) == late

    def commits() -> None:
        assert arena.commit(ids[:1], stamp=stamp, deadline_s=DEADLINE_S) == late

    def registers() -> None:
        with pytest.raises(DeadlineExceededError, match="within"):
            arena.register(namespace_of("other").canonical, 4096, deadline_s=DEADLINE_S)

    for call in (reserves, commits, registers, lambda: arena.abort(ids[1:], deadline_s=DEADLINE_S)):
        timed(call, deadline_s=DEADLINE_S)
    assert not arena.ping(deadline_s=DEADLINE_S)
    wait_until(
        lambda: arena.reader.match(packed(keys), namespace=registration.number) == (0, MissReason.STALE),
        what="pages to become stale",
        timeout_s=5,
    )
    assert arena.alive, "stopped is not dead"
    daemon.resume()
    wait_until(lambda: arena.ping(deadline_s=1.0), what="the daemon to answer again")
    wait_until(
        lambda: arena.reader.match(packed(keys), namespace=registration.number) == (3, MissReason.NONE),
        what="pages to be fresh again",
    )


def test_reservations_that_came_too_late_are_given_back(
    daemon: AttachDaemon, arena: AttachedArena, registration: Registration
) -> None:
    daemon.stop()
    for _ in range(5):
        assert (
            arena.reserve(registration, None, packed(chain(4)), deadline_s=0.01)
            == [Refused(RefuseReason.DEADLINE)] * 4
        )
    daemon.resume()
    wait_until(
        lambda: daemon.ask("statistics")["reservations"] == 20, what="the late reservations to be made"
    )
    assert arena.ping(deadline_s=5.0)
    assert daemon.ask("statistics")["reservations"] == 0
    assert arena._channel.late_replies == 6, "five reservations, and the abort that gave them back"


def test_a_stopped_daemon_that_owes_many_replies_is_not_asked_for_more(
    daemon: AttachDaemon, arena: AttachedArena
) -> None:
    daemon.stop()
    begun = time.monotonic()
    for _ in range(600):
        assert not arena.ping(deadline_s=0.001)
    assert time.monotonic() - begun < 600 * (0.001 + SLACK_S / 10)
    daemon.resume()
    wait_until(lambda: arena.ping(deadline_s=1.0), what="the daemon to answer again")
    assert arena.alive
    assert daemon.ask("statistics")["server.dropped_slow"] == 0


def test_c34_a_killed_daemon_is_noticed_and_leased_bytes_stay(
    daemon: AttachDaemon, arena: AttachedArena, registration: Registration
) -> None:
    keys = chain(2)
    put(arena, registration, keys)
    lease = arena.reader.lease(registration.counter, packed(keys), namespace=registration.number)
    daemon.kill()
    assert not arena.alive
    gone = [Refused(RefuseReason.UNREACHABLE)]
    timed(
        lambda: arena.reserve(registration, None, packed(chain(1)), deadline_s=DEADLINE_S),
        deadline_s=DEADLINE_S,
    )
    assert arena.reserve(registration, None, packed(chain(1)), deadline_s=DEADLINE_S) == gone
    assert arena.commit([1], stamp=stamp_of(arena), deadline_s=DEADLINE_S) == gone
    assert [bytes(page) for page in lease] == [page_of(key, registration.page_bytes) for key in keys]
    wait_until(
        lambda: arena.reader.match(packed(keys), namespace=registration.number) == (0, MissReason.STALE),
        what="pages to become stale",
        timeout_s=5,
    )
    lease.release()
    arena.close()


def test_c34_a_client_attaches_to_the_next_daemon_in_another_life(tmp_path: Path) -> None:
    with AttachDaemon(tmp_path, **SMALL) as first:
        old = first.attach()
        keys = chain(2)
        put(old, register(old, namespace_of()), keys)
        first.kill()
    with AttachDaemon(tmp_path, **SMALL) as second, second.attach() as new:
        assert new.life != old.life
        registration = register(new, namespace_of())
        assert check(new, registration, keys) == 0
        put(new, registration, keys)
        assert check(new, registration, keys) == 2
        old.close()


def _reserve(arena: AttachedArena, registration: Registration, count: int) -> list[Reserved]:
    places = arena.reserve(registration, None, packed(chain(count)), deadline_s=5.0)
    return [place for place in places if isinstance(place, Reserved)]
