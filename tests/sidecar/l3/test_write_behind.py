"""Write-behind: what clients store comes into L3 once, bounded, and each page that was offered is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kv_types.ids import Stamp, new_log_incarnation
from kv_types.limits import (
    L3_STORE_ATTEMPTS_MAX,
    L3_STORE_BACKOFF_S_MAX,
    L3_STORE_BACKOFF_S_MIN,
    L3_STORE_BATCH_PAGES,
    L3_STORES_IN_FLIGHT_MAX,
    L3_STORES_IN_FLIGHT_WHILE_LOADING,
)
from kv_types.outcomes import MissReason, RefuseReason
from kv_types.record import RESTS_ON_UNKNOWN
from kv_types.selectors import Selector
from sidecar.l3.loads import RowLoaded
from tests.support.l3_node import Node, fresh, nodes
from tests.support.manual_time import settle, until
from tests.support.records import split_record

pytestmark = pytest.mark.asyncio

ENDS = ("stored", "known", "gone", "left_here", "dropped_", "refused_")


def accounted(figures: Mapping[str, int]) -> bool:
    """Whether every page that was offered is somewhere."""
    ended = sum(count for name, count in figures.items() if name.startswith(ENDS))
    return figures.get("offered", 0) == ended + figures["queued_pages"] + figures["in_flight"]


async def idle(node: Node) -> Mapping[str, int]:
    await until(lambda: node.behind.is_idle, what="the end of write-behind")
    figures = node.behind.statistics()
    assert accounted(figures)
    return figures


async def test_what_one_node_stores_another_loads() -> None:
    async with nodes(2) as (writer, other):
        writer.behind.start()
        keys = fresh(100)
        writer.put(keys)
        figures = await idle(writer)
        assert (figures["offered"], figures["stored"]) == (100, 100)
        assert await other.load(keys) == [RowLoaded(100, 0, MissReason.NONE)]
        other.check_bytes(keys)
        assert other.records.shelf.ttl_s(other.name(keys[0])) == pytest.approx(100, abs=1)
        for node in (writer, other):
            assert node.store.statistics()["policy_elsewhere"] == 100, "both know that L3 holds them"


async def test_what_was_loaded_is_not_sent_back() -> None:
    async with nodes(2) as (writer, other):
        writer.behind.start()
        other.behind.start()
        keys = fresh(5)
        writer.put(keys)
        await idle(writer)
        await other.load(keys)
        assert (await idle(other)).get("offered", 0) == 0


async def test_known_valid_pages_are_not_sent_again_and_live_longer() -> None:
    async with nodes(2) as (writer, other):
        keys = fresh(6)
        writer.shelve(keys)
        await writer.time.run(50)
        writer.behind.start()
        writer.put(keys)
        figures = await idle(writer)
        assert (figures["known"], figures.get("stored", 0)) == (6, 0)
        assert writer.records.calls["store"] == 0
        assert writer.store.statistics()["policy_elsewhere"] == 6
        assert writer.records.shelf.ttl_s(writer.name(keys[5])) == pytest.approx(100, abs=1)
        assert other.resident(keys) == 0


@pytest.mark.parametrize("kind", ["old", "foreign", "corrupt", "doubtful"])
async def test_i9_what_l3_has_and_is_not_surely_valid_is_overwritten(kind: str) -> None:
    async with nodes(2) as (writer, other):
        keys = fresh(4)
        changes = {"rests_on": RESTS_ON_UNKNOWN} if kind == "doubtful" else {}
        stamp = Stamp(new_log_incarnation(), 0) if kind == "foreign" else None
        writer.shelve(keys, stamp=stamp, producer=b"bad", **changes)
        if kind == "corrupt":
            for key in keys:
                writer.records.shelf.corrupt(writer.name(key), lambda data: b"SKVR" + bytes(len(data) - 4))
        elif kind == "old":
            writer.store.hide_pages(keys[:1])
            other.store.catch_up()
        elif kind == "doubtful":
            writer.store.hide(Selector(producer=b"another"))
            other.store.catch_up()
        writer.behind.start()
        writer.put(keys)
        figures = await idle(writer)
        assert figures["stored"] == 4
        assert await other.load(keys) == [RowLoaded(4, 0, MissReason.NONE)]


async def test_pages_that_are_gone_when_their_turn_comes_are_counted_and_not_sent() -> None:
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(8)
        node.put(keys)
        node.store.hide_pages(keys[5:6])
        figures = await idle(node)
        assert (figures["stored"], figures["gone"]) == (5, 3)
        assert len(node.records.shelf.names()) == 5


async def test_nothing_is_pinned_while_it_waits() -> None:
    async with nodes() as (node,):
        node.behind.start()
        held = node.records.hold("probe")
        node.put(fresh(200))
        await held.reached.wait()
        assert node.store.reader.held() == 0
        held.release()
        await idle(node)


@pytest.mark.parametrize(("pages", "size"), [(10, 1 << 30), (1000, 10 * 4096)])
async def test_a_full_queue_drops_and_counts(pages: int, size: int) -> None:
    async with nodes(queue_pages=pages, queue_bytes=size) as (node,):
        node.behind.start()
        held = node.records.hold("probe")
        node.put(fresh(1))
        await held.reached.wait()
        node.put(fresh(50))
        await settle()
        figures = node.behind.statistics()
        room = min(pages, size // node.record.page_bytes)
        assert figures["queued_pages"] == room
        assert figures["dropped_queue_full"] == 50 - room
        assert accounted(figures)
        held.release()
        assert (await idle(node))["stored"] == room + 1


async def test_stores_in_flight_are_few_and_fewer_while_somebody_waits_for_loads() -> None:
    async with nodes() as (node,):
        node.behind.start()
        held = [node.records.hold("store") for _ in range(L3_STORE_BATCH_PAGES)]
        node.put(fresh(L3_STORE_BATCH_PAGES))
        await held[L3_STORES_IN_FLIGHT_MAX - 1].reached.wait()
        await settle()
        assert node.store.reader.held() == node.records.in_flight == L3_STORES_IN_FLIGHT_MAX
        loading = node.records.hold("probe")
        load = asyncio.create_task(node.load(fresh(1)))
        await loading.reached.wait()
        for one in held[: L3_STORES_IN_FLIGHT_MAX - 1]:
            one.release()
        await settle()
        assert node.records.in_flight == L3_STORES_IN_FLIGHT_WHILE_LOADING
        loading.release()
        await load
        for one in held:
            one.release()
        assert (await idle(node))["stored"] == L3_STORE_BATCH_PAGES
        assert node.store.reader.held() == 0


async def test_while_l3_is_out_of_reach_pages_wait_and_then_go() -> None:
    async with nodes() as (node,):
        node.behind.start()
        node.records.stop()
        keys = fresh(5)
        node.put(keys)
        await node.time.run(3)
        figures = node.behind.statistics()
        assert (figures["queued_pages"], figures["in_flight"]) == (5, 0)
        assert node.records.calls["probe"] < 5 * 12, "it is not asked all the time"
        node.records.resume()
        await node.time.run(3)
        assert (await idle(node))["stored"] == 5


async def test_pages_that_are_gone_delay_nobody_behind_them_once_l3_answers_again() -> None:
    async with nodes() as (node,):
        node.behind.start()
        node.records.stop()
        evicted = fresh(3 * L3_STORE_BATCH_PAGES)
        node.put(evicted)
        await node.time.run(10)
        node.store.hide_pages(evicted[:1])
        node.put(fresh(5))
        node.records.resume()
        await node.time.run(L3_STORE_BACKOFF_S_MAX)
        figures = await idle(node)
        assert (figures["stored"], figures["gone"]) == (5, len(evicted))


async def test_pages_that_are_gone_keep_the_event_loop_for_one_batch_at_most() -> None:
    async with nodes() as (node,):
        node.behind.start()
        held = node.records.hold("probe")
        node.put(fresh(1))
        await held.reached.wait()
        evicted = fresh(3 * L3_STORE_BATCH_PAGES)
        node.put(evicted)
        await settle()
        node.store.hide_pages(evicted[:1])
        held.release()
        seen = set()
        while not node.behind.is_idle:
            seen.add(node.behind.statistics().get("gone", 0))
            await asyncio.sleep(0)
        assert {L3_STORE_BATCH_PAGES, 2 * L3_STORE_BATCH_PAGES} <= seen
        await idle(node)


async def test_pages_that_waited_too_long_are_dropped() -> None:
    async with nodes() as (node,):
        node.behind.start()
        node.records.stop()
        node.put(fresh(5))
        await node.time.run(65)
        assert (await idle(node))["dropped_too_old"] == 5


async def test_what_l3_refuses_is_counted_by_its_reason() -> None:
    async with nodes() as (node,):
        node.behind.start()
        node.records.fail("store", RefuseReason.FULL)
        node.put(fresh(5))
        figures = await idle(node)
        assert (figures["refused_full"], figures["stored"]) == (1, 4)


async def test_what_is_not_answered_is_sent_again_and_given_up_in_the_end() -> None:
    async with nodes() as (node,):
        node.behind.start()
        node.records.fail("store", RefuseReason.UNREACHABLE)
        keys = fresh(2)
        node.put(keys)
        await node.time.run(1)
        assert (await idle(node))["stored"] == 2
        held = [node.records.hold("store") for _ in range(L3_STORE_ATTEMPTS_MAX)]
        node.put(fresh(1))
        await node.time.run(20)
        figures = await idle(node)
        assert figures["refused_deadline"] == 1
        assert all(one.reached.is_set() for one in held)
        assert node.store.reader.held() == 0


async def test_stores_that_are_lost_with_one_connection_are_one_failure() -> None:
    async with nodes() as (node,):
        node.behind.start()
        pages = L3_STORES_IN_FLIGHT_MAX + 1
        held = [node.records.hold("store") for _ in range(L3_STORES_IN_FLIGHT_MAX)]
        node.records.fail("store", RefuseReason.UNREACHABLE, calls=L3_STORES_IN_FLIGHT_MAX)
        node.put(fresh(pages))
        await held[-1].reached.wait()
        for one in held:
            one.release()
        await node.time.run(1.5 * L3_STORE_BACKOFF_S_MIN)
        assert (await idle(node))["stored"] == pages


async def test_no_record_outlives_its_page() -> None:
    async with nodes(default_ttl_s=30) as (node,):
        node.behind.start()
        keys = fresh(2)
        node.put(keys)
        await idle(node)
        assert node.records.shelf.ttl_s(node.name(keys[0])) <= 31


async def test_draining_stores_what_it_can_and_drops_the_rest_counted() -> None:
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(10)
        node.put(keys)
        node.store.drain()
        await node.behind.drain(5)
        assert node.behind.statistics()["stored"] == 10
    async with nodes() as (node,):
        node.behind.start()
        node.records.stop()
        node.put(fresh(10))
        await settle()
        await node.behind.drain(0.05)
        figures = node.behind.statistics()
        assert figures["dropped_closing"] == 10
        assert accounted(figures)


async def test_what_is_told_after_the_end_is_nobodys() -> None:
    async with nodes() as (node,):
        node.behind.start()
        await node.behind.close()
        node.put(fresh(3))
        assert node.behind.is_idle


async def test_a_record_carries_what_its_page_is() -> None:
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(3)
        node.put(keys)
        await idle(node)
        data = node.records.shelf.get(node.name(keys[2]))
        assert data is not None
        header, _ = split_record(data)
        assert (header.page.parent, header.page.stamp) == (keys[1], node.store.stamp())
        assert header.page.rests_on == 0


async def test_what_pages_stand_on_lives_on_in_l3_and_comes_back_if_it_has_gone() -> None:
    async with nodes(2) as (writer, other):
        writer.behind.start()
        keys = fresh(12)
        writer.put(keys[:8])
        await idle(writer)
        await writer.time.run(90)
        for lost in keys[2:4]:
            assert writer.records.shelf.remove(writer.name(lost))
        writer.put(keys[:10], start=8)
        figures = await idle(writer)
        assert (figures["restored"], figures["stored"]) == (2, 8 + 2 + 2)
        assert writer.records.shelf.ttl_s(writer.name(keys[0])) == pytest.approx(100, abs=1)
        assert await other.load(keys[:10]) == [RowLoaded(10, 0, MissReason.NONE)]


async def test_a_page_whose_record_was_found_gone_costs_what_others_do_until_it_is_there_again() -> None:
    async with nodes() as (writer,):
        writer.behind.start()
        keys = fresh(10)
        writer.put(keys[:8])
        await idle(writer)
        await writer.time.run(90)
        for lost in keys[2:4]:
            assert writer.records.shelf.remove(writer.name(lost))
        assert writer.store.statistics()["policy_elsewhere"] == 8, "nobody has noticed"
        held = [writer.records.hold("store") for _ in range(4)]
        writer.put(keys, start=8)
        await until(lambda: writer.behind.statistics().get("restored", 0) == 2, what="their restoring")
        assert writer.store.statistics()["policy_elsewhere"] == 6
        for one in held:
            one.release()
        await idle(writer)
        assert writer.store.statistics()["policy_elsewhere"] == 10


async def test_what_was_in_l3_a_moment_ago_is_not_asked_for_again() -> None:
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(12)
        node.put(keys[:8])
        await idle(node)
        asked = node.records.calls["refresh"]
        for end in range(9, 13):
            node.put(keys[:end], start=end - 1)
            await idle(node)
        assert node.records.calls["refresh"] == asked
        await node.time.run(61)
        node.put([*keys, *(more := fresh(1))], start=12)
        await idle(node)
        assert node.records.calls["refresh"] == asked + 12
        assert node.name(more[0]) in node.records.shelf.names()


async def test_ancestors_that_are_nowhere_any_more_are_no_matter() -> None:
    async with nodes() as (node,):
        node.behind.start()
        keys = fresh(4)
        node.put(keys[:3])
        await idle(node)
        await node.time.run(61)
        node.records.shelf.clear()
        node.put(keys, start=3)
        node.store.hide_pages(keys[:1])
        figures = await idle(node)
        assert figures.get("restored", 0) == 0
        assert figures["gone"] == 1


async def test_an_instance_is_found_by_its_key() -> None:
    async with nodes() as (node,):
        keys = fresh(3)
        node.put(keys)
        with node.store.lease(node.record.id, keys) as lease:
            assert [node.store.instance(key) for key in keys] == lease.instances()
        assert node.store.instance(fresh(1)[0]) is None


@pytest.mark.parametrize("verb", ["probe", "store"])
async def test_what_fails_in_it_costs_a_batch_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    async with nodes() as (node,):
        node.behind.start()
        with monkeypatch.context() as patched:
            patched.setattr(node.records, verb, broken)
            node.put(fresh(3))
            await settle()
            figures = node.behind.statistics()
            assert figures["dropped_failed"] == 3
            assert accounted(figures)
            assert node.store.reader.held() == 0
        node.put(fresh(2))
        await node.time.run(L3_STORE_BACKOFF_S_MIN)
        assert (await idle(node))["stored"] == 2
