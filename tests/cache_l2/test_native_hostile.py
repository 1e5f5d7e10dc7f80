"""Garbage that a client writes into its row and the access times: what others get out of the arena stays the same."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import NativeArena, chain

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
