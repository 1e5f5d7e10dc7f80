"""A page's time to live is one time in all tiers: what ends on the node that computed it ends everywhere."""

from __future__ import annotations

import pytest

from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded
from tests.support.l3_node import Node, fresh, nodes
from tests.support.manual_time import until


async def idle(node: Node) -> None:
    await until(lambda: node.behind.is_idle, what="the end of the queue")


@pytest.mark.asyncio
async def test_a_page_that_is_loaded_ends_when_it_ends_where_it_was_computed() -> None:
    async with nodes(2) as (writer, other):
        keys = fresh(3)
        writer.behind.start()
        writer.put_for(keys, ttl_s=60)
        await idle(writer)
        assert writer.records.shelf.ttl_s(writer.name(keys[0])) == pytest.approx(60, abs=1)
        await writer.time.run(40)
        assert await other.load(keys) == [RowLoaded(3, 0, MissReason.NONE)]
        other.check_bytes(keys)
        await writer.time.run(18)
        other.store.tick()
        assert other.resident(keys) == 3
        await writer.time.run(3)
        for node in (writer, other):
            node.store.tick()
        assert other.resident(keys) == writer.resident(keys) == 0


@pytest.mark.asyncio
async def test_a_page_whose_time_is_over_is_not_loaded_though_its_record_lives_on() -> None:
    """Redis' clock and ours are not the same; who refreshed the record may not have known."""
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys, expires_ms=node.time.now_ns() // 1_000_000 + 5_000)
        await node.time.run(6)
        assert await node.load(keys) == [RowLoaded(0, 0, MissReason.EXPIRED)]
        assert node.records.calls["load"] == 0


@pytest.mark.asyncio
async def test_what_would_be_gone_before_is_written_over_and_no_refresh_outlives_a_page() -> None:
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys, expires_ms=node.time.now_ns() // 1_000_000 + 5_000)
        node.behind.start()
        node.put(keys)
        await idle(node)
        assert node.behind.statistics()["stored"] == 2
        again = fresh(2)
        node.shelve(again, expires_ms=node.time.now_ns() // 1_000_000 + 90_000)
        await node.time.run(50)
        node.put_for(again, ttl_s=20)
        await idle(node)
        assert node.behind.statistics()["known"] == 2
        assert node.records.shelf.ttl_s(node.name(again[0])) == pytest.approx(40, abs=1)
