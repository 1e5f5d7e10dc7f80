"""NativePath: the data path whose bytes one native thread moves, without the GIL and without a copy in between."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from typing_extensions import Buffer

from cache_l3._native import Engine
from cache_l3.commands import encode_get, encode_question, encode_set
from cache_l3.data_path import (
    ABSENT,
    Absent,
    Cancelled,
    Got,
    HeaderShape,
    Late,
    Lost,
    Malformed,
    Overloaded,
    Reply,
    ServerError,
    ServerRefused,
    TooLarge,
    TransferError,
)
from cache_l3.transfers import Transfer
from kv_types.errors import BufferMismatchError, ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.limits import (
    L3_CONNECTIONS_MAX,
    L3_LINE_BYTES_MAX,
    L3_PASSED_OVER_MAX,
    L3_REPLY_BYTES_MAX,
    L3_REQUESTS_MAX,
    L3_WINDOW_BYTES,
    L3_WINDOW_DEFAULT,
    L3_WINDOW_MAX,
)


class _Status(IntEnum):
    """How things end, by the native engine's numbers."""

    DONE = 0
    ABSENT = 1
    LATE = 2
    LOST = 3
    REFUSED = 4
    MALFORMED = 5
    TOO_LARGE = 6
    CANCELLED = 7


_FAILURES: Mapping[int, type[TransferError]] = {
    _Status.LATE: Late,
    _Status.LOST: Lost,
    _Status.MALFORMED: Malformed,
    _Status.TOO_LARGE: TooLarge,
    _Status.CANCELLED: Cancelled,
}


