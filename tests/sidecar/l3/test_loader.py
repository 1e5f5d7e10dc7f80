"""The loader between an arena and a record store: what is staged, by when, and that no place is leaked."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from cache_l3.record_store import RecordName
from kv_types.ids import Stamp, new_log_incarnation
from kv_types.outcomes import MissReason, PutStatus
from kv_types.record import RecordHeader
from kv_types.selectors import Selector
from sidecar.l3.loads import LoadRow, RowLoaded
from tests.support.l3_node import SMALL, fresh, nodes
from tests.support.manual_time import SECOND_NS, settle, until
from tests.support.pages import namespace_of, packed, page_of

pytestmark = pytest.mark.asyncio

SMALL_RUNS = dataclasses.replace(SMALL, flights=2)


async def test_what_l3_has_is_staged_with_the_right_bytes() -> None:
    async with nodes() as (node,):
        keys = fresh(20)
        node.shelve(keys)
        assert await node.load(keys) == [RowLoaded(20, 0, MissReason.NONE)]
        node.check_bytes(keys)
        assert node.records.calls["load"] == 20


async def test_only_what_the_arena_lacks_is_asked_for() -> None:
    async with nodes() as (node,):
        keys = fresh(12)
        node.put(keys[:5])
        node.shelve(keys)
        assert await node.load(keys) == [RowLoaded(12, 5, MissReason.NONE)]
        assert node.records.calls["load"] == node.records.calls["probe"] == 7
        assert await node.load(keys) == [RowLoaded(12, 12, MissReason.NONE)]
        assert node.records.calls["probe"] == 7, "nobody is asked for what is all here"


async def test_a_row_that_begins_behind_its_parent() -> None:
    async with nodes() as (node,):
        keys = fresh(9)
        node.put(keys[:4])
        node.shelve(keys)
        load = node.loader.begin([node.row(keys, start=3)], deadline_ns=node.within(1))
        assert await load.wait() == [RowLoaded(6, 1, MissReason.NONE)]
        orphan = node.loader.begin([node.row(fresh(3), start=1)], deadline_ns=node.within(1))
        assert await orphan.wait() == [RowLoaded(0, 0, MissReason.ABSENT)]


async def test_the_row_ends_at_the_first_page_that_l3_lacks_and_takes_no_place_for_more() -> None:
    async with nodes() as (node,):
        keys = fresh(10)
        node.shelve(keys)
        assert node.records.shelf.remove(node.name(keys[6]))
        assert await node.load(keys) == [RowLoaded(6, 0, MissReason.ABSENT)]
        assert node.records.calls["load"] == 6


async def test_what_l3_lacks_is_not_asked_again_for_a_while() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        assert await node.load(keys) == [RowLoaded(0, 0, MissReason.ABSENT)]
        assert await node.load(keys) == [RowLoaded(0, 0, MissReason.ABSENT)]
        assert node.records.calls["probe"] == 3
        node.shelve(keys)
        await node.time.run(0.3)
        assert await node.load(keys) == [RowLoaded(3, 0, MissReason.NONE)]


async def test_many_waiters_share_one_probe_and_one_get() -> None:
    async with nodes() as (node,):
        keys = fresh(8)
        node.shelve(keys)
        held = node.records.hold("probe")
        waits = [asyncio.create_task(node.load(keys)) for _ in range(10)]
        await held.reached.wait()
        held.release()
        assert await asyncio.gather(*waits) == [[RowLoaded(8, 0, MissReason.NONE)]] * 10
        assert node.records.calls["probe"] == node.records.calls["load"] == 8


async def test_c34_an_answer_tells_what_was_staged_by_its_deadline() -> None:
    async with nodes() as (node,):
        keys = fresh(6)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in range(6)]
        wait = asyncio.create_task(node.load(keys, seconds=0.5))
        for one in held:
            await one.reached.wait()
        for one in held[:4]:
            one.release()
        held[5].release()  # it arrives before its parent
        await node.time.run(0.49)
        assert not wait.done()
        await node.time.run(0.02)
        assert await wait == [RowLoaded(4, 0, MissReason.DEADLINE)]
        held[4].release()
        await settle()
        assert node.reserved == 0


async def test_c18_what_stands_before_the_pages_of_a_server_that_hangs_is_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of several servers one says nothing: the question ends when its time is up, whatever the others have said."""
    async with nodes() as (node,):
        keys = fresh(10)
        node.shelve(keys)
        probe, hung = node.records.probe, {keys[6], keys[8]}

        async def with_one_that_hangs(
            names: Sequence[RecordName], *, deadline_ns: int
        ) -> list[RecordHeader | MissReason]:
            found = await probe(names, deadline_ns=deadline_ns)
            await node.time.pause((deadline_ns - node.time.now_ns()) / SECOND_NS)
            return [
                MissReason.DEADLINE if name.key in hung else one
                for name, one in zip(names, found, strict=True)
            ]

        monkeypatch.setattr(node.records, "probe", with_one_that_hangs)
        wait = asyncio.create_task(node.load(keys, seconds=1.0))
        await node.time.run(0.99)
        assert await wait == [RowLoaded(6, 0, MissReason.DEADLINE)]
        node.check_bytes(keys[:6])


