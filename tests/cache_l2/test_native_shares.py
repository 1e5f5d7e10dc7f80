"""Tenants' shares in the arena: who may take whose room, and that nobody falls below what is guaranteed for another."""

from __future__ import annotations

import pytest

from kv_types.outcomes import PutStatus, RefuseReason
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns

STORED = (PutStatus.STORED, RefuseReason.NONE)
FULL = (PutStatus.REFUSED, RefuseReason.FULL)
SLOTS = 256
COMMON, ANNA, BOB = 0, 1, 2
"""Tenants, and the numbers of a namespace of each."""
LARGE_OF_BOB, LARGE_OF_COMMON = 3, 4
LARGE = 12_288


def world_of(anna: int = 64, bob: int = 32) -> NativeArena:
    """Shares in slots of small pages."""
    world = NativeArena(slots=SLOTS)
    world.arena.set_tenant_shares([anna * PAGE, bob * PAGE])
    for namespace, tenant in ((ANNA, ANNA), (BOB, BOB), (LARGE_OF_BOB, BOB), (COMMON, COMMON)):
        world.arena.set_tenant(namespace, tenant)
    return world


def put(world: NativeArena, tenant: int, name: str, pages: int) -> list[bytes]:
    """Pages of a tenant, each a root of its own; returns those that were stored."""
    keys = [chain(f"{tenant}{name}{number}", 1)[0] for number in range(pages)]
    return [key for key in keys if world.put([key], namespace=tenant) == [STORED]]


def resident(world: NativeArena, keys: list[bytes], tenant: int) -> int:
    return sum(world.resident([key], namespace=tenant) for key in keys)


def used(world: NativeArena, tenant: int) -> int:
    return world.arena.tenant_statistics()[tenant]["used_bytes"] // PAGE


def test_a_hostile_scan_takes_nothing_of_a_share() -> None:
    world = world_of()
    working_set = put(world, ANNA, "w", 64)
    put(world, COMMON, "scan", 4 * SLOTS)
    assert resident(world, working_set, ANNA) == 64
    figures = world.arena.tenant_statistics()
    assert figures[ANNA]["evictions_suffered"] == 0
    assert figures[COMMON]["evictions_own"] == 4 * SLOTS - (SLOTS - 64)
    world.arena.check_invariants()


def test_a_scan_by_a_tenant_with_a_share_takes_nothing_of_another_either() -> None:
    world = world_of()
    working_set = put(world, ANNA, "w", 64)
    put(world, BOB, "scan", 4 * SLOTS)
    assert resident(world, working_set, ANNA) == 64
    assert used(world, BOB) == SLOTS - 64


def test_what_is_above_a_share_is_lent_and_goes_coldest_first() -> None:
    world = world_of()
    lent = put(world, ANNA, "w", SLOTS)
    assert len(lent) == SLOTS, "unused shares are for whoever has use for them"
    put(world, COMMON, "scan", 4 * SLOTS)
    assert resident(world, lent, ANNA) == 64
    assert resident(world, lent[-64:], ANNA) == 64
    figures = world.arena.tenant_statistics()
    assert figures[ANNA]["evictions_suffered"] == SLOTS - 64
    assert figures[COMMON]["evictions_caused"] == SLOTS - 64


def test_a_share_is_claimed_from_others_before_anything_of_ones_own_goes() -> None:
    world = world_of()
    put(world, COMMON, "all", SLOTS)
    claimed = put(world, ANNA, "w", 64)
    assert resident(world, claimed, ANNA) == 64
    figures = world.arena.tenant_statistics()
    assert (figures[ANNA]["evictions_own"], figures[ANNA]["evictions_caused"]) == (0, 64)
    put(world, ANNA, "more", 100)  # beyond its share it competes by age, and common pages are the oldest
    assert used(world, ANNA) == 164
    assert world.arena.tenant_statistics()[ANNA]["evictions_own"] == 0
    world.arena.check_invariants()


def test_a_put_that_finds_only_guaranteed_pages_is_refused() -> None:
    world = world_of(anna=128, bob=128)
    assert len(put(world, ANNA, "a", 128)) == 128
    assert len(put(world, BOB, "b", 128)) == 128
    assert put(world, COMMON, "c", 1) == []
    assert world.put(chain("c", 1), namespace=COMMON) == [FULL]
    assert len(put(world, ANNA, "own", 1)) == 1, "in one's own share one's own pages make room"
    assert used(world, BOB) == 128
    world.arena.check_invariants()