class NativePath:
    """DataPath over plain sockets, TCP or Unix. Made and used in one running event loop.

    `window`: requests on one connection at a time. Raises LimitExceededError, and OSError when the kernel gives no
    descriptor or thread.
    """

    def __init__(self, shape: HeaderShape, *, window: int = L3_WINDOW_DEFAULT) -> None:
        if not 1 <= window <= L3_WINDOW_MAX:
            raise LimitExceededError(f"a window has 1 to {L3_WINDOW_MAX} requests; got {window}")
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._shape = shape
        self._engine = Engine(
            size_at=shape.size_at, checksum_at=shape.checksum_at, header_bytes_min=shape.bytes_min,
            header_bytes_max=shape.bytes_max, window=window, window_bytes=L3_WINDOW_BYTES,
            passed_over_max=L3_PASSED_OVER_MAX, line_bytes_max=L3_LINE_BYTES_MAX, reply_bytes_max=L3_REPLY_BYTES_MAX,
        )  # fmt: skip
        self._transfers: dict[int, tuple[Transfer, Callable[[Any], object]]] = {}
        self._shards: set[int] = set()
        self._connections: dict[int, tuple[int, Callable[[str], None]]] = {}
        self._overloaded = 0
        self._will_flush = False
        self._is_closed = False
        self._loop.add_reader(self._engine.fileno(), self._complete)

    def open_shard(self) -> int:
        """Begin a set of connections that share a queue."""
        self._check_open()
        shard = self._engine.open_shard()
        self._shards.add(shard)
        return shard

    def close_shard(self, shard: int) -> None:
        """End its connections and requests, soon."""
        self._check_open()
        self._shards.discard(shard)
        for number in [number for number, (of, _) in self._connections.items() if of == shard]:
            del self._connections[number]
        self._engine.close_shard(shard)

    def add_connection(
        self, shard: int, connection: socket.socket, *, on_lost: Callable[[str], None]
    ) -> None:
        """Take over a plain stream socket. Raises LimitExceededError, and InvalidArgumentError for one that is TLS or closed."""
        self._check_open()
        if len(self._connections) >= L3_CONNECTIONS_MAX:
            raise LimitExceededError(f"one data path has at most {L3_CONNECTIONS_MAX} connections")
        if type(connection) is not socket.socket or connection.fileno() < 0:
            raise InvalidArgumentError(f"a connected plain socket is needed; got {connection!r}")
        if shard not in self._shards:
            connection.close()
            return
        connection.setblocking(False)
        number = self._engine.add_connection(shard, connection.detach())
        self._connections[number] = (shard, on_lost)

    def get(
        self, shard: int, key: bytes, place: memoryview, *, deadline_ns: int, asking: bool = False
    ) -> asyncio.Future[Got | Absent]:
        """GET a record. Raises InvalidArgumentError, BufferMismatchError."""
        request = encode_get(key, asking=asking)
        return self._submit(
            _got, lambda: self._engine.get(shard, request, place, asking=asking, deadline_ns=deadline_ns)
        )

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
        value_bytes = len(header) + memoryview(payload).nbytes
        before, after = encode_set(key, value_bytes=value_bytes, ttl_s=ttl_s, asking=asking)
        return self._submit(
            _nothing,
            lambda: self._engine.set(
                shard, before, header, payload, after, asking=asking, deadline_ns=deadline_ns
            ),
        )

    def ask(
        self, shard: int, commands: Sequence[Sequence[bytes]], *, deadline_ns: int, asking: bool = False
    ) -> asyncio.Future[list[Reply]]:
        """Ask small questions. Raises InvalidArgumentError, LimitExceededError."""
        request = encode_question(commands, asking=asking)
        replies = len(commands) * (2 if asking else 1)
        return self._submit(
            _replies_asking if asking else _replies,
            lambda: self._engine.ask(shard, request, replies, deadline_ns=deadline_ns),
        )

    def cancel(self, future: asyncio.Future[Any]) -> None:
        """End a request soon. Raises InvalidArgumentError for a future of something else."""
        self._check_open()
        if not isinstance(future, Transfer):
            raise InvalidArgumentError(f"a future that this data path gave is needed; got {future!r}")
        if not future.done() and future.number in self._transfers:
            self._engine.cancel(future.number)

    def close(self) -> None:
        """End everything; all futures are done then."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self._loop.remove_reader(self._engine.fileno())
        self._connections.clear()
        self._engine.close()
        self._complete()

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges."""
        self._check_open()
        return {**self._engine.statistics(), "overloaded": self._overloaded}

    def _submit(self, make_value: Callable[[Any], object], submit: Callable[[], int]) -> asyncio.Future[Any]:
        self._check_open()
        transfer = Transfer(self._loop, self._engine.cancel)
        if len(self._transfers) >= L3_REQUESTS_MAX:
            self._overloaded += 1
            transfer.complete(Overloaded(f"{L3_REQUESTS_MAX} requests are under way", was_sent=False))
            return transfer
        try:
            transfer.number = submit()
        except ValueError as error:
            raise BufferMismatchError(str(error)) from error
        self._transfers[transfer.number] = (transfer, make_value)
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)
        return transfer

    def _flush(self) -> None:
        """What was submitted in one turn of the loop wakes the engine's thread once."""
        self._will_flush = False
        if not self._is_closed:
            self._engine.flush()

    def _complete(self) -> None:
        """In the loop, when the engine has something: the futures of what has ended, and connections that are gone."""
        lost = []
        for number, status, was_sent, value in self._engine.drain():
            if number < 0:
                found = self._connections.pop(~number, None)
                lost += [(found[1], value)] if found is not None else []
                continue
            transfer, make_value = self._transfers.pop(number)
            transfer.complete(_outcome(status, was_sent, value, make_value))
        for on_lost, why in lost:
            on_lost(why)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this data path is closed")
        if os.getpid() != self._process:
            raise ClosedError("this data path belongs to the process that this one was forked from")


def _outcome(status: int, was_sent: bool, value: Any, make_value: Callable[[Any], object]) -> object:
    if status == _Status.DONE:
        return make_value(value)
    if status == _Status.ABSENT:
        return ABSENT
    if status == _Status.REFUSED:
        return ServerRefused(value)
    return _FAILURES[status](value, was_sent=was_sent)


def _got(value: tuple[bytes, int, bool, Buffer | None, int]) -> Got:
    return Got(*value)


def _nothing(value: None) -> None:
    return value


def _replies(values: list[Any]) -> list[Reply]:
    return [ServerError(value[0]) if isinstance(value, tuple) else value for value in values]


def _replies_asking(values: list[Any]) -> list[Reply]:
    return _replies(values[1::2])