async def test_what_is_on_its_way_at_a_deadline_comes_after_it() -> None:
    """Giving it up would cost its connection, and whoever always waits so short would never have the page."""
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in keys]
        wait = asyncio.create_task(node.load(keys, seconds=0.05))
        for one in held:
            await one.reached.wait()
        await node.time.run(0.06)
        assert await wait == [RowLoaded(0, 0, MissReason.DEADLINE)]
        for one in held:
            one.release()
        await until(lambda: node.resident(keys) == 2, what="the pages that were on their way")


async def test_a_question_outlives_a_hurried_caller() -> None:
    async with nodes() as (node,):
        keys = fresh(2)
        held = node.records.hold("probe")
        wait = asyncio.create_task(node.load(keys, seconds=0.05))
        await held.reached.wait()
        await node.time.run(0.1)
        assert await wait == [RowLoaded(0, 0, MissReason.DEADLINE)]
        held.release()
        await settle()
        assert node.records.statistics()["probe_missed_deadline"] == 0, "it cost no connection"


async def test_a_later_waiter_gets_what_an_earlier_one_could_not_wait_for() -> None:
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys)
        held = [node.records.hold("probe") for _ in range(2)]
        first = asyncio.create_task(node.load(keys, seconds=0.1))
        await held[0].reached.wait()
        second = asyncio.create_task(node.load(keys, seconds=5))
        await node.time.run(0.2)
        assert await first == [RowLoaded(0, 0, MissReason.DEADLINE)]
        assert held[1].reached.is_set(), "asked once more, for those who have time still"
        held[1].release()
        assert await second == [RowLoaded(2, 0, MissReason.NONE)]


async def test_a_cancelled_wait_gives_up_what_nobody_else_wants() -> None:
    async with nodes(bounds=SMALL_RUNS) as (node,):
        keys = fresh(16)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in range(2)]
        wait = asyncio.create_task(node.load(keys))
        await held[1].reached.wait()
        wait.cancel()
        await settle()
        assert wait.cancelled()
        for one in held:
            one.release()
        await until(lambda: node.reserved == 0, what="the end of the flights")
        assert node.records.calls["load"] == 2, "what was queued is not fetched"
        assert node.resident(keys) == 2, "what was on its way is kept"


async def test_a_prefetch_is_told_what_is_pending_and_loads_without_waiters() -> None:
    async with nodes() as (node,):
        keys = fresh(7)
        node.put(keys[:2])
        node.shelve(keys)
        load = node.loader.begin([node.row(keys)], deadline_ns=node.within(1))
        assert load.so_far() == [RowLoaded(2, 2, MissReason.ABSENT, pending=5)]
        await until(lambda: node.resident(keys) == 7, what="the prefetch")
        assert load.so_far() == [RowLoaded(7, 2, MissReason.NONE)]
        assert await load.wait() == load.so_far()


async def test_a_prefetch_can_be_cancelled() -> None:
    async with nodes() as (node,):
        keys = fresh(4)
        node.shelve(keys)
        load = node.loader.begin([node.row(keys)], deadline_ns=node.within(1))
        load.cancel()
        load.cancel()
        await settle()
        assert load.so_far() == [RowLoaded(0, 0, MissReason.ABORTED)]
        assert node.records.calls["load"] == 0


