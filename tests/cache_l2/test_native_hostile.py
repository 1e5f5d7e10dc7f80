"""Garbage that a client writes into its row and the access times: what others get out of the arena stays the same."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import NativeArena, chain, now_ns

STORED = (PutStatus.STORED, RefuseReason.NONE)


@contextmanager
def clients_file(world: NativeArena) -> Iterator[tuple[mmap.mmap, int]]:
    """The clients file as any client may map it, and where the access times begin."""
    descriptors = world.arena.duplicate_descriptors(writable=False)
    size = world.arena.geometry["clients_bytes"]
    with mmap.mmap(descriptors[1], size) as clients:
        yield clients, size - -(-world.entries * 16 // 4096) * 4096
    for descriptor in descriptors:
        os.close(descriptor)


def test_access_times_of_the_future_do_not_keep_pages_for_ever() -> None:
    world = NativeArena(slots=256)
    poisoned = [chain(f"p{i}", 1) for i in range(128)]
    for one in poisoned:
        world.put(one)
    with clients_file(world) as (clients, begin):
        for one in poisoned:
            found = world.arena.find(one[0])
            assert found is not None
            assert isinstance(found["entry"], int)
            at = begin + 16 * found["entry"]
            clients[at : at + 8] = (2**64 - 1).to_bytes(8, "little")
    for number in range(256):
        assert world.put(chain(f"new{number}", 1)) == [STORED]
    assert sum(world.resident(one) for one in poisoned) == 0, "they are the oldest and nobody reads them"
    world.arena.check_invariants()


def test_a_page_is_not_reserved_on_top_of_itself_when_its_time_is_over() -> None:
    world = NativeArena()
    keys = chain("a", 3)
    expiry_s = now_ns() // 10**9 + 100
    world.put(keys[:1], expiry_s=expiry_s)
    world.put(keys[1:], parent=keys[0])
    after = (expiry_s + 1) * 10**9
    answers = world.reserve([keys[0], keys[1]], parent=keys[2], now=after)
    assert [answer[:2] for answer in answers] == [(PutStatus.REFUSED, RefuseReason.PARENT_ABSENT)] * 2
    world.arena.check_invariants()
    assert world.put(keys) == [STORED] * 3
    world.arena.check_invariants()


def test_a_page_is_not_reserved_on_top_of_itself_when_its_reservation_ran_out() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    now = now_ns()
    (below,) = world.reserve(keys[:1], deadline_ns=now + 1)
    (above,) = world.reserve(keys[1:], parent=keys[0], now=now)
    answers = world.reserve([keys[0]], parent=keys[1], now=now + 2)
    assert [answer[:2] for answer in answers] == [(PutStatus.REFUSED, RefuseReason.PARENT_ABSENT)]
    world.arena.check_invariants()
    refused = world.commit([below.reservation, above.reservation], now=now + 2)
    assert [status for status, _ in refused] == [PutStatus.REFUSED] * 2
    assert world.put(keys) == [STORED] * 2
    world.arena.check_invariants()
