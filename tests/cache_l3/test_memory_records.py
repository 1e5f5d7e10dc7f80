"""The record store in memory: what tests make happen with it, beside the contract that all stores keep."""

from __future__ import annotations

import asyncio

import pytest

from cache_l3.record_store import LoadedRecord
from kv_types.outcomes import STORED, MissReason, Refused, RefuseReason
from tests.support.manual_time import SECOND_NS, ManualTime, settle
from tests.support.memory_records import MemoryRecords, MemoryShelf
from tests.support.records import describe, name, payload, place


class Node:
    """A store on a shelf, on a clock that the test moves."""

    def __init__(self, *, bytes_max: int | None = None, evicts: bool = True, in_flight_max: int = 8) -> None:
        self.time = ManualTime()
        self.shelf = MemoryShelf(clock=self.time, bytes_max=bytes_max, evicts=evicts)
        self.store = MemoryRecords(
            self.shelf, clock=self.time, pause=self.time.pause, in_flight_max=in_flight_max
        )

    def within(self, seconds: float = 1.0) -> int:
        return self.time.now_ns() + int(seconds * SECOND_NS)

    async def put(self, number: int, *, ttl_s: int = 60) -> object:
        return await self.store.store(
            describe(number), payload(number), ttl_s=ttl_s, deadline_ns=self.within()
        )


@pytest.mark.asyncio
async def test_a_record_lives_as_long_as_it_was_given() -> None:
    node = Node()
    assert await node.put(1, ttl_s=60) is STORED
    await node.time.run(50)
    assert await node.store.refresh({name(1): 60, name(2): 60}, deadline_ns=node.within()) == 1
    await node.time.run(59)
    assert not isinstance((await node.store.probe([name(1)], deadline_ns=node.within()))[0], MissReason)
    await node.time.run(1)
    assert await node.store.probe([name(1)], deadline_ns=node.within()) == [MissReason.ABSENT]


@pytest.mark.asyncio
@pytest.mark.parametrize("evicts", [True, False])
async def test_a_full_shelf_evicts_or_refuses(evicts: bool) -> None:
    node = Node(bytes_max=10_000, evicts=evicts)
    assert [await node.put(number) for number in (1, 2)] == [STORED, STORED]
    assert await node.put(3) == (STORED if evicts else Refused(RefuseReason.FULL))
    assert node.shelf.names() == ([name(2), name(3)] if evicts else [name(1), name(2)])


@pytest.mark.asyncio
async def test_a_held_load_ends_at_its_deadline_and_leaves_its_place_alone_from_then_on() -> None:
    node = Node()
    await node.put(1)
    held, where = node.store.hold("load"), place()
    load = node.store.load(name(1), where, deadline_ns=node.within(1.0))
    await node.time.run(0.9)
    assert held.reached.is_set()
    assert not load.done()
    await node.time.run(0.1)
    assert await load is MissReason.DEADLINE
    where[:] = bytes(4096)
    held.release()
    await settle()
    assert where == bytes(4096)


@pytest.mark.asyncio
async def test_a_held_load_goes_on_when_it_is_let_go_and_ends_when_it_is_cancelled() -> None:
    node = Node()
    await node.put(1)
    first, second = node.store.hold("load"), node.store.hold("load")
    loads = [node.store.load(name(1), place(), deadline_ns=node.within()) for _ in range(2)]
    await asyncio.gather(first.reached.wait(), second.reached.wait())
    first.release()
    node.store.cancel(loads[1])
    assert isinstance(await loads[0], LoadedRecord)
    assert await loads[1] is MissReason.ABORTED
    assert node.store.in_flight == 0
    unstarted = node.store.load(name(1), place(), deadline_ns=node.within())
    node.store.cancel(unstarted)
    assert await unstarted is MissReason.ABORTED


@pytest.mark.asyncio
async def test_calls_fail_as_told_and_work_again() -> None:
    node = Node()
    await node.put(1)
    node.store.fail("load", MissReason.OVERLOADED)
    node.store.fail("store", RefuseReason.FULL)
    assert await node.store.load(name(1), place(), deadline_ns=node.within()) is MissReason.OVERLOADED
    assert await node.put(1) == Refused(RefuseReason.FULL)
    node.store.stop()
    assert await node.store.load(name(1), place(), deadline_ns=node.within()) is MissReason.L3_UNAVAILABLE
    assert await node.put(1) == Refused(RefuseReason.UNREACHABLE)
    assert node.store.describe().servers[0].breaker == "open"
    node.store.resume()
    assert isinstance(await node.store.load(name(1), place(), deadline_ns=node.within()), LoadedRecord)


@pytest.mark.asyncio
async def test_more_loads_than_may_be_under_way_are_shed() -> None:
    node = Node(in_flight_max=1)
    held = node.store.hold("load")
    first = node.store.load(name(1), place(), deadline_ns=node.within())
    assert await node.store.load(name(2), place(), deadline_ns=node.within()) is MissReason.OVERLOADED
    held.release()
    assert await first is MissReason.ABSENT


@pytest.mark.asyncio
async def test_damaged_records_are_corrupt_once_and_then_gone() -> None:
    node = Node()
    await node.put(1)
    node.shelf.corrupt(name(1), lambda data: data[:-1])
    assert await node.store.load(name(1), place(), deadline_ns=node.within()) is MissReason.CORRUPT
    assert await node.store.load(name(1), place(), deadline_ns=node.within()) is MissReason.ABSENT
    assert node.store.statistics()["corrupt"] == 1


@pytest.mark.asyncio
async def test_a_closed_store_answers_so_and_ends_what_is_under_way() -> None:
    node = Node()
    node.store.hold("load")
    load = node.store.load(name(1), place(), deadline_ns=node.within())
    await settle()
    await node.store.close()
    assert await load is MissReason.ABORTED
    assert await node.store.load(name(1), place(), deadline_ns=node.within()) is MissReason.CLOSED
    assert await node.put(1) == Refused(RefuseReason.CLOSED)