async def test_prefetches_leave_places_for_those_who_wait() -> None:
    async with nodes() as (node,):
        ahead, wanted = fresh(200), fresh(4)
        node.shelve(ahead)
        node.shelve(wanted)
        held = [node.records.hold("load") for _ in range(SMALL.flights - SMALL.flights // 4)]
        node.loader.begin([node.row(ahead)], deadline_ns=node.within(30))
        await held[-1].reached.wait()
        assert node.loader.statistics()["flights"] == len(held)
        assert await node.load(wanted) == [RowLoaded(4, 0, MissReason.NONE)]
        for one in held:
            one.release()


async def test_rows_of_a_group_get_the_common_length_and_no_more_is_fetched() -> None:
    async with nodes() as (node,):
        first, second, third = fresh(10), fresh(10), fresh(10)
        node.put(first[:8])
        node.shelve(first)
        node.shelve(second[:6])
        node.put(third[:2])
        node.shelve(third)
        loaded = await node.load(first, second, third, group=True)
        assert [row.pages for row in loaded] == [6, 6, 6]
        assert [row.from_l3 for row in loaded] == [6, 0, 2]
        assert {row.reason for row in loaded} == {MissReason.ABSENT}
        assert node.records.calls["load"] == 6 + 4


async def test_rows_that_are_no_group_are_loaded_apart() -> None:
    async with nodes() as (node,):
        first, second = fresh(3), fresh(5)
        node.shelve(first)
        node.shelve(second[:4])
        assert await node.load(first, second) == [
            RowLoaded(3, 0, MissReason.NONE), RowLoaded(4, 0, MissReason.ABSENT),
        ]  # fmt: skip


async def test_records_of_another_incarnation_are_invalidated_and_those_ahead_stale() -> None:
    async with nodes() as (node,):
        old, ahead = fresh(2), fresh(2)
        position = node.store.stamp()
        node.shelve(old, stamp=Stamp(new_log_incarnation(), 0))
        node.shelve(ahead, stamp=Stamp(position.incarnation, position.revision + 1))
        assert await node.load(old, ahead) == [
            RowLoaded(0, 0, MissReason.INVALIDATED), RowLoaded(0, 0, MissReason.STALE),
        ]  # fmt: skip
        assert node.records.calls["load"] == 0


async def test_a_record_that_is_invalidated_between_probe_and_publish_is_not_published() -> None:
    async with nodes() as (node,):
        keys = fresh(5)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in range(5)]
        wait = asyncio.create_task(node.load(keys))
        await held[4].reached.wait()
        node.store.hide_pages(keys[3:4])
        for one in held:
            one.release()
        await node.time.run(1.1)
        (row,) = await wait
        assert (row.pages, row.from_l3) == (3, 0)
        assert row.reason in (MissReason.INVALIDATED, MissReason.ABSENT)
        assert node.resident(keys) == 3


async def test_another_incarnation_while_loads_are_under_way_publishes_nothing() -> None:
    async with nodes() as (node,):
        keys = fresh(4)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in range(4)]
        wait = asyncio.create_task(node.load(keys))
        await held[3].reached.wait()
        node.store.begin_anew()
        for one in held:
            one.release()
        await node.time.run(1.1)
        (row,) = await wait
        assert row.pages == 0
        assert node.resident(keys) == 0


async def test_freshness_that_runs_out_answers_at_once() -> None:
    async with nodes() as (node,):
        keys = fresh(4)
        node.shelve(keys)
        held = node.records.hold("probe")
        wait = asyncio.create_task(node.load(keys, seconds=30))
        await held.reached.wait()
        node.store.publish_freshness(node.within(0.2))
        other = asyncio.create_task(node.load(fresh(1), seconds=30))  # whatever happens next looks at it
        await node.time.run(0.3)
        assert await wait == [RowLoaded(0, 0, MissReason.STALE)]
        assert (
            await other == [RowLoaded(0, 0, MissReason.STALE)]
            or other.result()[0].reason is MissReason.ABSENT
        )
        node.store.publish_freshness(0)
        assert await node.load(keys) == [RowLoaded(0, 0, MissReason.STALE)]
        held.release()


async def test_a_put_of_the_same_pages_takes_over_and_what_was_to_stand_on_the_loads_places_is_loaded_anew() -> (
    None
):
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(6)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in range(6)]
        wait = asyncio.create_task(node.load(keys))
        await held[5].reached.wait()
        assert len(node.put(keys[:3])) == 3
        for one in held:
            one.release()
        assert await wait == [RowLoaded(6, 3, MissReason.NONE)]
        assert node.loader.statistics()["fetched"] == 6 + 3
        node.check_bytes(keys)


async def test_a_page_that_a_client_is_storing_is_awaited() -> None:
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(4)
        node.shelve(keys)
        writer = node.store.open_client(1)
        places = node.store.reserve(writer, node.record, None, packed(keys[:1]))
        wait = asyncio.create_task(node.load(keys))
        await settle()
        assert not wait.done()
        view = memoryview(node.store.reader.slot(places[0][3], node.record.page_bytes)).cast("B")
        view[:] = page_of(keys[0], node.record.page_bytes)
        del view
        (told,) = node.store.commit(writer, [places[0][2]], stamp=node.store.stamp(), rests_on=0)
        assert told[0] == PutStatus.STORED
        assert await wait == [RowLoaded(4, 1, MissReason.NONE)]
        node.store.end_client(writer)


