"""Posts in rows that are full, or another client's by now, in the native core."""

from __future__ import annotations

import os
import threading
import time

import pytest

from kv_types import limits
from kv_types.outcomes import PutStatus, RefuseReason
from tests.cache_l2.test_native_grants import POSTED, STORED, WAIT_S, Poster
from tests.support.native_arena import FAR_NS, PAGE, NativeArena, chain, now_ns


def test_what_was_posted_is_stored_however_many_reservations_its_row_has() -> None:
    world = NativeArena(slots=limits.RESERVATIONS_PER_CLIENT_MAX + 256, entries=8192)
    poster = Poster.of(world, slots=4)
    for number in range(0, limits.RESERVATIONS_PER_CLIENT_MAX, 512):
        world.reserve(chain(f"r{number}", 512), row=poster.row)
    assert [one[:2] for one in world.reserve(chain("more", 1), row=poster.row)] == [
        (PutStatus.REFUSED, RefuseReason.QUOTA)
    ]
    poster.grant(4)
    keys = chain("a", 2)
    assert poster.post(keys)[0] == POSTED
    assert world.settle() == [[STORED] * 2]
    assert world.resident(keys) == 2


def test_a_look_up_does_not_wait_for_a_row_that_is_another_clients_by_now() -> None:
    world = NativeArena(slots=512)
    reader = Poster.of(world, slots=0).reader
    waited: list[tuple[int, float]] = []
    for _ in range(50):
        poster, keys = Poster.of(world, slots=1), chain(os.urandom(8).hex(), 1)
        assert poster.post(keys)[0] == POSTED
        started = threading.Event()

        def look(key: bytes = keys[0], started: threading.Event = started) -> None:
            began_s = time.monotonic()
            started.set()
            pages, _ = reader.match(key, namespace=1)
            waited.append((pages, time.monotonic() - began_s))

        thread = threading.Thread(target=look)
        thread.start()
        started.wait()
        until_s = time.monotonic() + WAIT_S / 4
        while time.monotonic() < until_s:
            os.sched_yield()
        post = world.arena.next_post(poster.row)
        assert post is not None
        rows = world.arena.reserve(
            row=poster.row, namespace_slot=1, parent=None, keys=keys[0], payload_bytes=PAGE, expiry_s=0,
            deadline_ns=FAR_NS, now_ns=now_ns(), granted=post[4],
        )  # fmt: skip
        world.commit([rows[0][2]], row=poster.row)
        # it is settled, its client ends, and the row is the next one's, all of it while nobody looks
        world.arena.end_row(poster.row)
        assert world.arena.open_row(os.getpid()) == poster.row
        thread.join()
        world.arena.end_row(poster.row)
        if waited[-1][0] and waited[-1][1] > WAIT_S / 8:
            return
    pytest.fail(f"nobody who waited found the page: {waited}")
