"""A relay before a server, over TCP or Unix sockets, that delays, throttles, stalls, cuts and damages what passes."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

Target: TypeAlias = tuple[str, int] | Path

_CHUNK_BYTES = 1 << 16
_UNDER_WAY_BYTES_MAX = 8 << 20
"""What one direction keeps at most while it delays."""
_SLICE_S = 0.005
"""A throttled direction passes on what it may in so long a time at once."""
_BACKLOG = 1024

_Answer = TypeVar("_Answer")


class Direction(enum.Enum):
    """Whom the bytes go to."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT


@dataclass(frozen=True, slots=True)
class Rules:
    """What happens to the bytes of one direction of a connection. Offsets count from the connection's beginning.

    `hold_after` and `cut_after`: so many bytes pass at most; then nothing does until that changes, or the connection ends.
    `flip_at`: the byte whose lowest bit is turned over. `delay_s` counts from a byte's arrival at the relay.
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    hold_after: int | None = None
    cut_after: int | None = None
    flip_at: int | None = None


@dataclass(slots=True)
class _Way:
    """One direction of one connection; touched in the relay's thread only."""

    rules: Rules
    source: socket.socket
    sink: socket.socket
    passed: int = 0
    arrived: int = 0
    free_at_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    chunks: asyncio.Queue[tuple[float, bytes]] = field(default_factory=asyncio.Queue)

    def set(self, rules: Rules) -> None:
        self.rules = rules
        self.changed.set()

    async def read(self) -> None:
        """Take in what comes, as long as not too much is under way."""
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self.source, _CHUNK_BYTES):
            self.arrived += len(data)
            self.chunks.put_nowait((loop.time(), data))
            while self.arrived - self.passed > _UNDER_WAY_BYTES_MAX:
                await self._until(None)
        self.chunks.put_nowait((loop.time(), b""))

    async def write(self) -> None:
        """Pass on what may pass; returns at the source's end. Raises ConnectionAbortedError where it is to be cut."""
        loop = asyncio.get_running_loop()
        while True:
            arrived_s, data = await self.chunks.get()
            if not data:
                with contextlib.suppress(OSError):
                    self.sink.shutdown(socket.SHUT_WR)
                return
            at = 0
            while at < len(data):
                piece = bytearray(data[at : at + await self._room(arrived_s)])
                flip_at = self.rules.flip_at
                if flip_at is not None and self.passed <= flip_at < self.passed + len(piece):
                    piece[flip_at - self.passed] ^= 1
                await loop.sock_sendall(self.sink, piece)
                at += len(piece)
                self.passed += len(piece)
                self.changed.set()

    async def _room(self, arrived_s: float) -> int:
        """Wait until bytes that came then may pass; returns how many, at least 1."""
        loop = asyncio.get_running_loop()
        while True:
            rules, now_s = self.rules, loop.time()
            room = _CHUNK_BYTES
            if rules.cut_after is not None:
                room = min(room, rules.cut_after - self.passed)
                if room <= 0:
                    raise ConnectionAbortedError
            if rules.hold_after is not None:
                room = min(room, rules.hold_after - self.passed)
            if room <= 0:
                await self._until(None)
            elif now_s < arrived_s + rules.delay_s:
                await self._until(arrived_s + rules.delay_s)
            elif rules.bytes_per_s is None:
                return room
            elif now_s < self.free_at_s:
                await self._until(self.free_at_s)
            else:
                room = min(room, max(1, int(rules.bytes_per_s * _SLICE_S)))
                self.free_at_s = max(self.free_at_s, now_s - _SLICE_S) + room / rules.bytes_per_s
                return room

    async def _until(self, time_s: float | None) -> None:
        """Wait until that time of the loop, or until something has changed."""
        self.changed.clear()
        timeout_s = None if time_s is None else max(0.0, time_s - asyncio.get_running_loop().time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), timeout_s)


