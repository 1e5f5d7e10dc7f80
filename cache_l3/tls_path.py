"""TlsPath: the data path over sockets that only Python can read, a thread a connection and one request at a time on each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from cache_l3._native import Alarm, xxh3_64
from cache_l3.blocking_connection import BlockingConnection, Job, Verb
from cache_l3.blocking_replies import ReplyStream, read_record, read_reply, read_stored
from cache_l3.blocking_shard import BlockingShard, OnLost
from cache_l3.commands import encode_get, encode_question, encode_set
from cache_l3.data_path import Absent, Cancelled, Got, HeaderShape, Late, Overloaded, Reply, TransferError
from cache_l3.transfers import Transfer
from kv_types.errors import BufferMismatchError, ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.limits import L3_CONNECTIONS_MAX, L3_REQUESTS_MAX

_CRC_BYTES = 4
_SUBMITTED = {Verb.GET: "gets", Verb.ASK: "asks", Verb.SET: "sets"}
_COUNTED_BY_CODE = {
    "deadline": "late", "lost": "lost", "server_refused": "refused", "malformed": "malformed",
    "too_large": "too_large", "cancelled": "cancelled", "overloaded": "overloaded",
}  # fmt: skip


class TlsPath:
    """DataPath over sockets with a thread each. Made and used in one running event loop, which keeps the deadlines: it shuts
    the connection of a request that nobody waits for any more. Raises OSError when the kernel gives no descriptor."""

    def __init__(self, shape: HeaderShape) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._shape = shape
        self._shards: dict[int, BlockingShard] = {}
        self._under_way: dict[int, tuple[Transfer, Job, BlockingShard]] = {}
        self._numbers: dict[Job, int] = {}
        self._last_number = 0
        self._threads: set[BlockingConnection] = set()
        self._told: deque[Callable[[], None]] = deque()
        self._counts: Counter[str] = Counter()
        self._is_closed = False
        self._alarm = Alarm()
        self._armed_ns: int | None = None
        self._loop.add_reader(self._alarm.fileno(), self._expire)

    def open_shard(self) -> int:
        """Begin a set of connections that share a queue."""
        self._check_open()
        self._last_number += 1
        self._shards[self._last_number] = BlockingShard(
            on_done=lambda job, outcome: self._tell(lambda: self._ended(job, outcome)),
            on_gone=lambda connection, on_lost, why: self._tell(lambda: self._gone(connection, on_lost, why)),
        )
        return self._last_number

    def close_shard(self, shard: int) -> None:
        """End its connections and requests, soon."""
        self._check_open()
        closed = self._shards.pop(shard, None)
        if closed is not None:
            closed.close()

    def add_connection(self, shard: int, connection: socket.socket, *, on_lost: OnLost) -> None:
        """Take over a stream socket, TLS or not, which the caller must not use again. Raises LimitExceededError."""
        self._check_open()
        if len(self._threads) >= L3_CONNECTIONS_MAX:
            raise LimitExceededError(f"one data path has at most {L3_CONNECTIONS_MAX} connections")
        if connection.fileno() < 0:
            raise InvalidArgumentError("a connected socket is needed; this one is closed")
        if shard not in self._shards:
            connection.close()
            return
        connection.setblocking(True)
        self._threads.add(self._shards[shard].add(connection, on_lost))

    def get(
        self, shard: int, key: bytes, place: memoryview, *, deadline_ns: int, asking: bool = False
    ) -> asyncio.Future[Got | Absent]:
        """GET a record. Raises InvalidArgumentError, BufferMismatchError."""
        view = _bytes_of(place)
        if view.readonly or not len(view):
            raise BufferMismatchError("a place is writable and has one byte at least")
        request = encode_get(key, asking=asking)

        def read(stream: ReplyStream) -> Got | Absent:
            return read_record(stream, view, self._shape)

        return self._submit(shard, Job(Verb.GET, deadline_ns, lambda: [request], read, asking))

    def set(
        self,
        shard: int,
        key: bytes,
        header: bytes,
        payload: Buffer,
        *,
        ttl_s: int,
        deadline_ns: int,
        asking: bool = False,
    ) -> asyncio.Future[None]:
        """SET a record. Raises InvalidArgumentError, BufferMismatchError."""
        view = _bytes_of(payload)
        if not self._shape.bytes_min <= len(header) <= self._shape.bytes_max:
            raise BufferMismatchError(
                f"a header has {self._shape.bytes_min} to {self._shape.bytes_max} bytes; got {len(header)}"
            )
        before, after = encode_set(key, value_bytes=len(header) + len(view), ttl_s=ttl_s, asking=asking)

        def parts() -> Iterator[Buffer]:
            yield before + _sealed(header, view, self._shape)
            yield view
            yield after

        return self._submit(shard, Job(Verb.SET, deadline_ns, parts, read_stored, asking))

    def ask(
        self, shard: int, commands: Sequence[Sequence[bytes]], *, deadline_ns: int, asking: bool = False
    ) -> asyncio.Future[list[Reply]]:
        """Ask small questions. Raises InvalidArgumentError, LimitExceededError."""
        request = encode_question(commands, asking=asking)
        each, count = (2 if asking else 1), len(commands)

        def read(stream: ReplyStream) -> list[Reply]:
            return [read_reply(stream) for _ in range(each * count)][each - 1 :: each]

        return self._submit(shard, Job(Verb.ASK, deadline_ns, lambda: [request], read, asking=False))

    def cancel(self, future: asyncio.Future[Any]) -> None:
        """End a request soon. Raises InvalidArgumentError for a future of something else."""
        self._check_open()
        if not isinstance(future, Transfer):
            raise InvalidArgumentError(f"a future that this data path gave is needed; got {future!r}")
        self._cancel(future.number)

    def close(self) -> None:
        """End everything; all futures are done then."""
        if self._is_closed or os.getpid() != self._process:
            return
        for shard in list(self._shards):
            self.close_shard(shard)
        self._is_closed = True
        for thread in self._threads.copy():
            thread.join()
        self._loop.remove_reader(self._alarm.fileno())
        self._hear()

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges."""
        self._check_open()
        queued = sum(shard.queued for shard in self._shards.values())
        names = (*_SUBMITTED.values(), *_COUNTED_BY_CODE.values(), "connections_lost")
        return {name: self._counts[name] for name in names} | {
            "bytes_in": self._counts["bytes_in"] + sum(each.bytes_in for each in self._threads),
            "bytes_out": self._counts["bytes_out"] + sum(each.bytes_out for each in self._threads),
            "connections": len(self._threads), "queued": queued, "in_flight": len(self._under_way) - queued,
        }  # fmt: skip

    def _submit(self, shard: int, job: Job) -> asyncio.Future[Any]:
        self._check_open()
        self._counts[_SUBMITTED[job.verb]] += 1
        self._last_number += 1
        transfer = Transfer(self._loop, self._cancel)
        transfer.number = self._last_number
        if len(self._under_way) >= L3_REQUESTS_MAX:
            self._finish(transfer, Overloaded(f"{L3_REQUESTS_MAX} requests are under way", was_sent=False))
        elif job.deadline_ns <= _now_ns():
            self._finish(transfer, Late("the deadline had passed", was_sent=False))
        elif (to := self._shards.get(shard)) is None:
            self._finish(transfer, Cancelled("the shard is closed", was_sent=False))
        else:
            self._under_way[transfer.number] = (transfer, job, to)
            self._numbers[job] = transfer.number
            self._arm(job.deadline_ns)
            to.submit(job)
        return transfer

    def _finish(self, transfer: Transfer, outcome: object) -> None:
        if isinstance(outcome, TransferError):
            self._counts[_COUNTED_BY_CODE[outcome.code]] += 1
        transfer.complete(outcome)

    def _cancel(self, number: int) -> None:
        found = self._under_way.get(number)
        if found is not None:
            found[2].end(found[1], Cancelled)

    def _arm(self, deadline_ns: int) -> None:
        """Only ever earlier: an alarm that comes too early costs one look."""
        if self._armed_ns is None or deadline_ns < self._armed_ns:
            self._armed_ns = deadline_ns
            self._alarm.set(deadline_ns)

    def _expire(self) -> None:
        self._alarm.set(2**63)
        self._armed_ns = None
        now_ns = _now_ns()
        for _, job, shard in list(self._under_way.values()):
            if job.deadline_ns <= now_ns:
                shard.end(job, Late)
            else:
                self._arm(job.deadline_ns)

    def _tell(self, news: Callable[[], None]) -> None:
        """From any thread: have the loop do this."""
        self._told.append(news)
        with contextlib.suppress(RuntimeError):  # the loop is closed: close() hears it, or nobody is left to
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        while self._told:
            self._told.popleft()()

    def _ended(self, job: Job, outcome: object) -> None:
        transfer, _, _ = self._under_way.pop(self._numbers.pop(job))
        self._finish(transfer, outcome)

    def _gone(self, connection: BlockingConnection, on_lost: OnLost | None, why: str) -> None:
        self._threads.discard(connection)
        self._counts["connections_lost"] += 1
        self._counts["bytes_in"] += connection.bytes_in
        self._counts["bytes_out"] += connection.bytes_out
        if on_lost is not None:
            on_lost(why)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this data path is closed")
        if os.getpid() != self._process:
            raise ClosedError("this data path belongs to the process that this one was forked from")


def _sealed(header: bytes, payload: memoryview, shape: HeaderShape) -> bytes:
    sealed = bytearray(header)
    struct.pack_into("<Q", sealed, shape.checksum_at, xxh3_64(payload))
    struct.pack_into("<I", sealed, len(sealed) - _CRC_BYTES, zlib.crc32(sealed[:-_CRC_BYTES]))
    return bytes(sealed)


def _bytes_of(data: Buffer) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise BufferMismatchError(f"contiguous memory is needed: {error}") from error


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
