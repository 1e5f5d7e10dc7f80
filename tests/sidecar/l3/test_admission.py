"""Which pages write-behind takes to L3 under each setting, and that what was asked for goes there before it is evicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kv_policy.admission import L3Admission
from kv_types.ids import PageKey
from kv_types.outcomes import MissReason
from kv_types.selectors import Selector
from sidecar.l3.loads import RowLoaded
from tests.support.l3_node import Node, fresh, nodes
from tests.support.manual_time import settle, until

pytestmark = pytest.mark.asyncio
SECOND_USE, COST = L3Admission.SECOND_USE, L3Admission.COST


async def idle(node: Node) -> Mapping[str, int]:
    await until(lambda: node.behind.is_idle, what="the end of write-behind")
    return node.behind.statistics()


def ask(node: Node, keys: Sequence[PageKey]) -> None:
    """Somebody uses these pages."""
    with node.store.lease(node.record.id, list(keys)) as lease:
        assert lease.pages == len(keys)


async def test_what_is_used_once_stays_here_and_what_is_asked_for_goes() -> None:
    async with nodes(2, admission=SECOND_USE) as (writer, other):
        writer.behind.start()
        keys = fresh(6)
        writer.put(keys)
        figures = await idle(writer)
        assert (figures["left_here"], figures.get("stored", 0)) == (6, 0)
        writer.behind.look_for_used()
        assert (await idle(writer)).get("stored", 0) == 0
        ask(writer, keys[:4])
        writer.behind.look_for_used()
        figures = await idle(writer)
        assert (figures["offered_used"], figures["stored"]) == (4, 4)
        assert await other.load(keys) == [RowLoaded(4, 0, MissReason.ABSENT)]
        writer.behind.look_for_used()
        assert (await idle(writer))["offered_used"] == 4, "it is known to be there"


async def test_what_is_stored_a_second_time_goes_at_once() -> None:
    async with nodes(1, admission=SECOND_USE) as (node,):
        node.behind.start()
        keys = fresh(3)
        node.put(keys)
        assert (await idle(node))["left_here"] == 3
        node.store.hide(Selector())
        node.put(keys)
        figures = await idle(node)
        assert (figures["left_here"], figures["stored"]) == (3, 3)


async def test_by_cost_a_page_goes_while_nothing_waits() -> None:
    async with nodes(2, admission=COST) as (writer, other):
        writer.behind.start()
        keys = fresh(5)
        writer.put(keys)
        assert (await idle(writer))["stored"] == 5
        assert await other.load(keys) == [RowLoaded(5, 0, MissReason.NONE)]


async def test_what_a_full_queue_lost_goes_when_it_was_asked_for() -> None:
    async with nodes(1, queue_pages=20) as (node,):
        node.behind.start()
        held = node.records.hold("probe")
        keys = fresh(50)
        node.put(fresh(1))
        await held.reached.wait()
        node.put(keys)
        await settle()
        node.behind.look_for_used()
        assert node.behind.statistics()["dropped_queue_full"] == 30
        ask(node, keys)
        node.behind.look_for_used()
        assert node.behind.statistics().get("offered_used", 0) == 0, "not while the queue is full"
        held.release()
        await idle(node)
        for _ in range(8):
            node.behind.look_for_used()
            await idle(node)
        figures = node.behind.statistics()
        assert (figures["stored"], figures["offered_used"]) == (51, 30)


async def test_what_l3_refuses_keeps_nothing_else_here_and_is_not_sent_at_every_look() -> None:
    async with nodes(1, admission=SECOND_USE) as (node,):
        node.behind.start()
        keys = fresh(100)
        node.put(keys)
        await idle(node)
        ask(node, keys)
        node.records.shelf.bytes_max, node.records.shelf.evicts = 0, False
        node.behind.look_for_used()
        assert (await idle(node))["refused_full"] == 64
        node.records.shelf.bytes_max = None
        for _ in range(8):
            node.behind.look_for_used()
            figures = await idle(node)
        # More than the other 36 may be stored: what they stand on is, too.
        assert (figures["offered_used"], figures["refused_full"]) == (100, 64)
        assert figures["stored"] >= 36
        await node.time.run(61.0)
        for _ in range(8):
            node.behind.look_for_used()
            figures = await idle(node)
        assert (figures["offered_used"], figures["refused_full"], len(node.records.shelf.names())) == (
            164,
            64,
            100,
        )


async def test_looking_for_used_pages_goes_round_the_arena() -> None:
    async with nodes(1) as (node,):
        keys = fresh(8)
        node.put(keys)
        assert node.store.used_pages(begin=0, count=65_536) == (0, [])
        ask(node, keys[:5])
        at, used = node.store.used_pages(begin=0, count=65_536)
        assert (at, len(used)) == (0, 5)
        found: list[int] = []
        at, parts = 0, 0
        while parts == 0 or at:
            at, some = node.store.used_pages(begin=at, count=7)
            found += some
            parts += 1
        assert found == used
        assert parts > 1
        assert node.store.used_pages(begin=2**32 - 1, count=1) == (0, [])
        described = {page.key for page in map(node.store.describe, used) if page is not None}
        assert described == set(keys[:5])
        node.store.hide(Selector())
        assert node.store.used_pages(begin=0, count=65_536) == (0, []), "what is hidden is not told"
        for wrong in (0, 65_537):
            with pytest.raises(ValueError, match="count"):
                node.store.used_pages(begin=0, count=wrong)


@pytest.mark.parametrize("is_back", [True, False])
async def test_what_waited_too_long_is_tried_once_more_when_it_was_asked_for(is_back: bool) -> None:
    async with nodes(1) as (node,):
        node.behind.start()
        node.records.stop()
        keys = fresh(5)
        node.put([*keys, *fresh(2)])
        await node.time.run(65)
        assert (await idle(node))["dropped_too_old"] == 7
        node.behind.look_for_used()
        assert "offered_used" not in node.behind.statistics(), "nobody asked for any"
        ask(node, keys)
        if is_back:
            node.records.resume()
        node.behind.look_for_used()
        await node.time.run(65)
        node.behind.look_for_used()
        figures = await idle(node)
        assert figures["offered_used"] == 5
        assert (figures.get("stored", 0), figures["dropped_too_old"]) == ((5, 7) if is_back else (0, 12))
