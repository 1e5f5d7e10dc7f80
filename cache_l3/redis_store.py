"""RedisRecordStore: the record store over RESP servers. It encodes and verifies; others find servers and move the bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cache_l3.address import RedisServers
from cache_l3.data_path import DataPath, Got
from cache_l3.key_space import KeySpace
from cache_l3.lossy import LOSSY_CODECS
from cache_l3.lossy_tally import LossyTally
from cache_l3.page_codecs import Packed, PageCodecs
from cache_l3.questions import Command, Questions
from cache_l3.record_store import L3Picture, LoadedRecord, RecordName
from cache_l3.router import Router, Trouble, TroubleError
from cache_l3.shard import ShardTerms
from cache_l3.tally import Tally
from cache_l3.transfers import Transfer
from cache_l3.verification import check_arrival, finish, needs_work, read_header
from kv_types.clock import Clock
from kv_types.errors import (
    BufferMismatchError,
    ClosedError,
    CorruptRecordError,
    InvalidArgumentError,
    UnreadableRecordError,
)
from kv_types.ids import NamespaceId
from kv_types.limits import (
    L3_CODEC_THREADS_MAX,
    L3_DISCARD_S,
    L3_DISCARDS_MAX,
    L3_ENCODED_MAX,
    L3_ERROR_LIMIT_DEFAULT,
    L3_PROBE_RECORDS_MAX,
    TTL_S_MAX,
)
from kv_types.namespace import Namespace
from kv_types.outcomes import STORED, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.record import HEADER_BYTES_MAX, ChecksumKind, Codec, PageDescription, RecordHeader

_Result = TypeVar("_Result")

_MISSES = {
    Trouble.LATE: MissReason.DEADLINE,
    Trouble.UNAVAILABLE: MissReason.L3_UNAVAILABLE,
    Trouble.FULL: MissReason.L3_UNAVAILABLE,
    Trouble.TOO_LARGE: MissReason.L3_UNAVAILABLE,
    Trouble.OVERLOADED: MissReason.OVERLOADED,
    Trouble.CLOSED: MissReason.CLOSED,
}
_REFUSALS = {
    Trouble.LATE: RefuseReason.DEADLINE,
    Trouble.UNAVAILABLE: RefuseReason.UNREACHABLE,
    Trouble.FULL: RefuseReason.FULL,
    Trouble.TOO_LARGE: RefuseReason.TOO_LARGE,
    Trouble.OVERLOADED: RefuseReason.OVERLOADED,
    Trouble.FOREIGN: RefuseReason.UNREACHABLE,
    Trouble.CLOSED: RefuseReason.CLOSED,
}
_LAST = b"%d" % (HEADER_BYTES_MAX - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStoreSettings:
    """What a store is made with.

    `codec`: the lossless one, RAW or PLANES. `namespace_of`: what a namespace's pages are, None where it is not known any more.
    `error_limit`: a page that a lossy codec would take more of is stored lossless. `lossy` counts what they lose.
    """

    servers: RedisServers
    fleet: str
    terms: ShardTerms = field(default_factory=ShardTerms)
    codec: Codec = Codec.RAW
    namespace_of: Callable[[NamespaceId], Namespace | None] = lambda _: None
    error_limit: float = L3_ERROR_LIMIT_DEFAULT
    lossy: LossyTally = field(default_factory=LossyTally)


class RedisRecordStore:
    """RecordStore on one server, several that stand for each other, or a Cluster. Made and used in one running event loop.

    `path` moves the bytes and outlives the store; its owner closes it after `close`.
    """

    def __init__(self, settings: RecordStoreSettings, *, path: DataPath, clock: Clock) -> None:
        self._settings = settings
        self._path = path
        self._clock = clock
        self._keys = KeySpace(settings.fleet)
        self._router = Router(settings.servers, path=path, clock=clock, terms=settings.terms)
        self._questions = Questions(self._router, path=path, clock=clock)
        self._codecs = PageCodecs(settings.codec, error_limit=settings.error_limit)
        self._threads = ThreadPoolExecutor(L3_CODEC_THREADS_MAX, thread_name_prefix="stratakv-l3-codec")
        self._encoded = asyncio.Semaphore(L3_ENCODED_MAX)
        self._tally = Tally()
        self._running: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}
        self._discards: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # --- life ---

    async def start(self) -> None:
        """Begin to connect."""
        await self._router.start()

    async def close(self) -> None:
        """End what is under way and wait for that."""
        self._is_closed = True
        tasks = [*self._running.values(), *self._discards]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._router.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def statistics(self) -> Mapping[str, int]:
        """The tally's names; retried, redirected, breaker_opened; in_flight now; those of the data path after `path_`."""
        told = {
            **self._tally.read(),
            "retried": self._router.retried,
            "redirected": self._router.redirected,
            "breaker_opened": self._router.opened(),
            "in_flight": len(self._running),
        }
        with contextlib.suppress(ClosedError):
            told |= {f"path_{name}": count for name, count in self._path.statistics().items()}
        return told

    def describe(self) -> L3Picture:
        """Servers and what is wrong with them."""
        return L3Picture(
            kind=self._router.kind, servers=self._router.describe(), trouble=self._router.trouble
        )

    # --- records ---

    async def probe(
        self, names: Sequence[RecordName], *, deadline_ns: int
    ) -> list[RecordHeader | MissReason]:
        """Read headers, in one question to each server that has some."""
        results: list[RecordHeader | MissReason] = []
        if self._is_closed:
            results += [MissReason.CLOSED] * len(names)
        elif names:
            keys = [self._keys.key(name) for name in names]
            replies = await self._questions.ask(
                keys, lambda key: (b"GETRANGE", key, b"0", _LAST), deadline_ns=deadline_ns
            )
            for name, reply in zip(names, replies, strict=True):
                results.append(self._header(name, reply))
                if len(results) % L3_PROBE_RECORDS_MAX == 0:
                    await asyncio.sleep(0)
        self._tally.probed(results)
        return results

    def load(
        self, name: RecordName, place: memoryview, *, deadline_ns: int
    ) -> asyncio.Future[LoadedRecord | MissReason]:
        """Read one record into its place. Raises BufferMismatchError for a place that can't be written to in one piece."""
        if place.readonly or not place.c_contiguous or place.nbytes == 0:
            raise BufferMismatchError("a place is writable, in one piece, and of some bytes")

        def tell(result: LoadedRecord | MissReason) -> None:
            self._tally.loaded(result if isinstance(result, MissReason) else None, payload_bytes=place.nbytes)

        return self._begin(self._load(name, place.cast("B"), deadline_ns), tell, cancelled=MissReason.ABORTED)

    def cancel(self, load: asyncio.Future[LoadedRecord | MissReason]) -> None:
        """Let go of a load."""
        task = self._running.get(load)
        if task is not None:
            task.cancel()

    def store(
        self, page: PageDescription, payload: memoryview, *, ttl_s: int, deadline_ns: int
    ) -> asyncio.Future[PutOutcome]:
        """Write one record. Raises BufferMismatchError, InvalidArgumentError for a time to live of less than 1 s."""
        _check_ttl(ttl_s)
        if payload.nbytes != page.payload_bytes or not payload.c_contiguous:
            raise BufferMismatchError(
                f"a payload is in one piece of the {page.payload_bytes} bytes of its page; got {payload.nbytes}"
            )
        work = self._store(page, payload.cast("B"), ttl_s=ttl_s, deadline_ns=deadline_ns)
        return self._begin(work, self._tally.stored, cancelled=Refused(RefuseReason.CLOSED))

    async def refresh(self, ttl_s: Mapping[RecordName, int], *, deadline_ns: int) -> int:
        """Give records their time to live anew. Raises InvalidArgumentError."""
        for each in ttl_s.values():
            _check_ttl(each)
        seconds = {self._keys.key(name): b"%d" % each for name, each in ttl_s.items()}
        found = await self._count(list(seconds), lambda key: (b"EXPIRE", key, seconds[key]), deadline_ns)
        self._tally.count("refreshed", found)
        return found

    async def remove(self, names: Sequence[RecordName], *, deadline_ns: int) -> int:
        """Delete records."""
        keys = [self._keys.key(name) for name in names]
        found = await self._count(keys, lambda key: (b"UNLINK", key), deadline_ns)
        self._tally.count("removed", found)
        return found

    # --- how ---

    def _begin(
        self,
        work: Coroutine[Any, Any, _Result],
        tell: Callable[[_Result], None],
        *,
        cancelled: _Result,
    ) -> asyncio.Future[_Result]:
        """Run in a task, behind a future that is done only when the task is."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def give_up(_: int) -> None:
            task.cancel()

        future = Transfer(loop, give_up)

        def finish_up(task: asyncio.Task[_Result]) -> None:
            self._running.pop(future)
            if not task.cancelled() and task.exception() is not None:
                future.complete(task.exception())
                return
            result = cancelled if task.cancelled() else task.result()
            tell(result)
            future.complete(result)

        self._running[future] = task
        task.add_done_callback(finish_up)
        return future

    async def _load(self, name: RecordName, place: memoryview, deadline_ns: int) -> LoadedRecord | MissReason:
        if self._is_closed:
            return MissReason.CLOSED
        key = self._keys.key(name)
        try:
            got = await self._router.carry_out(
                key,
                lambda shard, asking: self._path.get(
                    shard, key, place, deadline_ns=deadline_ns, asking=asking
                ),
                deadline_ns=deadline_ns,
            )
        except TroubleError as error:
            return self._missed(name, error.trouble)
        if not isinstance(got, Got) or not got.header:  # no bytes at all are none in `probe` as well
            return MissReason.ABSENT
        try:
            header = check_arrival(got, name, page_bytes=place.nbytes)
            if needs_work(header):
                reason = await self._finish(header, got, place, deadline_ns)
                if reason is not MissReason.NONE:
                    return reason
        except CorruptRecordError as error:
            return self._unusable(name, error)
        return LoadedRecord(header)

    async def _finish(
        self, header: RecordHeader, got: Got, place: memoryview, deadline_ns: int
    ) -> MissReason:
        """Decode in a thread; not NONE: its turn came after the deadline, or nobody knows its namespace any more.

        Raises CorruptRecordError.
        """
        namespace = self._settings.namespace_of(header.page.namespace)
        if namespace is None and header.codec in LOSSY_CODECS.values():
            return MissReason.ABORTED

        def work() -> MissReason:
            if self._clock.now_ns() >= deadline_ns:
                return MissReason.DEADLINE
            finish(header, got, place, self._codecs, namespace)
            return MissReason.NONE

        return await _to_the_end(asyncio.get_running_loop().run_in_executor(self._threads, work))

    async def _store(
        self, page: PageDescription, payload: memoryview, *, ttl_s: int, deadline_ns: int
    ) -> PutOutcome:
        if self._is_closed:
            return Refused(RefuseReason.CLOSED)
        namespace = self._settings.namespace_of(page.namespace)
        is_lossy = namespace is not None and namespace.stored_as is not None
        try:
            if self._settings.codec is Codec.RAW and not is_lossy:
                packed = Packed(Codec.RAW, payload)
                return await self._send(page, packed, ttl_s=ttl_s, deadline_ns=deadline_ns)
            return await self._store_encoded(page, payload, namespace, ttl_s=ttl_s, deadline_ns=deadline_ns)
        except TroubleError as error:
            return Refused(_REFUSALS[error.trouble])

    async def _store_encoded(
        self,
        page: PageDescription,
        payload: memoryview,
        namespace: Namespace | None,
        *,
        ttl_s: int,
        deadline_ns: int,
    ) -> PutOutcome:
        """The same with a codec. Some records at a time: until they are sent they lie in memory twice."""
        try:
            async with asyncio.timeout(max(0.0, (deadline_ns - self._clock.now_ns()) / 1e9)):
                await self._encoded.acquire()
        except TimeoutError:
            raise TroubleError(Trouble.LATE) from None
        try:
            work = asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: self._codecs.encode(payload, namespace)
            )
            packed = await _to_the_end(work)
            outcome = await self._send(page, packed, ttl_s=ttl_s, deadline_ns=deadline_ns)
            if namespace is not None and namespace.stored_as is not None:
                self._settings.lossy.count(page.namespace, packed)
            return outcome
        finally:
            self._encoded.release()

    async def _send(
        self, page: PageDescription, packed: Packed, *, ttl_s: int, deadline_ns: int
    ) -> PutOutcome:
        data = packed.data
        header = RecordHeader(
            page=page,
            stored_bytes=data.nbytes,
            checksum_kind=ChecksumKind.XXH3_64,
            checksum=0,
            codec=packed.codec,
        )
        key, encoded = self._keys.key(RecordName(page.namespace, page.key)), header.encode()
        await self._router.carry_out(
            key,
            lambda shard, asking: self._path.set(
                shard, key, encoded, data, ttl_s=ttl_s, deadline_ns=deadline_ns, asking=asking
            ),
            deadline_ns=deadline_ns,
            writes_bytes=header.record_bytes,
        )
        self._tally.count("stored_bytes", data.nbytes)
        return STORED

    async def _count(self, keys: Sequence[bytes], command: Command, deadline_ns: int) -> int:
        """How many of the keys a command answers with 1."""
        if self._is_closed or not keys:
            return 0
        replies = await self._questions.ask(keys, command, deadline_ns=deadline_ns)
        return sum(reply == 1 for reply in replies if isinstance(reply, int))

    # --- what came of it ---

    def _header(self, name: RecordName, reply: object) -> RecordHeader | MissReason:
        if isinstance(reply, Trouble):
            return self._missed(name, reply)
        if reply in (None, b""):
            return MissReason.ABSENT
        try:
            if not isinstance(reply, bytes):
                raise CorruptRecordError("a number in place of a record")  # noqa: TRY301 - one way out
            return read_header(reply, name)
        except CorruptRecordError as error:
            return self._unusable(name, error)

    def _missed(self, name: RecordName, trouble: Trouble) -> MissReason:
        return self._is_corrupt(name) if trouble is Trouble.FOREIGN else _MISSES[trouble]

    def _unusable(self, name: RecordName, error: CorruptRecordError) -> MissReason:
        """What a newer version wrote is left to those that can read it, and ends by its time to live; damage is removed."""
        if not isinstance(error, UnreadableRecordError):
            return self._is_corrupt(name)
        self._tally.count("unreadable")
        return MissReason.UNREADABLE

    def _is_corrupt(self, name: RecordName) -> MissReason:
        """Count it, and remove it meanwhile; whoever finds it again before that counts it again."""
        self._tally.count("corrupt")
        if len(self._discards) < L3_DISCARDS_MAX and not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._discard(name))
            self._discards.add(task)
            task.add_done_callback(self._discards.discard)
        return MissReason.CORRUPT

    async def _discard(self, name: RecordName) -> None:
        await self.remove([name], deadline_ns=self._clock.now_ns() + int(L3_DISCARD_S * 1e9))


async def _to_the_end(work: asyncio.Future[_Result]) -> _Result:
    """Wait for what a thread does and nothing can stop; cancelled meanwhile: be it afterwards."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


def _check_ttl(ttl_s: int) -> None:
    if not 1 <= ttl_s <= TTL_S_MAX:
        raise InvalidArgumentError(f"a record lives 1 to {TTL_S_MAX} s; got {ttl_s}")
