"""A record store in memory that keeps L3's contract: time to live, capacity, held and failing calls, damaged bytes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import xxhash

from cache_l3.record_store import L3Picture, LoadedRecord, RecordName, ServerPicture
from cache_l3.tally import Tally
from kv_types.clock import Clock, Pause
from kv_types.errors import BufferMismatchError, CorruptRecordError, UnreadableRecordError
from kv_types.outcomes import STORED, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.record import ChecksumKind, PageDescription, RecordHeader
from tests.support.records import split_record

Verb = Literal["probe", "load", "store", "refresh", "remove"]
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Record:
    data: bytes
    expires_ns: int


def other_birth() -> int:
    """Of a page that was computed elsewhere."""
    return random.getrandbits(63) + 1


class MemoryShelf:
    """What several stores share, as several nodes share one Redis.

    `bytes_max`: what it holds; `evicts` says whether the least recently used record makes room, or a store is refused.
    """

    def __init__(self, *, clock: Clock, bytes_max: int | None = None, evicts: bool = True) -> None:
        self._clock = clock
        self.bytes_max = bytes_max
        self.evicts = evicts
        self._records: dict[RecordName, _Record] = {}  # the least recently used one first

    @property
    def used_bytes(self) -> int:
        return sum(len(record.data) for record in self._records.values())

    def names(self) -> list[RecordName]:
        """Records that are there now, the least recently used one first."""
        now_ns = self._clock.now_ns()
        self._records = {name: one for name, one in self._records.items() if one.expires_ns > now_ns}
        return list(self._records)

    def get(self, name: RecordName) -> bytes | None:
        if name not in self.names():
            return None
        self._records[name] = record = self._records.pop(name)
        return record.data

    def set(self, name: RecordName, data: bytes, *, ttl_s: int) -> bool:
        """False: there is no room."""
        old = self._records.get(name)
        used = self.used_bytes - (len(old.data) if old else 0)
        while self.bytes_max is not None and used + len(data) > self.bytes_max:
            victim = next((one for one in self.names() if one != name), None)
            if not self.evicts or victim is None:
                return False
            used -= len(self._records.pop(victim).data)
        self._records.pop(name, None)
        self._records[name] = _Record(data, self._clock.now_ns() + ttl_s * 1_000_000_000)
        return True

    def expire(self, name: RecordName, *, ttl_s: int) -> bool:
        if name not in self.names():
            return False
        self._records[name].expires_ns = self._clock.now_ns() + ttl_s * 1_000_000_000
        return True

    def remove(self, name: RecordName) -> bool:
        return name in self.names() and self._records.pop(name) is not None

    def ttl_s(self, name: RecordName) -> float:
        return (self._records[name].expires_ns - self._clock.now_ns()) / 1e9

    def put(self, name: RecordName, data: bytes) -> None:
        """Put bytes there as somebody else would, for a minute."""
        assert self.set(name, data, ttl_s=60), "the shelf is full"

    def corrupt(self, name: RecordName, change: Callable[[bytes], bytes]) -> None:
        """Put other bytes in a record's place."""
        self._records[name].data = change(self._records[name].data)

    def clear(self) -> None:
        self._records.clear()


