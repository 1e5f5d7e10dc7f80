"""Notes of look-ups: who leaves them, what the arena makes of them, and what hostile words in their place may do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_types.outcomes import MissReason
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns
from tests.support.noting import NOTES, Notes, notes_of, page_word

U64 = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**64 - 1, 2**63, NOTES, NOTES + 1]))


@pytest.fixture
def world() -> Iterator[NativeArena]:
    world = NativeArena(slots=64, learns=True)
    yield world
    world.reader.close()
    world.arena.close()


def told(world: NativeArena) -> tuple[int, int]:
    """Notes read and lost, all of them by now."""
    world.arena.read_notes(notes_max=2**32, now_ns=now_ns())
    figures = world.arena.statistics()
    assert figures["policy_requests"] == figures["notes_read"]
    return figures["notes_read"], figures["notes_lost"]


def test_a_look_up_that_is_counted_leaves_one_note(world: NativeArena) -> None:
    keys = chain("a", 4)
    world.put(keys[:2])
    packed, into = b"".join(keys), bytearray(4 * PAGE)
    world.reader.match(packed, namespace=1)
    world.reader.lease_uncounted(packed, namespace=1).release()
    assert told(world) == (0, 0)
    world.reader.lease(0, packed, namespace=1).release()
    assert told(world) == (1, 0)
    world.reader.get(0, packed, into, namespace=1, page_bytes=PAGE)
    assert told(world) == (2, 0)


def test_a_look_up_that_waits_for_a_load_leaves_its_note_when_it_begins(world: NativeArena) -> None:
    keys = chain("a", 4)
    packed, into = b"".join(keys), bytearray(4 * PAGE)
    world.reader.lease(0, packed, namespace=1, may_load=True).release()
    assert told(world) == (1, 0), "what is loaded for it is known by that"
    world.put(keys)
    world.reader.complete_lease(0, packed, namespace=1, l3_from=0).release()
    world.reader.get(0, packed + bytes(32), into + bytes(PAGE), namespace=1, page_bytes=PAGE, may_load=True)
    world.reader.complete_get(0, packed, into, namespace=1, page_bytes=PAGE)
    assert told(world) == (2, 0)


def test_a_look_up_that_cant_tell_what_is_there_leaves_none(world: NativeArena) -> None:
    keys = chain("a", 2)
    world.put(keys)
    world.arena.publish_freshness(1)
    assert world.reader.lease(0, b"".join(keys), namespace=1).reason == MissReason.STALE
    world.reader.count_outcome(0, requested=2, l1=2, reason=0)
    assert told(world) == (0, 0)


def test_a_note_says_what_was_found_and_what_was_not(world: NativeArena) -> None:
    keys = chain("a", 5)
    world.put(keys[:3])
    with notes_of(world) as notes:
        for found in (3, 2):
            world.reader.lease(0, b"".join(keys[: found + 2]), namespace=1).release()
        world.reader.lease(0, b"".join(chain("b", 7)), namespace=1).release()
        world.reader.lease(0, b"".join(keys), namespace=1, start=3).release()
        words = [
            int.from_bytes(notes.clients[at : at + 8], "little")
            for at in range(notes.at + 64, notes.at + 128, 16)
        ]
        whole = page_word(world, keys, 3)
        assert words == [whole, page_word(world, keys[:4], 3), page_word(world, chain("b", 7), 0), whole]
        assert notes.written == 4


def test_notes_that_are_overwritten_are_lost_and_counted(world: NativeArena) -> None:
    world.put(chain("a", 1))
    packed = b"".join(chain("a", 1))
    for _ in range(NOTES + 300):
        world.reader.lease(0, packed, namespace=1).release()
    assert told(world) == (NOTES, 300)
    world.reader.lease(0, packed, namespace=1).release()
    assert told(world) == (NOTES + 1, 300)


def test_a_note_of_a_page_that_went_is_lost(world: NativeArena) -> None:
    keys = chain("a", 2)
    world.put(keys)
    world.reader.lease(0, b"".join(keys), namespace=1).release()
    world.hide(keys[1])
    assert told(world) == (0, 1)
    world.put(keys)
    world.reader.lease(0, b"".join(keys), namespace=1).release()
    assert told(world) == (1, 1)


def test_a_step_reads_so_many_and_rows_have_their_turns(world: NativeArena) -> None:
    other = world.arena.open_row(os.getpid())
    reader = world.attach(other)
    packed = b"".join(chain("a", 1))
    for one in (world.reader, reader):
        for _ in range(10):
            one.lease(0, packed, namespace=1).release()
    read = [world.arena.read_notes(notes_max=6, now_ns=now_ns()) for _ in range(5)]
    assert read == [6, 6, 6, 2, 0]
    reader.close()


def test_what_a_client_noted_before_it_ended_is_read(world: NativeArena) -> None:
    row = world.arena.open_row(os.getpid())
    reader = world.attach(row)
    reader.lease(0, b"".join(chain("a", 1)), namespace=1).release()
    reader.close()
    world.arena.end_row(row)
    assert world.arena.statistics()["notes_read"] == 1
    assert world.arena.open_row(os.getpid()) == row
    assert told(world) == (1, 0), "whoever has the row next begins anew"


@pytest.fixture(scope="module")
def lasting_world() -> Iterator[NativeArena]:
    """One for all examples: what hostile words did before must not matter."""
    world = NativeArena(slots=256, learns=True)
    yield world
    world.reader.close()
    world.arena.close()


@settings(max_examples=200, deadline=None)
@given(
    jumps=st.lists(U64, min_size=1, max_size=4),
    words=st.lists(st.tuples(st.integers(0, NOTES - 1), U64, U64), max_size=40),
    is_right=st.booleans(),
    pages=st.integers(1, 40),
    seed=st.integers(0, 50),
)
def test_whatever_stands_in_a_ring_of_notes_evicts_in_another_order_and_no_more(
    jumps: list[int],
    words: list[tuple[int, int, int]],
    is_right: bool,
    pages: int,
    seed: int,
    lasting_world: NativeArena,
) -> None:
    world = lasting_world
    with notes_of(world) as notes:
        for jump in jumps:
            for place, page, time in words:
                # Those that claim to be the number that is looked for are looked at further.
                number = (jump - NOTES + (place - jump) % NOTES) % 2**64
                notes.put(place, page, time // 4096 * 4096 + number % 4096 if is_right else time)
            notes.written = jump
            _use(world, seed, pages)
    world.arena.check_invariants()


def _use(world: NativeArena, seed: int, pages: int) -> None:
    keys = chain(f"hostile {seed}", pages)
    before = world.arena.statistics()["notes_read"]
    assert {status for status, _ in world.put(keys)} <= {0, 1}
    assert world.resident(keys) == pages
    assert world.arena.statistics()["notes_read"] - before <= NOTES, "a ring holds no more"


def forged(notes: Notes, world: NativeArena, keys: list[bytes], *, at_ns: int) -> None:
    notes.note(page_word(world, keys, world.resident(keys)), at_ns=at_ns)


def test_a_note_of_the_future_is_one_of_now() -> None:
    world, keys = NativeArena(slots=64), chain("a", 3)
    world.put(keys)
    with notes_of(world) as notes:
        forged(notes, world, keys, at_ns=2**57)
        assert told(world) == (1, 0)
        for number in range(400):
            world.put(chain(f"b{number}", 1))
            world.reader.lease(0, b"".join(chain(f"b{number}", 1)), namespace=1).release()
    assert world.resident(keys) < 3, "it doesn't keep its pages for ever"


def test_notes_that_turn_a_long_chain_about_are_told_as_far_as_one_call_may_take() -> None:
    """Each of them has the policy pass all pages of the chain: so many would keep the sidecar for a second."""
    pages = 16_384
    world, key = NativeArena(slots=pages + 512, segment_bytes=1 << 20, entries=pages + 64, learns=True), b""
    keys = [key := blake2b(key + bytes(1), digest_size=32).digest() for _ in range(pages)]
    for at in range(0, pages, 512):
        assert {status for status, _ in world.commit(
            [one.reservation for one in world.reserve(keys[at : at + 512], parent=keys[at - 1] if at else None)]
        )} == {0}  # fmt: skip
    told(world)
    whole, root = page_word(world, keys, pages), page_word(world, keys[:1], 1)
    with notes_of(world) as notes:
        for turn in range(NOTES):
            notes.note(whole if turn % 2 else root, at_ns=now_ns())
        read, lost = told(world)
        assert read + lost == NOTES
        assert 32 <= read <= 2 * (1 << 20) // pages + 2
        for _ in range(NOTES):
            notes.note(root, at_ns=now_ns())
        assert told(world) == (read + NOTES, lost), "what costs little is told however much there is"
    world.arena.check_invariants()
    world.reader.close()
    world.arena.close()
