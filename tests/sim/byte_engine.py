"""A model of the native engine that moves bytes between sockets and memory; stands for cache_l3._native.Engine.

It has a thread of its own in the real process, which sees deadlines and replies whatever the event loop does meanwhile. A page
arrives in two halves, between which anything may happen; one that is sent leaves in two halves as well.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import xxhash

from tests.sim.clockwork import MS, US, Clockwork, Process
from tests.sim.page_sockets import PageSocket, commands_of
from tests.support.lua_redis import ErrorReply

DONE, ABSENT, LATE, LOST, REFUSED, MALFORMED, TOO_LARGE, CANCELLED = range(8)
_NOTICES_NS = 1 * MS
"""How long the thread takes, at most, to see that a time has come."""


@dataclass(eq=False, slots=True)
class Request:
    """One that was submitted. `place`: where a GET's page goes; `payload`: what a SET reads, the second half late."""

    number: int
    kind: int
    """GETs go first, then questions, then SETs."""
    shard: int
    deadline_ns: int
    commands: tuple[tuple[bytes, ...], ...] = ()
    place: Any = None
    payload: Any = None
    parts: tuple[bytes, bytes, bytes] = (b"", b"", b"")
    replies: list[Any] = field(default_factory=list)
    replies_wanted: int = 1
    connection: Connection | None = None
    is_done: bool = False


@dataclass(eq=False, slots=True)
class Connection:
    """A socket that the engine owns: what was sent on it and not answered, and what has come on it and was not taken yet."""

    number: int
    shard: int
    socket: PageSocket
    in_flight: deque[Request] = field(default_factory=deque)
    to_send: deque[Request] = field(default_factory=deque)
    arrived: deque[Any] = field(default_factory=deque)
    is_taking: bool = False
    is_open: bool = True


