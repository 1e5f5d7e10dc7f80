"""A record store held against a dict: stores, loads, probes, removals, renewals, damage, evictions, cancellations."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache_l3.record_store import LoadedRecord, RecordName, RecordStore
from kv_types.outcomes import STORED, MissReason
from kv_types.record import PageDescription, RecordHeader
from tests.support.records import describe, floats, name, payload, place

NUMBERS = st.integers(0, 5)
SIZE = 3000
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Kept:
    """What must be under a name; `is_damaged`: nothing that may be served."""

    page: PageDescription
    data: bytes
    is_damaged: bool = False


class RecordStoreMachine(RuleBasedStateMachine):
    """A subclass makes the store, in `open`, and reaches its bytes around it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.kept: dict[int, Kept] = {}
        self.births = 0
        self.corrupt = 0
        self.store: RecordStore = self.run(self.open())

    @abstractmethod
    async def open(self) -> RecordStore:
        """An empty store."""

    @abstractmethod
    async def close(self) -> None:
        """Close it."""

    @abstractmethod
    def within(self, seconds: float) -> int:
        """A deadline."""

    @abstractmethod
    def read(self, name: RecordName) -> bytes | None:
        """Bytes of a record."""

    @abstractmethod
    def write(self, name: RecordName, data: bytes | None) -> None:
        """Put others in their place; None: evict it."""

    @abstractmethod
    async def settled(self, name: RecordName) -> None:
        """Wait until a record that was found damaged is gone."""

    def run(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.close())
        self.runner.close()

    @rule(number=NUMBERS, packs=st.booleans())
    def stores(self, number: int, packs: bool) -> None:
        self.births += 1
        page = describe(number, size=SIZE, birth=self.births)
        data = floats(self.births, size=SIZE) if packs else payload(self.births, size=SIZE)

        async def work() -> object:
            return await self.store.store(page, data, ttl_s=60, deadline_ns=self.within(5.0))

        assert self.run(work()) is STORED
        self.kept[number] = Kept(page, bytes(data))

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=8))
    def loads(self, numbers: list[int]) -> None:
        """Several at once, the same one perhaps more than once."""
        places = [place(SIZE) for _ in numbers]

        async def work() -> list[LoadedRecord | MissReason]:
            loads = [
                self.store.load(name(number), where, deadline_ns=self.within(5.0))
                for number, where in zip(numbers, places, strict=True)
            ]
            return list(await asyncio.gather(*loads))

        for number, where, end in zip(numbers, places, self.run(work()), strict=True):
            kept = self.kept.get(number)
            if isinstance(end, LoadedRecord):
                assert kept is not None
                assert not kept.is_damaged
                assert (end.header.page, bytes(where)) == (kept.page, kept.data)
            elif end is MissReason.CORRUPT:
                assert kept is not None
                assert kept.is_damaged
            else:
                assert end is MissReason.ABSENT, (end, self.store.describe())
                assert kept is None or kept.is_damaged
        for number in set(numbers):
            self.forget_damaged(number)

    @rule(numbers=st.lists(NUMBERS, max_size=6, unique=True))
    def probes(self, numbers: list[int]) -> None:
        async def work() -> list[RecordHeader | MissReason]:
            return await self.store.probe([name(number) for number in numbers], deadline_ns=self.within(5.0))

        for number, found in zip(numbers, self.run(work()), strict=True):
            kept = self.kept.get(number)
            if kept is None:
                assert found is MissReason.ABSENT
            elif not kept.is_damaged:
                assert isinstance(found, RecordHeader)
                assert found.page == kept.page
            elif found is MissReason.CORRUPT:
                self.forget_damaged(number)

    @rule(numbers=st.lists(NUMBERS, max_size=6, unique=True))
    def removes(self, numbers: list[int]) -> None:
        async def work() -> int:
            return await self.store.remove([name(number) for number in numbers], deadline_ns=self.within(5.0))

        assert self.run(work()) == len(self.kept.keys() & set(numbers))
        for number in numbers:
            self.kept.pop(number, None)

    @rule(numbers=st.lists(NUMBERS, max_size=6, unique=True), ttl_s=st.integers(60, 3600))
    def renews(self, numbers: list[int], ttl_s: int) -> None:
        async def work() -> int:
            names = [name(number) for number in numbers]
            return await self.store.refresh(dict.fromkeys(names, ttl_s), deadline_ns=self.within(5.0))

        assert self.run(work()) == len(self.kept.keys() & set(numbers))

    @rule(number=NUMBERS, at=st.integers(0, 4000), bit=st.integers(0, 7), cuts=st.booleans())
    def damages(self, number: int, at: int, bit: int, cuts: bool) -> None:
        record, kept = self.read(name(number)), self.kept.get(number)
        assert (record is None) == (kept is None)
        if record is None or kept is None or kept.is_damaged:
            return
        damaged = bytearray(record[: at % len(record) or 1] if cuts else record)
        if not cuts:
            damaged[at % len(record)] ^= 1 << bit
        self.write(name(number), bytes(damaged))
        self.kept[number] = Kept(kept.page, kept.data, is_damaged=True)

    @rule(number=NUMBERS)
    def evicts(self, number: int) -> None:
        self.write(name(number), None)
        self.kept.pop(number, None)

    @rule(number=NUMBERS, turns=st.integers(0, 6))
    def cancels(self, number: int, turns: int) -> None:
        where = place(SIZE)

        async def work() -> LoadedRecord | MissReason:
            load = self.store.load(name(number), where, deadline_ns=self.within(5.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            self.store.cancel(load)
            return await load

        end, kept = self.run(work()), self.kept.get(number)
        if isinstance(end, LoadedRecord):
            assert kept is not None
            assert not kept.is_damaged
            assert bytes(where) == kept.data
        elif end is MissReason.CORRUPT:
            self.forget_damaged(number)
        else:
            assert end is MissReason.ABORTED or kept is None

    def forget_damaged(self, number: int) -> None:
        """A damaged record that was looked at goes."""
        kept = self.kept.get(number)
        if kept is not None and kept.is_damaged:
            self.run(self.settled(name(number)))
            del self.kept[number]

    @invariant()
    def counts_add_up(self) -> None:
        told = self.store.statistics()
        missed = sum(count for what, count in told.items() if what.startswith("load_missed_"))
        assert told["loads"] == told["loaded"] + missed
        assert told["stores"] == told["stored"] == self.births
