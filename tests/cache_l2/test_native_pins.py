"""Pins in the arena: what is held is no victim of want of room, ends with everything else, and stays within the quota."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns

STORED = (PutStatus.STORED, RefuseReason.NONE)
FULL = (PutStatus.REFUSED, RefuseReason.FULL)
SLOTS = 256
LARGE = 12_288
SECOND_NS = 1_000_000_000


def world_of(quota_pages: int = SLOTS) -> NativeArena:
    world = NativeArena(slots=SLOTS)
    world.arena.set_pin_quota(quota_pages * PAGE)
    return world


def pin(world: NativeArena, keys: Sequence[bytes], payload_bytes: int = PAGE) -> bool:
    return world.arena.pin(keys=b"".join(keys), payload_bytes=payload_bytes)


def scan(world: NativeArena, pages: int, *, name: str = "scan", namespace: int = 1) -> None:
    """Put so many pages of their own, each of which must find room."""
    for number in range(pages):
        assert world.put(chain(f"{name}{number}", 1), namespace=namespace) == [STORED]


def test_pinned_pages_outlive_any_scan_and_go_with_the_others_once_unpinned() -> None:
    world, prompt = world_of(), chain("prompt", 8)
    world.put(prompt)
    assert pin(world, prompt)
    scan(world, 3 * SLOTS)
    assert world.resident(prompt) == 8
    assert world.arena.pin_statistics() == {
        "keys": 8, "held_pages": 8, "held_bytes": 8 * PAGE, "charged_bytes": 8 * PAGE, "quota_bytes": SLOTS * PAGE,
        "beyond_quota": 0,
    }  # fmt: skip
    world.arena.check_invariants()
    world.arena.unpin(keys=b"".join(prompt))
    scan(world, 2 * SLOTS, name="again")
    assert world.resident(prompt) == 0
    world.arena.check_invariants()


def test_a_pin_takes_hold_of_pages_that_come_later() -> None:
    world, prompt = world_of(), chain("prompt", 8)
    assert pin(world, prompt)
    assert world.arena.held_among(keys=b"".join(prompt)) == (0, 0)
    world.put(prompt[:5])
    assert world.arena.held_among(keys=b"".join(prompt)) == (5, 5 * PAGE)
    scan(world, 2 * SLOTS)
    assert world.resident(prompt) == 5
    world.put(prompt)
    scan(world, 2 * SLOTS, name="again")
    assert world.resident(prompt) == 8


def test_a_held_page_that_is_pinned_anew_as_a_larger_one_is_charged_and_let_go_in_full() -> None:
    world, prompt = world_of(), chain("prompt", 2)
    world.put(prompt)
    assert pin(world, prompt)
    assert pin(world, prompt, payload_bytes=LARGE)
    told = world.arena.pin_statistics()
    assert told["held_bytes"] == told["charged_bytes"] > 2 * PAGE
    world.arena.check_invariants()
    for _ in range(2):
        world.arena.unpin(keys=b"".join(prompt))
    told = world.arena.pin_statistics()
    assert (told["held_bytes"], told["charged_bytes"]) == (0, 0)


def test_what_stands_on_a_pinned_prefix_is_evicted_down_to_it() -> None:
    world, prompt = world_of(), chain("prompt/answer", 12)
    world.put(prompt)
    assert pin(world, prompt[:4])
    scan(world, 2 * SLOTS)
    assert world.resident(prompt) == 4


def test_a_full_arena_of_pinned_pages_refuses_and_says_so() -> None:
    world = world_of()
    chains = [chain(f"p{number}", 16) for number in range(SLOTS // 16)]
    for keys in chains:
        assert pin(world, keys)
        assert world.put(keys) == [STORED] * 16
    assert world.put(chain("more", 1)) == [FULL]
    world.arena.unpin(keys=b"".join(chains[0]))
    assert world.put(chain("more", 1)) == [STORED]
    world.arena.check_invariants()


def test_an_invalidation_takes_pinned_pages_at_once_and_the_pin_holds_those_that_are_stored_anew() -> None:
    world, prompt = world_of(), chain("prompt", 8)
    world.put(prompt)
    assert pin(world, prompt)
    assert world.hide(prompt[2]) == 6
    assert world.resident(prompt) == 2
    assert world.arena.pin_statistics()["held_pages"] == 2
    world.put(prompt)
    scan(world, 2 * SLOTS)
    assert world.resident(prompt) == 8
    world.arena.check_invariants()


def test_a_pinned_page_ends_with_its_own_time_to_live() -> None:
    world, prompt = world_of(), chain("prompt", 4)
    expiry_s = now_ns() // SECOND_NS + 100
    world.put(prompt, expiry_s=expiry_s)
    assert pin(world, prompt)
    assert world.arena.expire((expiry_s + 1) * SECOND_NS) == 4
    assert world.arena.pin_statistics()["held_pages"] == 0
    world.arena.check_invariants()


def test_two_pins_of_one_key_hold_it_until_both_have_ended() -> None:
    world, prompt = world_of(), chain("prompt", 4)
    world.put(prompt)
    assert pin(world, prompt)
    assert pin(world, prompt[:2])
    assert world.arena.pin_statistics()["charged_bytes"] == 4 * PAGE
    world.arena.unpin(keys=b"".join(prompt))
    scan(world, 2 * SLOTS)
    assert world.resident(prompt) == 2
    world.arena.unpin(keys=b"".join(prompt[:2]))
    assert world.arena.pin_statistics()["charged_bytes"] == 0


def test_a_pin_beyond_the_quota_changes_nothing() -> None:
    world = world_of(quota_pages=6)
    assert pin(world, chain("a", 4))
    before = world.arena.pin_statistics()
    assert world.arena.pin_cost(keys=b"".join(chain("b", 4)), payload_bytes=PAGE) == 4 * PAGE
    assert not pin(world, chain("b", 4))
    assert world.arena.pin_statistics() == before
    assert pin(world, chain("b", 2))


def test_pages_of_unknown_size_are_charged_as_they_come_and_not_held_beyond_the_quota() -> None:
    world, prompt = world_of(quota_pages=3), chain("prompt", 5)
    assert pin(world, prompt, payload_bytes=0)
    assert world.put(prompt) == [STORED] * 5
    figures = world.arena.pin_statistics()
    assert (figures["held_pages"], figures["charged_bytes"], figures["beyond_quota"]) == (3, 3 * PAGE, 2)
    scan(world, 2 * SLOTS)
    assert world.resident(prompt) == 3
    world.arena.check_invariants()


def test_a_segment_with_a_pinned_page_does_not_move_to_another_size() -> None:
    world = world_of()
    singles = [chain(f"s{number}", 1)[0] for number in range(SLOTS)]
    for key in singles:
        world.put([key])
    pinned = singles[::16]  # one in each segment
    assert pin(world, pinned)
    large = chain("large", 1)
    assert world.put(large, page_bytes=LARGE, namespace=2) == [FULL]
    assert all(world.resident([key]) for key in singles), "nothing was given up in vain"
    world.arena.unpin(keys=pinned[0])
    assert world.put(large, page_bytes=LARGE, namespace=2) == [STORED]
    assert all(world.resident([key]) for key in pinned[1:])
    world.arena.check_invariants()


def test_a_namespace_with_pinned_pages_is_not_given_up() -> None:
    world, prompt = world_of(), chain("prompt", 3)
    world.put(prompt, namespace=5)
    assert pin(world, prompt)
    assert world.arena.evict_namespace(5) == 3
    world.arena.unpin(keys=b"".join(prompt))
    assert world.arena.evict_namespace(5) == 0


def test_a_leased_page_that_is_pinned_meanwhile_stays_when_its_lease_ends() -> None:
    world, prompt = world_of(), chain("prompt", 2)
    world.put(prompt)
    lease = world.reader.lease(0, b"".join(prompt), namespace=1)
    scan(world, 2 * SLOTS)  # parks the leased leaf
    assert pin(world, prompt)
    lease.release()
    scan(world, 2 * SLOTS, name="again")
    assert world.resident(prompt) == 2
    world.arena.check_invariants()


def test_unpinning_what_is_not_pinned_does_nothing() -> None:
    world, prompt = world_of(), chain("prompt", 2)
    world.put(prompt)
    world.arena.unpin(keys=b"".join(prompt))
    assert world.arena.pin_statistics()["keys"] == 0
    with pytest.raises(ValueError, match="32 bytes"):
        world.arena.unpin(keys=b"short")