class Relayed:
    """One connection through the relay."""

    def __init__(self, relay: FaultRelay, ways: dict[Direction, _Way]) -> None:
        self._relay = relay
        self._ways = ways

    def set(self, direction: Direction, **rules: Any) -> None:
        """Change some of the rules of one direction."""
        way = self._ways[direction]
        self._relay.call(lambda: way.set(replace(way.rules, **rules)))

    def passed(self, direction: Direction) -> int:
        """Bytes passed on."""
        return self._ways[direction].passed

    def arrived(self, direction: Direction) -> int:
        """Bytes that the relay got, passed on or not."""
        return self._ways[direction].arrived

    def cut(self) -> None:
        """End it at once, both ways; bytes under way are lost."""
        self._relay.call(self._cut)

    def _cut(self) -> None:
        for way in self._ways.values():
            way.set(replace(way.rules, cut_after=0))
            with contextlib.suppress(OSError):
                way.source.shutdown(socket.SHUT_RDWR)


class FaultRelay:
    """Listens on a port of 127.0.0.1, or on `path`, and hands every connection on to `target`. A context manager.

    Rules are those of new connections; `set` changes them, and those of the living ones. All its verbs may be called from
    any thread.
    """

    def __init__(self, target: Target, *, path: Path | None = None) -> None:
        self._target = target
        self._rules = {direction: Rules() for direction in Direction}
        self._connections: dict[Relayed, asyncio.Task[None]] = {}
        self._refuses = False
        self.accepted = 0
        """Connections that it took in all."""
        self._listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
        self._listener.bind(("127.0.0.1", 0) if path is None else str(path))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1] if path is None else 0
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> FaultRelay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """For a redis-server behind it, over TCP."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def connections(self) -> list[Relayed]:
        """Those that live now, the oldest first."""
        return self.call(lambda: list(self._connections))

    def set(self, direction: Direction, **rules: Any) -> None:
        """Change some rules of a direction for all connections, living and new."""

        def change() -> None:
            self._rules[direction] = replace(self._rules[direction], **rules)
            for connection in self._connections:
                way = connection._ways[direction]
                way.set(replace(way.rules, **rules))

        self.call(change)

    @contextlib.contextmanager
    def stalled(self, direction: Direction) -> Iterator[None]:
        """For the block, no more bytes pass in this direction; they are kept, and pass afterwards."""
        self.set(direction, hold_after=0)
        try:
            yield
        finally:
            self.set(direction, hold_after=None)

    def refuse(self, refuses: bool = True) -> None:
        """Whether new connections are closed as soon as they are there."""
        self.call(lambda: setattr(self, "_refuses", refuses))

    def cut_all(self) -> None:
        """End every connection."""
        for connection in self.connections:
            connection.cut()

    def close(self) -> None:
        """End every connection and the relay."""
        if self._thread.is_alive():
            self.call(self._ending.set)
            self._thread.join(10)
        self._listener.close()
        if not self._loop.is_running():
            self._loop.close()

    def call(self, action: Callable[[], _Answer]) -> _Answer:
        """Do something in the relay's thread, and return its answer."""
        done: Future[_Answer] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result(10)

    async def _serve(self) -> None:
        accepting = asyncio.create_task(self._accept())
        await self._ending.wait()
        tasks = [accepting, *self._connections.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(self._listener)
            self.accepted += 1
            if self._refuses:
                _reset(client)
                continue
            client.setblocking(False)
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, Path) else socket.AF_INET)
            server.setblocking(False)
            for each in (client, server):
                if each.family == socket.AF_INET:
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = {
                TO_SERVER: _Way(self._rules[TO_SERVER], client, server),
                TO_CLIENT: _Way(self._rules[TO_CLIENT], server, client),
            }
            connection = Relayed(self, ways)
            self._connections[connection] = asyncio.create_task(self._relay(connection, client, server, ways))

    async def _relay(
        self, connection: Relayed, client: socket.socket, server: socket.socket, ways: dict[Direction, _Way]
    ) -> None:
        target = str(self._target) if isinstance(self._target, Path) else self._target
        try:
            await asyncio.get_running_loop().sock_connect(server, target)
            await _all_or_none([work for way in ways.values() for work in (way.read(), way.write())])
        except OSError:
            _reset(client)
        finally:
            del self._connections[connection]
            client.close()
            server.close()


async def _all_or_none(works: list[Awaitable[None]]) -> None:
    """Wait for all; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(client: socket.socket) -> None:
    """Close it with a reset, where its family has one."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