async def test_a_page_whose_storing_never_ends_is_not_awaited_for_long() -> None:
    async with nodes() as (node,):
        keys = fresh(2)
        node.shelve(keys)
        writer = node.store.open_client(1)
        node.store.reserve(writer, node.record, None, packed(keys[:1]))
        wait = asyncio.create_task(node.load(keys, seconds=10))
        await node.time.run(0.2)
        assert await wait == [RowLoaded(0, 0, MissReason.ABSENT)]
        node.store.end_client(writer)


async def test_without_room_nothing_is_loaded_and_that_is_the_reason() -> None:
    async with nodes(arena_bytes=1 << 20, segment_bytes=1 << 17) as (node,):
        held, wanted = fresh(400), fresh(4)
        node.put(held)
        pages = node.resident(held)
        assert pages > 0
        node.shelve(wanted)
        with node.store.lease(node.record.id, held[:pages]):
            assert await node.load(wanted) == [RowLoaded(0, 0, MissReason.NO_ROOM)]
        assert await node.load(wanted) == [RowLoaded(4, 0, MissReason.NONE)]


async def test_too_many_requests_are_overloaded_at_once() -> None:
    async with nodes() as (node,):
        held = node.records.hold("probe")
        keys = fresh(2)
        waits = [asyncio.create_task(node.load(keys)) for _ in range(SMALL.requests)]
        await held.reached.wait()
        assert await node.load(fresh(1)) == [RowLoaded(0, 0, MissReason.OVERLOADED)]
        held.release()
        await asyncio.gather(*waits)


@pytest.mark.parametrize(
    "reason", [MissReason.L3_UNAVAILABLE, MissReason.CORRUPT, MissReason.OVERLOADED, MissReason.ABSENT]
)
async def test_a_load_that_fails_ends_the_row_before_its_page(reason: MissReason) -> None:
    async with nodes() as (node,):
        keys = fresh(5)
        node.put(keys[:2])
        node.shelve(keys)
        node.records.fail("load", reason)
        assert await node.load(keys) == [RowLoaded(2, 2, reason)]
        node.records.fail("probe", reason)
        await node.time.run(0.3)
        assert (await node.load(keys))[0].reason is reason


async def test_c27_a_damaged_record_is_a_miss_and_removed() -> None:
    async with nodes() as (node,):
        keys = fresh(4)
        node.shelve(keys)
        node.records.shelf.corrupt(node.name(keys[2]), lambda data: data[:-1] + bytes([data[-1] ^ 1]))
        assert await node.load(keys) == [RowLoaded(2, 0, MissReason.CORRUPT)]
        assert node.records.statistics()["corrupt"] == 1
        assert node.name(keys[2]) not in node.records.shelf.names()


async def test_evicted_while_it_was_loaded_is_not_told() -> None:
    async with nodes() as (node,):
        keys = fresh(4)
        node.put(keys[:2])
        node.shelve(keys)
        held = node.records.hold("probe")
        wait = asyncio.create_task(node.load(keys))
        await held.reached.wait()
        node.store.hide(Selector(namespace=node.record.id))
        held.release()
        await node.time.run(1.1)
        (row,) = await wait
        assert (row.pages, row.from_l3) == (0, 0)


async def test_an_unknown_namespace_is_a_reason() -> None:
    async with nodes() as (node,):
        load = node.loader.begin(
            [LoadRow(namespace_of("never seen").id, None, packed(fresh(2)))],
            deadline_ns=node.within(1),
        )
        assert await load.wait() == [RowLoaded(0, 0, MissReason.UNKNOWN_NAMESPACE)]


async def test_draining_answers_everybody_and_gives_every_place_back() -> None:
    async with nodes() as (node,):
        keys = fresh(6)
        node.shelve(keys)
        held = [node.records.hold("load") for _ in range(6)]
        wait = asyncio.create_task(node.load(keys, seconds=30))
        await held[5].reached.wait()
        node.store.drain()
        node.loader.drain()
        assert await wait == [RowLoaded(0, 0, MissReason.CLOSED)]
        await node.loader.close()
        assert node.reserved == 0
        assert await node.load(keys) == [RowLoaded(0, 0, MissReason.CLOSED)]
