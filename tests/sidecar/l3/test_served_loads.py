"""Loads for callers over gRPC: what is waited for, how long, and that each look-up is counted once, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from cache_l2.store import NamespaceCounts, NamespaceRecord
from kv_types.errors import OverloadedError
from kv_types.ids import PageKey
from kv_types.limits import L3_CALL_FRACTION, NAMESPACES_PER_CLIENT_MAX
from kv_types.outcomes import MissReason
from kv_wire.channel import SERVICE, channel_options, server_options
from kv_wire.gen import cache_pb2
from sidecar.serving.arena_service import ArenaService
from sidecar.serving.cache_service import CacheService
from sidecar.serving.calls import Calls
from tests.support.directory import EverythingListed
from tests.support.fake_served_store import FakeServedStore
from tests.support.l3_node import SMALL, Node, fresh, nodes
from tests.support.manual_time import settle, until
from tests.support.memory_records import Held
from tests.support.pages import namespace_of, packed
from tests.support.stores import add

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


@asynccontextmanager
async def a_call_that_waits(
    node: Node, folder: Path
) -> AsyncIterator[tuple[grpc.aio.Server, grpc.aio.Channel, Held]]:
    """GetWhole over gRPC for three pages, of which one is here and all are in L3, which does not answer."""
    keys = fresh(3)
    node.put(keys[:1])
    node.shelve(keys)
    server = grpc.aio.server(options=server_options())
    calls = Calls(lambda method, code, seconds: None)
    handler = CacheService(served(node), calls, cache_pb2.StatusResponse).handler()
    server.add_generic_rpc_handlers((handler,))
    address = f"unix:{folder / 's'}"
    server.add_insecure_port(address)
    await server.start()
    held = node.records.hold("probe")
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        chain = cache_pb2.Chain(keys=packed(keys))
        request = cache_pb2.GetRequest(namespace_id=node.record.id, chain=chain).SerializeToString()
        call = channel.unary_unary(f"/{SERVICE}/GetWhole", None, None)(request)
        await held.reached.wait()
        yield server, channel, held
        await asyncio.wait([asyncio.ensure_future(_outcome(call))])
    await until(lambda: calls.running == 0, what="the call to end")
    await server.stop(None)
    held.release()
    await settle()


async def _outcome(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> bytes | None:
    try:
        return await call
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        return None


async def test_i7_a_client_that_dies_while_its_look_up_waits_has_missed_its_pages(tmp_path: Path) -> None:
    async with nodes() as (node,):
        async with a_call_that_waits(node, tmp_path) as (_, channel, _):
            await channel.close(None)
        told = counts(node)
        assert (told.requested, told.l2, told.l3, told.missed[MissReason.ABORTED]) == (3, 0, 0, 3)
        assert node.store.reader.held() == 0


async def test_i7_look_ups_that_wait_when_the_sidecar_ends_are_accounted_for(tmp_path: Path) -> None:
    async with nodes() as (node,):
        async with a_call_that_waits(node, tmp_path):
            node.store.drain()
            node.loader.drain()
        told = counts(node)
        assert (told.requested, told.missed[MissReason.CLOSED]) == (3, 3)


async def test_i7_calls_that_outlast_the_drain_time_are_accounted_for(tmp_path: Path) -> None:
    async with nodes() as (node,):
        async with a_call_that_waits(node, tmp_path) as (server, _, _):
            await server.stop(0)
        told = counts(node)
        assert (told.requested, told.missed[MissReason.ABORTED]) == (3, 3)
        assert node.store.reader.held() == 0


def another(node: Node, number: int) -> NamespaceRecord:
    return add(node.store, namespace_of(f"another-{number}"))


async def test_i7_counters_that_others_want_stay_with_the_look_ups_that_wait() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.shelve(keys)
        held = node.records.hold("probe")
        wait = asyncio.create_task(lease(node, keys))
        await held.reached.wait()
        service = served(node)
        for number in range(2 * NAMESPACES_PER_CLIENT_MAX):
            other = another(node, number)
            (await service.lease_chain(other.id, packed(fresh(1)), start=0, wait_s=0)).release()
        held.release()
        assert await wait == (3, MissReason.NONE)
        assert (counts(node).requested, counts(node).l3) == (3, 3)
        requested = [one.requested for one in node.store.namespace_counts().values() if one.is_balanced]
        assert sorted(requested) == [1] * 2 * NAMESPACES_PER_CLIENT_MAX + [3]


async def test_look_ups_of_more_namespaces_than_can_be_counted_at_once_are_shed() -> None:
    async with nodes(bounds=replace(SMALL, requests=64)) as (node,):
        service = served(node)
        waits, all_held = [], []
        for number in range(NAMESPACES_PER_CLIENT_MAX):
            other = another(node, number)
            all_held.append(node.records.hold("probe"))
            waits.append(
                asyncio.create_task(service.lease_chain(other.id, packed(fresh(1)), start=0, wait_s=1.0))
            )
            await all_held[-1].reached.wait()
        with pytest.raises(OverloadedError, match="namespaces"):
            await lease(node, fresh(1))
        for one in all_held:
            one.release()
        for leased in await asyncio.gather(*waits):
            leased.release()
        assert await lease(node, fresh(1)) == (0, MissReason.ABSENT)
        assert all(one.is_balanced for one in node.store.namespace_counts().values())


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