class ModelEngine:
    """The same methods."""

    def __init__(
        self, clockwork: Clockwork, process: Process, *, size_at: int, checksum_at: int,
        header_bytes_min: int, header_bytes_max: int, window: int, window_bytes: int, line_bytes_max: int, reply_bytes_max: int,
        passed_over_max: int,
    ) -> None:  # fmt: skip
        del window_bytes, line_bytes_max, reply_bytes_max  # no simulated page comes near to them
        self._clockwork = clockwork
        self._process = process
        self._size_at, self._checksum_at = size_at, checksum_at
        self._header_min, self._header_max = header_bytes_min, header_bytes_max
        self._window = window
        self._passed_over_max = passed_over_max
        self._passed_over = 0
        loop: Any = asyncio.get_running_loop()
        self._loop = loop
        self._descriptor: int = loop.new_descriptor()
        self._numbers = 0
        self._shards: dict[int, list[Connection]] = {}
        self._queues: dict[int, list[Request]] = {}
        self._requests: dict[int, Request] = {}
        self._ended: list[tuple[int, int, bool, Any]] = []
        self._counts: Counter[str] = Counter()
        self._is_closed = False

    # --- what product code calls, in the loop ---

    def fileno(self) -> int:
        return self._descriptor

    def open_shard(self) -> int:
        number = self._number()
        self._shards[number], self._queues[number] = [], []
        return number

    def close_shard(self, shard: int) -> None:
        connections, queue = self._shards.pop(shard, []), self._queues.pop(shard, [])
        for connection in list(connections):
            self._close(connection, "closed", CANCELLED)
        for request in queue:
            self._end(request, CANCELLED, "the shard was closed")

    def add_connection(self, shard: int, descriptor: int) -> int:
        connection = Connection(self._number(), shard, PageSocket.descriptors.pop(descriptor))
        if shard not in self._shards:
            connection.socket.close()
            return connection.number
        self._shards[shard].append(connection)
        connection.socket.taken_over(
            lambda replies: self._arrive(connection, replies), lambda why: self._broke(connection, why)
        )
        self._clockwork.after(0, lambda: self._send_next(shard), self._process)
        return connection.number

    def get(self, shard: int, request: bytes, place: Any, *, asking: bool, deadline_ns: int) -> int:
        commands = commands_of(request)
        where = memoryview(place).cast("B")
        return self._submit(
            Request(
                self._number(), 0, shard, deadline_ns, commands, place=where, replies_wanted=len(commands)
            )
        )

    def set(
        self, shard: int, before: bytes, header: bytes, payload: Any, after: bytes, *, asking: bool,
        deadline_ns: int,
    ) -> int:  # fmt: skip
        return self._submit(
            Request(
                self._number(), 2, shard, deadline_ns, payload=memoryview(payload).cast("B"),
                parts=(before, header, after), replies_wanted=2 if asking else 1,
            )
        )  # fmt: skip

    def ask(self, shard: int, request: bytes, replies: int, *, deadline_ns: int) -> int:
        return self._submit(
            Request(self._number(), 1, shard, deadline_ns, commands_of(request), replies_wanted=replies)
        )

    def flush(self) -> None:
        self._clockwork.after(int(self._clockwork.random.random() * 20 * US), self._wake, self._process)

    def cancel(self, request: int) -> None:
        self._clockwork.after(self._soon_ns(), lambda: self._give_up(request), self._process)

    def drain(self) -> list[tuple[int, int, bool, Any]]:
        ended, self._ended = self._ended, []
        return ended

    def statistics(self) -> dict[str, int]:
        return {
            **{name: self._counts[name] for name in _COUNTED},
            "connections": sum(map(len, self._shards.values())),
            "queued": sum(map(len, self._queues.values())),
            "in_flight": sum(len(one.in_flight) for of in self._shards.values() for one in of),
        }

    def close(self) -> None:
        self._is_closed = True
        for shard in list(self._shards):
            self.close_shard(shard)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _submit(self, request: Request) -> int:
        self._counts[("gets", "asks", "sets")[request.kind]] += 1
        self._requests[request.number] = request
        queue = self._queues.get(request.shard)
        if queue is None:
            self._end(request, CANCELLED, "the shard was closed")
            return request.number
        queue.append(request)
        self._arm(request)
        return request.number

    # --- the thread ---

    def _wake(self) -> None:
        for shard in self._queues:
            self._send_next(shard)

    def _soon_ns(self) -> int:
        return int(self._clockwork.random.random() * _NOTICES_NS)

    def _arm(self, request: Request) -> None:
        node = self._process.node
        delay_ns = node.true_delay_ns(request.deadline_ns - node.now_ns()) + self._soon_ns()
        self._clockwork.after(delay_ns, lambda: self._time_came(request), self._process)

    def _time_came(self, request: Request) -> None:
        if request.is_done:
            return
        if self._process.node.now_ns() < request.deadline_ns:  # the clock stood still meanwhile
            self._arm(request)
            return
        self._counts["late"] += 1
        self._stop(request, LATE, "its deadline passed")

    def _give_up(self, number: int) -> None:
        request = self._requests.get(number)
        if request is not None:
            self._counts["cancelled"] += 1
            self._stop(request, CANCELLED, "given up")

    def _stop(self, request: Request, status: int, why: str) -> None:
        """It ends before its reply, which could come at any time: its connection ends with it."""
        connection = request.connection
        self._end(request, status, why)
        if connection is not None:
            self._close(connection, f"a request of its window was not answered in time: {why}", LOST)

    def _send_next(self, shard: int) -> None:
        queue = self._queues.get(shard)
        now_ns = self._process.node.now_ns()
        for request in [one for one in queue or () if one.deadline_ns <= now_ns]:
            self._time_came(request)  # the thread sends nothing whose time is over
        while queue:
            open_ = [one for one in self._shards[shard] if len(one.in_flight) < self._window]
            if not open_:
                return
            connection = min(open_, key=lambda one: len(one.in_flight))
            request = self._first(queue)
            request.connection = connection
            connection.in_flight.append(request)
            connection.to_send.append(request)
            if len(connection.to_send) == 1:
                self._write(connection)

    def _first(self, queue: list[Request]) -> Request:
        """The most urgent; who was passed over for long enough has its turn."""
        oldest = min(queue, key=lambda one: one.number)
        urgent = min(queue, key=lambda one: (one.kind, one.number))
        is_turn = self._passed_over >= self._passed_over_max
        chosen = oldest if is_turn else urgent
        self._passed_over = self._passed_over + 1 if chosen.kind < oldest.kind else 0
        queue.remove(chosen)
        return chosen

    def _write(self, connection: Connection) -> None:
        """Send what is first, in two pieces where it is long and the socket takes no more at once."""
        while connection.is_open and connection.to_send:
            request = connection.to_send[0]
            if request.kind < 2:
                connection.socket.send(request.commands)
                connection.to_send.popleft()
                continue
            header, half = self._head(request)
            if self._clockwork.random.random() < 0.2:
                rest = partial(self._write_rest, connection, request, header, half)
                self._clockwork.after(int(self._clockwork.random.random() * 2 * MS), rest, self._process)
                return
            self._write_set(connection, request, header, half)

    def _write_rest(self, connection: Connection, request: Request, header: bytes, half: bytes) -> None:
        if connection.is_open:
            self._write_set(connection, request, header, half)
            self._write(connection)

    def _write_set(self, connection: Connection, request: Request, header: bytes, half: bytes) -> None:
        before, _, after = request.parts
        value = header + half + bytes(request.payload[len(half) :])
        connection.socket.send(commands_of(before + value + after))
        connection.to_send.popleft()

    def _head(self, request: Request) -> tuple[bytes, bytes]:
        """A record's header as it goes out, and the first half of its payload."""
        header = bytearray(request.parts[1])
        checksum = xxhash.xxh3_64_intdigest(request.payload)
        header[self._checksum_at : self._checksum_at + 8] = checksum.to_bytes(8, "little")
        header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
        return bytes(header), bytes(request.payload[: len(request.payload) // 2])

    # --- what comes ---

    def _arrive(self, connection: Connection, replies: list[Any]) -> None:
        if connection.is_open:
            connection.arrived += replies
            if not connection.is_taking:
                self._take(connection)

    def _take(self, connection: Connection) -> None:
        while connection.is_open and connection.arrived and connection.in_flight:
            request, reply = connection.in_flight[0], connection.arrived[0]
            is_page = (
                request.kind == 0
                and isinstance(reply, bytes)
                and len(request.replies) + 1 == request.replies_wanted
            )
            if is_page and self._clockwork.random.random() < 0.3:
                connection.is_taking = True
                self._clockwork.after(
                    int(self._clockwork.random.random() * 2 * MS), self._halfway(connection, request, reply), self._process
                )  # fmt: skip
                return
            self._taken(connection, request, reply)

    def _halfway(self, connection: Connection, request: Request, reply: bytes) -> Callable[[], None]:
        """Half of a page is there; the rest comes in a while, or never."""
        _, stored = self._split(reply)
        if len(stored) == len(request.place):
            half = len(stored) // 2
            request.place[:half] = stored[:half]

        def go_on() -> None:
            connection.is_taking = False
            if connection.is_open:
                self._taken(connection, request, reply)
                self._take(connection)

        return go_on

    def _taken(self, connection: Connection, request: Request, reply: Any) -> None:
        connection.arrived.popleft()
        request.replies.append(reply)
        if len(request.replies) < request.replies_wanted:
            return
        connection.in_flight.popleft()
        if request.kind == 1:
            self._end(
                request,
                DONE,
                [(str(one),) if isinstance(one, ErrorReply) else one for one in request.replies],
            )
        elif isinstance(reply, ErrorReply):
            self._counts["refused"] += 1
            self._end(request, REFUSED, str(reply))
        elif request.kind == 2:
            self._end(request, DONE, None)
        elif reply is None:
            self._end(request, ABSENT, None)
        else:
            self._got(connection, request, reply)
        self._send_next(connection.shard)

    def _got(self, connection: Connection, request: Request, reply: bytes) -> None:
        if not isinstance(reply, bytes) or len(reply) > self._header_max + 2 * len(request.place):
            status = TOO_LARGE if isinstance(reply, bytes) else MALFORMED
            self._end(request, status, "no record's size")
            self._close(connection, "a reply that can't be read", LOST)
            return
        header, stored = self._split(reply)
        fits = len(stored) == len(request.place)
        if fits:
            request.place[:] = stored
        apart = stored if 0 < len(stored) < len(request.place) else None
        checksum = xxhash.xxh3_64_intdigest(stored) if fits or apart is not None else 0
        self._counts["bytes_in"] += len(reply)
        self._end(request, DONE, (header, len(stored), fits, apart, checksum))

    def _split(self, record: bytes) -> tuple[bytes, bytes]:
        said = int.from_bytes(record[self._size_at : self._size_at + 4], "little")
        is_possible = self._header_min <= said <= self._header_max and len(record) >= said
        size = said if is_possible else min(len(record), self._header_max)
        return record[:size], record[size:]

    def _broke(self, connection: Connection, why: str) -> None:
        if connection.is_open:
            self._close(connection, why, LOST)

    def _close(self, connection: Connection, why: str, status: int) -> None:
        if not connection.is_open:
            return
        connection.is_open = False
        connection.socket.close()
        of = self._shards.get(connection.shard)
        if of is not None:
            of.remove(connection)
            self._counts["connections_lost"] += 1
            self._ended.append((~connection.number, LOST, False, why))
        for request in connection.in_flight:
            self._end(request, status, why)
        connection.in_flight.clear()
        self._tell()

    def _end(self, request: Request, status: int, value: Any) -> None:
        if request.is_done:
            return
        request.is_done = True
        del self._requests[request.number]
        queue = self._queues.get(request.shard)
        if queue is not None and request in queue:
            queue.remove(request)
        self._counts["lost"] += status == LOST
        sent = request.connection is not None
        request.place = request.payload = None
        self._ended.append((request.number, status, sent, value))
        self._tell()

    def _tell(self) -> None:
        if not self._is_closed:
            self._loop.became_readable(self._descriptor)


_COUNTED = (
    "gets", "sets", "asks", "bytes_in", "bytes_out", "late", "lost", "refused", "malformed", "too_large", "cancelled",
    "connections_lost",
)  # fmt: skip
