"""The contract of L3 as tests: every record store passes them, whatever keeps its records and whichever codec packs them."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from cache_l3.record_store import LoadedRecord, RecordName, RecordStore
from kv_types.errors import BufferMismatchError
from kv_types.ids import NamespaceId, PageKey
from kv_types.outcomes import STORED, MissReason, Refused, RefuseReason
from kv_types.record import CHECKSUM_AT, HEADER_BYTES_MIN, RecordHeader, header_size
from tests.support.records import describe, floats, key, name, payload, place, split_record

_MANY = 200


@dataclass(slots=True)
class RecordBed:
    """Two nodes' stores on one L3, empty, and a way to its bytes that goes around them."""

    store: RecordStore
    neighbour: RecordStore
    read: Callable[[RecordName], bytes | None]
    write: Callable[[RecordName, bytes], None]
    ttl_s: Callable[[RecordName], float]
    within: Callable[[float], int]
    settle: Callable[[Callable[[], bool]], Awaitable[None]]
    """Waits, in a coroutine, until something holds that the store does by itself."""

    async def put(self, number: int, *, size: int = 4096, packs: bool = False) -> memoryview:
        """Store a page; returns its payload. `packs`: one that a codec makes smaller."""
        data = floats(number, size=size) if packs else payload(number, size=size)
        done = await self.store.store(
            describe(number, size=size), data, ttl_s=60, deadline_ns=self.within(5.0)
        )
        assert done is STORED, (done, self.store.describe())
        return data

    async def load(self, number: int, where: memoryview) -> LoadedRecord | MissReason:
        """Load a page into a place, by the neighbour."""
        return await self.neighbour.load(name(number), where, deadline_ns=self.within(5.0))


def of_newer_version(record: bytes, what: str) -> bytes:
    """The same record with a number that no version knows yet, under a right CRC."""
    size = header_size(record)
    header = bytearray(record[: size - 4])
    at, number = {"codec": (CHECKSUM_AT - 4, 9), "checksum kind": (CHECKSUM_AT - 2, 9), "flag": (6, 1 << 9)}[
        what
    ]
    (before,) = struct.unpack_from("<H", header, at)
    struct.pack_into("<H", header, at, before | number if what == "flag" else number)
    return bytes(header) + struct.pack("<I", zlib.crc32(header)) + record[size:]