def test_slots_in_advance_count_for_the_tenant_that_has_them() -> None:
    world = world_of(anna=128, bob=64)
    put(world, ANNA, "a", 128)
    row = world.arena.open_row(1)
    world.attach(row)
    granted = world.arena.grant(
        row=row, payload_bytes=PAGE, wanted=64, bytes_max=SLOTS * PAGE, now_ns=now_ns(), namespace_slot=BOB
    )
    assert (granted, used(world, BOB)) == (64, 64)
    put(world, COMMON, "c", SLOTS)
    assert (used(world, ANNA), used(world, BOB)) == (128, 64)
    world.arena.recall_grants(row)
    assert used(world, BOB) == 0
    world.arena.check_invariants()


def test_slots_in_advance_are_taken_back_before_a_put_in_its_share_is_refused() -> None:
    world = world_of(anna=SLOTS, bob=0)
    row = world.arena.open_row(1)
    world.attach(row)
    assert world.arena.grant(
        row=row, payload_bytes=PAGE, wanted=64, bytes_max=SLOTS * PAGE, now_ns=now_ns(), namespace_slot=COMMON
    )
    assert len(put(world, ANNA, "a", SLOTS)) == SLOTS
    assert used(world, COMMON) == 0


def test_segments_move_to_a_tenant_that_is_owed_them_and_none_from_within_a_share() -> None:
    world = world_of(anna=128, bob=64)
    kept = put(world, ANNA, "a", 128)
    put(world, COMMON, "c", SLOTS - 128)
    large = [chain(f"large{number}", 1) for number in range(64 // 3)]
    for keys in large:
        assert world.put(keys, namespace=LARGE_OF_BOB, page_bytes=LARGE) == [STORED]
    assert all(world.resident(keys, namespace=LARGE_OF_BOB) for keys in large), "it grows to its share"
    for number in range(40):
        world.put(chain(f"hostile{number}", 1), namespace=LARGE_OF_COMMON, page_bytes=LARGE)
    assert resident(world, kept, ANNA) == 128
    assert all(world.resident(keys, namespace=LARGE_OF_BOB) for keys in large)
    world.arena.check_invariants()


def test_a_page_of_another_size_is_refused_where_every_segment_is_within_a_share() -> None:
    world = world_of(anna=SLOTS, bob=0)
    kept = put(world, ANNA, "a", SLOTS)
    assert world.put(chain("large", 1), namespace=LARGE_OF_COMMON, page_bytes=LARGE) == [FULL]
    assert resident(world, kept, ANNA) == SLOTS
    world.arena.check_invariants()


def test_a_namespace_within_a_share_is_not_given_up_for_another() -> None:
    world = world_of()
    put(world, ANNA, "a", 60)
    assert world.arena.evict_namespace(ANNA) == 60
    put(world, COMMON, "c", 60)
    assert world.arena.evict_namespace(COMMON) == 0
    world.arena.set_tenant(COMMON, BOB)
    put(world, COMMON, "of bob now", 10)
    assert used(world, BOB) == 10


def test_what_is_invalidated_or_over_goes_whatever_the_share() -> None:
    world = world_of()
    (key,) = put(world, ANNA, "a", 1)
    assert world.hide(key) == 1
    assert used(world, ANNA) == 0
    assert world.arena.tenant_statistics()[ANNA]["evictions_own"] == 0


def test_shares_and_tenants_are_set_before_anything_is_stored() -> None:
    world = world_of()
    put(world, ANNA, "a", 1)
    with pytest.raises(ValueError, match="before anything is stored"):
        world.arena.set_tenant_shares([PAGE])
    with pytest.raises(ValueError, match="of another tenant"):
        world.arena.set_tenant(ANNA, BOB)
    with pytest.raises(ValueError, match="tenant 3 has no share"):
        world.arena.set_tenant(9, 3)
    with pytest.raises(ValueError, match="at most 32 tenants"):
        NativeArena().arena.set_tenant_shares([PAGE] * 33)
