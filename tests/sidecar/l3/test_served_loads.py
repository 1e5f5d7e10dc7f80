"""Loads for callers over gRPC: what is waited for, how long, and that each look-up is counted once, whatever becomes of it."""

from __future__ import annotations

import asyncio

import pytest

from cache_l2.store import NamespaceCounts
from kv_types.ids import PageKey
from kv_types.limits import L3_CALL_FRACTION
from kv_types.outcomes import MissReason
from sidecar.serving.arena_service import ArenaService
from sidecar.serving.cache_service import CacheService
from sidecar.serving.calls import Calls
from tests.support.directory import EverythingListed
from tests.support.fake_served_store import FakeServedStore
from tests.support.l3_node import Node, fresh, nodes
from tests.support.manual_time import settle, until
from tests.support.pages import packed

pytestmark = pytest.mark.asyncio


def served(node: Node) -> ArenaService:
    return ArenaService(
        node.store, directory=EverythingListed(), loads=node.loader, clock=node.time, prefetch_s=1.0
    )


def counts(node: Node) -> NamespaceCounts:
    return node.store.namespace_counts()[node.record.id]


async def lease(
    node: Node, keys: list[PageKey], *, start: int = 0, wait_s: float = 1.0
) -> tuple[int, MissReason]:
    leased = await served(node).lease_chain(node.record.id, packed(keys), start=start, wait_s=wait_s)
    found = len(leased.views), leased.ended_by
    leased.release()
    return found


async def test_a_look_up_that_loads_counts_each_page_under_its_tier_once() -> None:
    async with nodes() as (node,):
        keys = fresh(10)
        node.put(keys[:4])
        node.shelve(keys[:8])
        assert await lease(node, keys, start=1) == (7, MissReason.ABSENT)
        told = counts(node)
        assert (told.requested, told.l1, told.l2, told.l3) == (10, 1, 3, 4)
        assert told.missed[MissReason.ABSENT] == 2
        assert await lease(node, keys[:8]) == (8, MissReason.NONE)
        assert (counts(node).l2, counts(node).l3) == (3 + 8, 4)


async def test_what_is_here_stays_pinned_while_the_rest_is_loaded() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.put(keys[:1])
        node.shelve(keys)
        held = node.records.hold("probe")
        wait = asyncio.create_task(lease(node, keys))
        await held.reached.wait()
        assert node.store.reader.held() == 1
        held.release()
        assert await wait == (3, MissReason.NONE)
        assert node.store.reader.held() == 0


async def test_a_look_up_whose_time_is_over_gets_what_there_is_and_says_why() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.put(keys[:1])
        node.shelve(keys)
        node.records.hold("probe")
        wait = asyncio.create_task(lease(node, keys, wait_s=0.25))
        await settle()
        await node.time.run(0.3)
        assert await wait == (1, MissReason.DEADLINE)
        told = counts(node)
        assert (told.requested, told.l2, told.missed[MissReason.DEADLINE]) == (3, 1, 2)


async def test_a_caller_that_goes_away_is_counted_as_aborted_and_holds_nothing() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.put(keys[:1])
        node.shelve(keys)
        held = node.records.hold("probe")
        wait = asyncio.create_task(lease(node, keys))
        await held.reached.wait()
        wait.cancel()
        await settle()
        assert wait.cancelled()
        told = counts(node)
        assert (told.requested, told.l2, told.missed[MissReason.ABORTED]) == (3, 0, 3)
        assert node.store.reader.held() == 0
        held.release()


async def test_without_time_to_wait_nobody_is_asked() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.shelve(keys)
        assert await lease(node, keys, wait_s=0) == (0, MissReason.ABSENT)
        assert node.records.calls["probe"] == 0
        assert counts(node).missed[MissReason.ABSENT] == 3


async def test_a_prefetch_is_begun_and_not_waited_for() -> None:
    async with nodes() as (node,):
        first, second = fresh(4), fresh(3)
        node.put(first[:1])
        node.shelve(first)
        assert served(node).prefetch(node.record.id, [packed(first), packed(second)]) == [3, 3]
        await until(lambda: node.resident(first) == 4, what="the prefetch")


@pytest.mark.parametrize(
    ("remaining_s", "waits_s"),
    [(None, 0.7), (10.0, 0.7), (1.0, L3_CALL_FRACTION), (0.02, 0.02 * L3_CALL_FRACTION)],
)
async def test_a_call_waits_for_a_part_of_its_time_and_no_longer_than_is_set(
    remaining_s: float | None, waits_s: float
) -> None:
    class Caller:
        def time_remaining(self) -> float | None:
            return remaining_s

    service = CacheService(
        FakeServedStore(), Calls(lambda method, code, seconds: None), lambda: None, load_s=0.7  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    assert service._wait_s(Caller()) == pytest.approx(waits_s)  # type: ignore[arg-type]