@dataclass(slots=True)
class Held:
    """A call that waits until the test lets it go; `reached` once it waits."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self.released.set()


class MemoryRecords:
    """A RecordStore of one node on a shelf. `pause` waits on the same clock that deadlines are told by."""

    def __init__(
        self,
        shelf: MemoryShelf,
        *,
        clock: Clock,
        pause: Pause = asyncio.sleep,
        in_flight_max: int = 1024,
    ) -> None:
        self.shelf = shelf
        self.calls: Counter[str] = Counter()
        """Records that each verb was asked about."""
        self._clock = clock
        self._pause = pause
        self._in_flight_max = in_flight_max
        self._held: dict[Verb, deque[Held]] = {}
        self._failures: dict[Verb, deque[MissReason | RefuseReason]] = {}
        self._down = False
        self._closed = False
        self._tally = Tally()
        self._running: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}

    # What a test makes happen

    def hold(self, verb: Verb) -> Held:
        """Make the next call of this kind (that no earlier hold is for) wait, up to its deadline."""
        held = Held()
        self._held.setdefault(verb, deque()).append(held)
        return held

    def fail(self, verb: Verb, reason: MissReason | RefuseReason, *, calls: int = 1) -> None:
        """Make the next calls of this kind fail with a reason that fits them."""
        self._failures.setdefault(verb, deque()).extend([reason] * calls)

    def stop(self) -> None:
        """From now on everything is L3_UNAVAILABLE, or UNREACHABLE, at once."""
        self._down = True

    def resume(self) -> None:
        self._down = False

    def write(self, page: PageDescription, payload: memoryview, *, ttl_s: int) -> PutOutcome:
        """Put a record on the shelf at once, as another node may have done."""
        header = RecordHeader(
            page=page, stored_bytes=len(payload), checksum_kind=ChecksumKind.XXH3_64,
            checksum=xxhash.xxh3_64_intdigest(payload),
        )  # fmt: skip
        name = RecordName(page.namespace, page.key)
        is_in = self.shelf.set(name, header.encode() + bytes(payload), ttl_s=ttl_s)
        return STORED if is_in else Refused(RefuseReason.FULL)

    @property
    def in_flight(self) -> int:
        """Loads and stores under way."""
        return len(self._running)

    # The contract

    async def start(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for future in list(self._running):
            self.cancel(future)
        if self._running:
            await asyncio.wait(list(self._running))

    async def probe(
        self, names: Sequence[RecordName], *, deadline_ns: int
    ) -> list[RecordHeader | MissReason]:
        self.calls["probe"] += len(names)
        trouble = await self._trouble("probe", deadline_ns)
        results: list[RecordHeader | MissReason]
        results = [trouble or self._header(name) for name in names]
        self._tally.probed(results)
        return results

    def load(
        self, name: RecordName, place: memoryview, *, deadline_ns: int
    ) -> asyncio.Future[LoadedRecord | MissReason]:
        if place.readonly or not place.c_contiguous:
            raise BufferMismatchError("a place is writable and in one piece")
        self.calls["load"] += 1
        future: asyncio.Future[LoadedRecord | MissReason] = asyncio.get_running_loop().create_future()

        async def run() -> LoadedRecord | MissReason:
            place[:] = b"\xa5" * len(place)  # whatever comes of it: what was there before is gone
            trouble = await self._trouble("load", deadline_ns)
            return trouble or self._read(name, place)

        def tell(result: LoadedRecord | MissReason) -> None:
            reason = result if isinstance(result, MissReason) else None
            self._tally.loaded(reason, payload_bytes=len(place))

        self._begin(future, run(), tell, MissReason.ABORTED, MissReason.OVERLOADED)
        return future

    def cancel(self, load: asyncio.Future[Any]) -> None:
        task = self._running.get(load)
        if task is not None:
            task.cancel()

    def store(
        self, page: PageDescription, payload: memoryview, *, ttl_s: int, deadline_ns: int
    ) -> asyncio.Future[PutOutcome]:
        if payload.nbytes != page.payload_bytes:
            raise BufferMismatchError(f"{payload.nbytes} bytes of a page of {page.payload_bytes}")
        self.calls["store"] += 1
        future: asyncio.Future[PutOutcome] = asyncio.get_running_loop().create_future()

        async def run() -> PutOutcome:
            trouble = await self._refusal(deadline_ns)
            if trouble:
                return Refused(trouble)
            outcome = self.write(page, payload, ttl_s=ttl_s)
            self._tally.count("stored_bytes", page.payload_bytes if outcome == STORED else 0)
            return outcome

        closed, full = Refused(RefuseReason.CLOSED), Refused(RefuseReason.OVERLOADED)
        self._begin(future, run(), self._tally.stored, closed, full)
        return future

    async def refresh(self, ttl_s: Mapping[RecordName, int], *, deadline_ns: int) -> int:
        self.calls["refresh"] += len(ttl_s)
        trouble = await self._trouble("refresh", deadline_ns)
        found = 0 if trouble else sum(self.shelf.expire(name, ttl_s=each) for name, each in ttl_s.items())
        self._tally.count("refreshed", found)
        return found

    async def remove(self, names: Sequence[RecordName], *, deadline_ns: int) -> int:
        self.calls["remove"] += len(names)
        trouble = await self._trouble("remove", deadline_ns)
        found = 0 if trouble else sum(self.shelf.remove(name) for name in names)
        self._tally.count("removed", found)
        return found

    def statistics(self) -> Mapping[str, int]:
        return self._tally.read()

    def describe(self) -> L3Picture:
        breaker = "open" if self._down else "closed"
        server = ServerPicture("memory", breaker, 1, "", "yes")
        return L3Picture("memory", (server,))

    # How it does that

    def _begin(
        self,
        future: asyncio.Future[_Result],
        work: Coroutine[Any, Any, _Result],
        tell: Callable[[_Result], None],
        cancelled: _Result,
        overloaded: _Result,
    ) -> None:
        if len(self._running) >= self._in_flight_max:
            work.close()
            tell(overloaded)
            future.set_result(overloaded)
            return

        def finish(task: asyncio.Task[_Result]) -> None:
            result = cancelled if task.cancelled() else task.result()
            self._running.pop(future)
            tell(result)
            future.set_result(result)

        task = asyncio.get_running_loop().create_task(work)
        self._running[future] = task
        task.add_done_callback(finish)

    async def _trouble(self, verb: Verb, deadline_ns: int) -> MissReason | None:
        """Wait as a test said, then tell what keeps the call from working."""
        if self._closed:
            return MissReason.CLOSED
        held = self._held[verb].popleft() if self._held.get(verb) else None
        if held is not None and not self._down:
            held.reached.set()
            await self._wait(held, deadline_ns)
        if self._down:
            return MissReason.L3_UNAVAILABLE
        if self._failures.get(verb):
            return MissReason[self._failures[verb].popleft().name]
        return MissReason.DEADLINE if self._clock.now_ns() >= deadline_ns else None

    async def _refusal(self, deadline_ns: int) -> RefuseReason | None:
        failing = self._failures.get("store")
        told = failing.popleft() if failing else None
        trouble = await self._trouble("store", deadline_ns)
        if trouble is MissReason.L3_UNAVAILABLE:
            return RefuseReason.UNREACHABLE
        return RefuseReason[(trouble or told).name] if trouble or told else None  # type: ignore[union-attr]

    async def _wait(self, held: Held, deadline_ns: int) -> None:
        remaining_s = max(0, deadline_ns - self._clock.now_ns()) / 1e9
        waits = [
            asyncio.ensure_future(held.released.wait()),
            asyncio.ensure_future(self._pause(remaining_s)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _header(self, name: RecordName) -> RecordHeader | MissReason:
        data = self.shelf.get(name)
        if not data:
            return MissReason.ABSENT
        try:
            return _checked(data, name)[0]
        except UnreadableRecordError:
            self._tally.count("unreadable")
            return MissReason.UNREADABLE
        except CorruptRecordError:
            return self._is_corrupt(name)

    def _read(self, name: RecordName, place: memoryview) -> LoadedRecord | MissReason:
        data = self.shelf.get(name)
        if not data:
            return MissReason.ABSENT
        try:
            header, payload = _checked(data, name)
            _check_payload(header, payload, len(place))
        except UnreadableRecordError:
            self._tally.count("unreadable")
            return MissReason.UNREADABLE
        except CorruptRecordError:
            return self._is_corrupt(name)
        place[:] = payload
        return LoadedRecord(header)

    def _is_corrupt(self, name: RecordName) -> MissReason:
        self.shelf.remove(name)
        self._tally.count("corrupt")
        return MissReason.CORRUPT


def _checked(data: bytes, name: RecordName) -> tuple[RecordHeader, memoryview]:
    header, payload = split_record(data)
    if (header.page.namespace, header.page.key) != (name.namespace, name.key):
        raise CorruptRecordError("another page's record")
    return header, payload


def _check_payload(header: RecordHeader, payload: memoryview, place_bytes: int) -> None:
    if len(payload) != place_bytes or xxhash.xxh3_64_intdigest(payload) != header.checksum:
        raise CorruptRecordError("another payload")
