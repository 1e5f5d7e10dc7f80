"""Pages that are likely to go soon, as they are told before that: used ones alone, and first what the arena evicts first."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.native_arena import NativeArena, chain
from tests.support.noting import timed_arena

SECOND_NS = 10**9
BEGIN_NS = 10**12


def names_of(arena: Any, instances: list[int]) -> list[bytes]:
    told = [arena.describe(one) for one in instances]
    assert None not in told
    return [one["key"] for one in told]


def test_by_least_recent_use_what_is_told_is_what_goes_next() -> None:
    world = NativeArena(slots=256)
    chains = [chain(f"c{at}", 4) for at in range(64)]
    for keys in chains:
        world.put(keys)
    order = random.Random(3).sample(chains, 64)
    for keys in order:
        world.reader.lease(0, b"".join(keys), namespace=1).release()
    world.put(chain("new", 1))  # makes room: what was asked for is known by then
    cold = names_of(world.arena, world.arena.cold_used_pages(turn=0, count=12))
    assert cold == [key for keys in order[:4] for key in reversed(keys)][1:13], "tails first; one is gone"
    world.put(chain("newer", 11))
    assert [world.arena.find(key) is None for key in cold] == [True] * 11 + [False]


def test_what_nobody_asked_for_and_what_is_gone_is_not_told() -> None:
    world = NativeArena(slots=64)
    keys, other = chain("a", 5), chain("b", 5)
    world.put(keys)
    world.put(other)
    assert world.arena.cold_used_pages(turn=0, count=100) == []
    world.reader.lease(0, b"".join(keys[:3]), namespace=1).release()
    found = world.arena.cold_used_pages(turn=0, count=100)
    assert names_of(world.arena, found) == list(reversed(keys[:3]))
    assert world.arena.cold_used_pages(turn=9, count=2) == found[:2]
    for wrong in (0, 65_537):
        with pytest.raises(ValueError, match="count"):
            world.arena.cold_used_pages(turn=0, count=wrong)


def test_once_it_has_learned_all_used_pages_have_their_turn() -> None:
    with timed_arena(pages=6000, learns=True) as timed:
        arena, at_ns = timed.world.arena, BEGIN_NS
        chains = [chain(f"c{at}", 1) for at in range(5000)]
        for keys in [*chains, *chains[:600], *chains]:
            at_ns += SECOND_NS // 4
            timed.request(keys, at_ns=at_ns)
        assert arena.statistics()["policy_learned"]
        for keys in chains:  # the notes of above were made up, and mark nothing as used
            timed.world.reader.lease(0, keys[0], namespace=1).release()
        turns = [arena.cold_used_pages(turn=turn, count=65_536) for turn in range(3)]
        assert all(len(told) < 5000 for told in turns)
        assert {one for told in turns for one in told} >= set(arena.used_pages(begin=0, count=65_536)[1])