def damages(record: bytes) -> Iterator[tuple[str, bytes]]:
    """A record flipped in every field of its header and all along its payload, cut, extended, emptied."""
    _, stored = split_record(record)
    head = len(record) - len(stored)
    places = [
        *range(0, head, 5),
        head - 1,
        head,
        head + 1,
        *range(head, len(record), max(1, len(stored) // 9)),
    ]
    for at in [*places, len(record) - 1]:
        flipped = bytearray(record)
        flipped[at] ^= 0x10
        yield f"flipped at {at}", bytes(flipped)
    for size in (1, 11, HEADER_BYTES_MIN - 1, head - 1, head, head + 1, len(record) - 1):
        yield f"cut to {size}", record[:size]
    for tail in (b"\0", b"x" * 999, record, bytes(40_000)):
        yield f"extended by {len(tail)}", record + tail
    yield "none of our records", b"x" * len(record)


class RecordStoreConformance:
    """The suite. Every test gets an empty L3 by the fixture `bed`."""

    @pytest.mark.asyncio
    @pytest.mark.parametrize("packs", [False, True])
    async def test_what_one_node_stores_another_loads_bit_for_bit(self, bed: RecordBed, packs: bool) -> None:
        data = await bed.put(3, packs=packs)
        where = place()
        loaded = await bed.load(3, where)
        assert isinstance(loaded, LoadedRecord)
        assert loaded.header.page == describe(3)
        assert where == data

    @pytest.mark.asyncio
    @pytest.mark.parametrize("size", [1, 2, 65_537, 1 << 20])
    async def test_pages_of_any_size_come_back(self, bed: RecordBed, size: int) -> None:
        data = await bed.put(1, size=size, packs=size > 2)
        where = place(size)
        assert isinstance(await bed.load(1, where), LoadedRecord)
        assert where == data

    @pytest.mark.asyncio
    async def test_descriptions_at_their_limits_travel(self, bed: RecordBed) -> None:
        longest = describe(
            2, parent=None, producer=b"p" * 64, tags=(b"t" * 64,) * 8, origin_unknown=True, rests_on=2**64 - 1,
            birth=2**64 - 2, computed_until_ms=2**64 - 1,
        )  # fmt: skip
        await bed.store.store(longest, payload(2), ttl_s=60, deadline_ns=bed.within(5.0))
        loaded = await bed.load(2, place())
        assert isinstance(loaded, LoadedRecord)
        assert loaded.header.page == longest
        assert await bed.neighbour.probe([name(2)], deadline_ns=bed.within(5.0)) == [loaded.header]

    @pytest.mark.asyncio
    async def test_a_probe_tells_of_each_record_in_order(self, bed: RecordBed) -> None:
        for number in range(0, _MANY, 3):
            await bed.put(number, size=64)
        names = [name(number) for number in range(_MANY)]
        found = await bed.neighbour.probe(names, deadline_ns=bed.within(5.0))
        for number, header in enumerate(found):
            if number % 3:
                assert header is MissReason.ABSENT
            else:
                assert isinstance(header, RecordHeader)
                assert header.page == describe(number, size=64)
        assert await bed.store.probe([], deadline_ns=bed.within(5.0)) == []

    @pytest.mark.asyncio
    async def test_what_is_not_there_is_absent(self, bed: RecordBed) -> None:
        await bed.put(1)
        assert await bed.load(2, place()) is MissReason.ABSENT
        other = RecordName(NamespaceId(b"\x07" * 32), name(1).key)
        assert await bed.neighbour.load(other, place(), deadline_ns=bed.within(5.0)) is MissReason.ABSENT

    @pytest.mark.asyncio
    async def test_a_store_overwrites(self, bed: RecordBed) -> None:
        await bed.put(1)
        again = describe(1, birth=99, tags=())
        assert await bed.store.store(again, floats(7), ttl_s=60, deadline_ns=bed.within(5.0)) is STORED
        where = place()
        loaded = await bed.load(1, where)
        assert isinstance(loaded, LoadedRecord)
        assert loaded.header.page.birth == 99
        assert where == floats(7)

    @pytest.mark.asyncio
    async def test_every_record_has_a_time_to_live_that_can_be_renewed(self, bed: RecordBed) -> None:
        await bed.put(1)
        assert 50 < bed.ttl_s(name(1)) <= 60
        names = [name(1), name(2)]
        assert await bed.neighbour.refresh(dict.fromkeys(names, 600), deadline_ns=bed.within(5.0)) == 1
        assert 500 < bed.ttl_s(name(1)) <= 600

    @pytest.mark.asyncio
    async def test_what_is_removed_is_gone(self, bed: RecordBed) -> None:
        await bed.put(1)
        await bed.put(2)
        names = [name(1), name(3)]
        assert await bed.neighbour.remove(names, deadline_ns=bed.within(5.0)) == 1
        assert await bed.load(1, place()) is MissReason.ABSENT
        assert isinstance(await bed.load(2, place()), LoadedRecord)
        assert await bed.store.remove([], deadline_ns=bed.within(5.0)) == 0

    @pytest.mark.asyncio
    async def test_many_loads_at_once_get_each_their_own(self, bed: RecordBed) -> None:
        data = [await bed.put(number, size=3000, packs=number % 2 == 0) for number in range(_MANY)]
        places = [place(3000) for _ in range(_MANY)]
        loads = [
            bed.neighbour.load(name(number), places[number], deadline_ns=bed.within(10.0))
            for number in range(_MANY)
        ]
        for number, loaded in enumerate(await asyncio.gather(*loads)):
            assert isinstance(loaded, LoadedRecord)
            assert loaded.header.page.key == key(number)
            assert places[number] == data[number]

    @pytest.mark.asyncio
    @pytest.mark.parametrize("packs", [False, True])
    async def test_c27_a_damaged_record_is_a_miss_is_counted_and_is_removed(
        self, bed: RecordBed, packs: bool
    ) -> None:
        await bed.put(1, packs=packs)
        record = bed.read(name(1))
        assert record is not None
        counted = 0
        for what, damaged in damages(record):
            bed.write(name(1), damaged)
            assert await bed.load(1, place()) is MissReason.CORRUPT, what
            counted += 1
            assert bed.neighbour.statistics()["corrupt"] == counted, what
            await bed.settle(lambda: bed.read(name(1)) is None)
            assert await bed.load(1, place()) is MissReason.ABSENT, what
        assert counted > 60

    @pytest.mark.asyncio
    async def test_a_value_of_no_bytes_is_absent_however_it_is_asked_for_and_is_written_over(
        self, bed: RecordBed
    ) -> None:
        bed.write(name(1), b"")
        assert await bed.store.probe([name(1)], deadline_ns=bed.within(5.0)) == [MissReason.ABSENT]
        assert await bed.load(1, place()) is MissReason.ABSENT
        await bed.put(1)
        assert isinstance(await bed.load(1, place()), LoadedRecord)

    @pytest.mark.asyncio
    async def test_c27_a_probe_finds_damaged_headers_and_removes_them(self, bed: RecordBed) -> None:
        await bed.put(1)
        record = bed.read(name(1))
        assert record is not None
        for damaged in (record[:100], b"?" + record[1:], record[:60] + b"?" + record[61:], b"x"):
            bed.write(name(1), damaged)
            assert await bed.neighbour.probe([name(1)], deadline_ns=bed.within(5.0)) == [MissReason.CORRUPT]
            await bed.settle(lambda: bed.read(name(1)) is None)
        assert bed.neighbour.statistics()["corrupt"] == 4

    @pytest.mark.asyncio
    @pytest.mark.parametrize("what", ["codec", "checksum kind", "flag"])
    async def test_what_a_newer_version_wrote_is_a_miss_is_left_and_is_written_over(
        self, bed: RecordBed, what: str
    ) -> None:
        await bed.put(1)
        record = bed.read(name(1))
        assert record is not None
        newer = of_newer_version(record, what)
        bed.write(name(1), newer)
        for _ in range(20):
            assert await bed.load(1, place()) is MissReason.UNREADABLE
            found = await bed.neighbour.probe([name(1)], deadline_ns=bed.within(5.0))
            assert found == [MissReason.UNREADABLE]
        told = bed.neighbour.statistics()
        assert (told["corrupt"], told["unreadable"], told["removed"]) == (0, 40, 0)
        assert bed.read(name(1)) == newer
        await bed.put(1)
        assert isinstance(await bed.load(1, place()), LoadedRecord)

    @pytest.mark.asyncio
    async def test_c27_the_record_of_another_page_or_of_another_size_is_corrupt(self, bed: RecordBed) -> None:
        await bed.put(1)
        await bed.put(2, size=4095)
        foreign, smaller = bed.read(name(1)), bed.read(name(2))
        assert foreign is not None
        assert smaller is not None
        other = RecordName(NamespaceId(b"\x07" * 32), PageKey(bytes(name(1).key)))
        for where in (name(3), other):
            bed.write(where, foreign)
            found = await bed.neighbour.load(where, place(), deadline_ns=bed.within(5.0))
            assert found is MissReason.CORRUPT
        assert await bed.load(2, place(4096)) is MissReason.CORRUPT
        assert isinstance(await bed.load(1, place()), LoadedRecord), "the page itself is none the worse"

    @pytest.mark.asyncio
    async def test_a_deadline_that_has_passed_is_told_and_nothing_comes_later(self, bed: RecordBed) -> None:
        where = place()
        assert await bed.neighbour.load(name(1), where, deadline_ns=bed.within(-1.0)) is MissReason.DEADLINE
        await bed.put(1)
        where[:] = bytes(4096)
        done = await bed.store.store(describe(2), payload(2), ttl_s=60, deadline_ns=bed.within(-1.0))
        assert done == Refused(RefuseReason.DEADLINE)
        assert await bed.store.probe([name(1)], deadline_ns=bed.within(-1.0)) == [MissReason.DEADLINE]
        assert isinstance(await bed.load(1, place()), LoadedRecord)
        assert where == bytes(4096)

    @pytest.mark.asyncio
    async def test_a_cancelled_load_ends_and_leaves_its_place_alone(self, bed: RecordBed) -> None:
        await bed.put(1, size=1 << 20)
        for turns in range(6):
            where = place(1 << 20)
            load = bed.neighbour.load(name(1), where, deadline_ns=bed.within(5.0))
            for _ in range(turns):
                await asyncio.sleep(0)
            bed.neighbour.cancel(load)
            ended = await load
            assert ended is MissReason.ABORTED or isinstance(ended, LoadedRecord)
            where[:] = bytes(1 << 20)
            assert isinstance(await bed.load(1, place(1 << 20)), LoadedRecord)
            assert where == bytes(1 << 20)
            bed.neighbour.cancel(load)  # once more is nothing

    @pytest.mark.asyncio
    async def test_counts_add_up(self, bed: RecordBed) -> None:
        data = await bed.put(1)
        await bed.load(1, place())
        await bed.load(2, place())
        bed.neighbour.cancel(load := bed.neighbour.load(name(1), place(), deadline_ns=bed.within(5.0)))
        await load
        told = bed.neighbour.statistics()
        missed = sum(count for what, count in told.items() if what.startswith("load_missed_"))
        assert told["loads"] == told["loaded"] + missed == 3
        assert told["loaded_bytes"] == told["loaded"] * len(data)
        told = bed.store.statistics()
        assert (told["stores"], told["stored"]) == (1, 1)
        assert 0 < told["stored_bytes"] <= len(data)

    @pytest.mark.asyncio
    async def test_buffers_that_do_not_fit_are_refused_at_once(self, bed: RecordBed) -> None:
        with pytest.raises(BufferMismatchError):
            bed.store.load(name(1), memoryview(bytes(4096)), deadline_ns=bed.within(5.0))
        with pytest.raises(BufferMismatchError):
            bed.store.load(name(1), place()[::2], deadline_ns=bed.within(5.0))
        with pytest.raises(BufferMismatchError):
            bed.store.store(describe(1), payload(1, size=4095), ttl_s=60, deadline_ns=bed.within(5.0))

    @pytest.mark.asyncio
    async def test_a_closed_store_says_so(self, bed: RecordBed) -> None:
        await bed.put(1)
        load = bed.store.load(name(1), place(), deadline_ns=bed.within(5.0))
        await bed.store.close()
        assert load.done()
        assert await load in (MissReason.ABORTED, MissReason.CLOSED) or isinstance(await load, LoadedRecord)
        assert await bed.store.load(name(1), place(), deadline_ns=bed.within(5.0)) is MissReason.CLOSED
        assert await bed.store.probe([name(1)], deadline_ns=bed.within(5.0)) == [MissReason.CLOSED]
        refused = await bed.store.store(describe(1), payload(1), ttl_s=60, deadline_ns=bed.within(5.0))
        assert refused == Refused(RefuseReason.CLOSED)
        assert await bed.store.remove([name(1)], deadline_ns=bed.within(5.0)) == 0
        await bed.store.close()
        assert isinstance(await bed.load(1, place()), LoadedRecord)

    def test_a_picture_names_servers_and_breakers(self, bed: RecordBed) -> None:
        picture = bed.store.describe()
        assert picture.kind in ("single", "cluster", "memory")
        assert all(server.breaker == "closed" for server in picture.servers)
        assert replace(picture, trouble="") == picture
