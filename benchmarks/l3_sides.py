"""Who moves pages between servers and memory in the measurement of L3: plain sockets, our data path, redis-py."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from redis import Redis
from redis.connection import Connection, ConnectionPool, UnixDomainSocketConnection

from benchmarks.raw_peer import DONE, LOAD, REQUEST, STORE, receive
from cache_l3.commands import encode_get, encode_set
from cache_l3.data_path import Got
from cache_l3.native_path import NativePath
from cache_l3.verification import SHAPE

_Mover = TypeVar("_Mover")
Address: TypeAlias = Path | int
"""A Unix socket, or a port of 127.0.0.1."""

PAGE_BYTES = 1 << 20
TTL_S = 3600
DEADLINE_S = 20.0
NEAR_BYTES = 256 * 1024
"""Of a send buffer, to a server on this machine."""


def key_of(page: int) -> bytes:
    """As long as those of records."""
    return b"stratakv:bench:page:%064x:%064x" % (1, page)


@dataclass(frozen=True)
class Pages:
    """Which pages there are, and which of the servers has which."""

    count: int
    server_of: tuple[int, ...]

    def of_server(self, server: int) -> list[int]:
        """In order."""
        return [page for page in range(self.count) if self.server_of[page] == server]


class Side(Protocol):
    """Moves the first `count` pages, each from or to its place in the side's own memory."""

    def load(self, count: int) -> None:
        """From the servers."""
        ...

    def store(self, count: int) -> None:
        """To the servers."""
        ...

    def close(self) -> None:
        """Connections and threads."""
        ...


def connect(address: Address) -> socket.socket:
    """A blocking socket, without delays of its own."""
    if isinstance(address, Path):
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(address))
        return made
    made = socket.create_connection(("127.0.0.1", address))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def page_memory(count: int, *, seed: int) -> memoryview:
    """Memory like an arena's: shared, its pages there, with bytes that nothing can compress."""
    memory = memoryview(mmap.mmap(-1, count * PAGE_BYTES))
    memory[:] = random.Random(seed).randbytes(len(memory))
    return memory


def place(memory: memoryview, page: int) -> memoryview:
    """One page's part of it."""
    return memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]


class Ours:
    """The native data path, as a sidecar uses it: submitted and awaited in an event loop."""

    def __init__(self, addresses: Sequence[Address], pages: Pages, *, connections: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._pages = pages
        self._memory = page_memory(pages.count, seed=1)
        self._header = _header()
        self._loop.run_until_complete(self._open(addresses, connections))

    async def _open(self, addresses: Sequence[Address], connections: int) -> None:
        self._path = NativePath(SHAPE)
        self._shards = [self._path.open_shard() for _ in addresses]
        for shard, address in zip(self._shards, addresses, strict=True):
            for _ in range(connections):
                self._path.add_connection(shard, connect(address), on_lost=_lost)

    def load(self, count: int) -> None:
        """From the servers; raises RuntimeError for what is not a whole page."""
        self._loop.run_until_complete(self._load(count))

    async def _load(self, count: int) -> None:
        deadline_ns = _deadline_ns()
        loads = [
            self._path.get(
                self._shard(page), key_of(page), place(self._memory, page), deadline_ns=deadline_ns
            )
            for page in range(count)
        ]
        for got in await asyncio.gather(*loads):
            if not isinstance(got, Got) or not got.in_place:
                raise RuntimeError(f"not a whole page: {got}")

    def store(self, count: int) -> None:
        """To the servers, with the checksums made on the way."""
        self._loop.run_until_complete(self._store(count))

    async def _store(self, count: int) -> None:
        deadline_ns = _deadline_ns()
        await asyncio.gather(*(
            self._path.set(
                self._shard(page), key_of(page), self._header, place(self._memory, page), ttl_s=TTL_S, deadline_ns=deadline_ns
            )
            for page in range(count)
        ))  # fmt: skip

    def _shard(self, page: int) -> int:
        return self._shards[self._pages.server_of[page]]

    def close(self) -> None:
        """Connections and loop."""
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._path.close()


class _Threads:
    """One task for each of some connections, each carried out by its own thread."""

    def __init__(self, connections: int) -> None:
        self._pool = ThreadPoolExecutor(connections)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        for done in [self._pool.submit(task) for task in tasks]:
            done.result()

    def close(self) -> None:
        self._pool.shutdown()


class _Sockets:
    """As many sockets to each server, a thread each; over TCP with the send buffers that were found best here, as ours has."""

    def __init__(self, addresses: Sequence[Address], connections: int) -> None:
        self.by_server = [[connect(address) for _ in range(connections)] for address in addresses]
        for each in self.all():
            if each.family == socket.AF_INET:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BYTES)
        self._threads = _Threads(connections * len(addresses))

    def all(self) -> list[socket.socket]:
        return [each for connected in self.by_server for each in connected]

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        self._threads.run(tasks)

    def close(self) -> None:
        for each in self.all():
            each.close()
        self._threads.close()


class Plain:
    """As many connections, a thread each, to peers that only send and accept: what the sockets themselves take."""

    def __init__(self, addresses: Sequence[Address], pages: Pages, *, connections: int) -> None:
        self._pages = pages
        self._memory = page_memory(pages.count, seed=2)
        self._sockets = _Sockets(addresses, connections)

    def load(self, count: int) -> None:
        """Each connection a run of pages, received in place."""
        self._sockets.run([partial(self._load, *share) for share in self._shares(count)])

    def _load(self, by: socket.socket, first: int, share: int) -> None:
        by.sendall(REQUEST.pack(LOAD, first, share))
        receive(by, self._memory[first * PAGE_BYTES : (first + share) * PAGE_BYTES])

    def store(self, count: int) -> None:
        """Each connection a run of pages, sent from where they are."""
        self._sockets.run([partial(self._store, *share) for share in self._shares(count)])

    def _store(self, by: socket.socket, first: int, share: int) -> None:
        by.sendall(REQUEST.pack(STORE, first, share))
        by.sendall(self._memory[first * PAGE_BYTES : (first + share) * PAGE_BYTES])
        if by.recv(1) != DONE:
            raise RuntimeError("a plain peer said something else")

    def _shares(self, count: int) -> list[tuple[socket.socket, int, int]]:
        """Connection, first page, pages: as many pages to each server as it has of ours, evenly over its connections."""
        shares, first = [], 0
        for server, connections in enumerate(self._sockets.by_server):
            left = sum(1 for page in range(count) if self._pages.server_of[page] == server)
            for number, connection in enumerate(connections):
                share = left // (len(connections) - number)
                if share:
                    shares.append((connection, first, share))
                first, left = first + share, left - share
        return shares

    def close(self) -> None:
        """Sockets and threads."""
        self._sockets.close()


def _shares(
    pages: Pages, count: int, by_server: Sequence[Sequence[_Mover]]
) -> list[tuple[_Mover, list[int]]]:
    """Who moves which of the first `count` pages: those of a server evenly over its own; whoever has none is left out."""
    shares = [
        (by, [page for page in pages.of_server(server) if page < count][number :: len(movers)])
        for server, movers in enumerate(by_server)
        for number, by in enumerate(movers)
    ]
    return [(by, share) for by, share in shares if share]


class Server:
    """What the server itself takes: as many connections, a thread each, that know in advance every byte of its replies."""

    def __init__(self, addresses: Sequence[Address], pages: Pages, *, connections: int) -> None:
        self._pages = pages
        self._memory = page_memory(pages.count, seed=4)
        self._sockets = _Sockets(addresses, connections)
        self._heads = {each: bytearray(len(_REPLY)) for each in self._sockets.all()}

    def load(self, count: int) -> None:
        """GET by GET: the length and header to one side, the payload in place."""
        self._each(count, self._load)

    def _load(self, by: socket.socket, pages: Sequence[int]) -> None:
        for page in pages:
            by.sendall(encode_get(key_of(page), asking=False))
            receive(by, memoryview(self._heads[by]))
            receive(by, place(self._memory, page))
            receive(by, memoryview(self._heads[by])[:2])

    def store(self, count: int) -> None:
        """SET by SET, from where the pages are; no checksums."""
        self._each(count, self._store)

    def _store(self, by: socket.socket, pages: Sequence[int]) -> None:
        for page in pages:
            before, after = encode_set(
                key_of(page), value_bytes=len(_HEADER) + PAGE_BYTES, ttl_s=TTL_S, asking=False
            )
            by.sendall(before + _HEADER)
            by.sendall(place(self._memory, page))
            by.sendall(after)
            receive(by, memoryview(self._heads[by])[: len(b"+OK\r\n")])

    def _each(self, count: int, work: Callable[[socket.socket, Sequence[int]], None]) -> None:
        shares = _shares(self._pages, count, self._sockets.by_server)
        self._sockets.run([partial(work, by, share) for by, share in shares])

    def close(self) -> None:
        """Sockets and threads."""
        self._sockets.close()


class RedisPy:
    """redis-py with one of its parsers: as many connections, a thread each; what was read is copied to its place."""

    def __init__(
        self, addresses: Sequence[Address], pages: Pages, *, connections: int, parser: type[Any]
    ) -> None:
        self._pages = pages
        self._memory = page_memory(pages.count, seed=3)
        self._clients = [_client(address, parser) for address in addresses]
        self._by_server = [[client] * connections for client in self._clients]
        self._threads = _Threads(connections * len(addresses))

    def load(self, count: int) -> None:
        """GET, then a copy."""
        self._each(count, self._load)

    def _load(self, client: Redis, pages: Sequence[int]) -> None:
        for page in pages:
            value = client.get(key_of(page))
            if not isinstance(value, bytes):
                raise RuntimeError(f"not a page: {value!r}")  # noqa: TRY004 - the server's answer, not an argument
            place(self._memory, page)[:] = memoryview(value)[-PAGE_BYTES:]

    def store(self, count: int) -> None:
        """SET of a header and what is in the place."""
        self._each(count, self._store)

    def _store(self, client: Redis, pages: Sequence[int]) -> None:
        for page in pages:
            client.set(key_of(page), _HEADER + bytes(place(self._memory, page)), ex=TTL_S)

    def _each(self, count: int, work: Callable[[Redis, Sequence[int]], None]) -> None:
        shares = _shares(self._pages, count, self._by_server)
        self._threads.run([partial(work, client, share) for client, share in shares])

    def close(self) -> None:
        """Connections and threads."""
        self._threads.close()
        for client in self._clients:
            client.close()


def _client(address: Address, parser: type[Any]) -> Redis:
    if isinstance(address, Path):
        return Redis(connection_pool=ConnectionPool(
            connection_class=UnixDomainSocketConnection, path=str(address), parser_class=parser, protocol=2
        ))  # fmt: skip
    return Redis(connection_pool=ConnectionPool(
        connection_class=Connection, host="127.0.0.1", port=address, parser_class=parser, protocol=2
    ))  # fmt: skip


def _header() -> bytes:
    header = bytearray(os.urandom(SHAPE.bytes_min))
    struct.pack_into("<I", header, SHAPE.size_at, len(header))
    return bytes(header)


_HEADER = _header()
_REPLY = b"$%d\r\n" % (len(_HEADER) + PAGE_BYTES) + _HEADER
"""What comes before a payload."""


def _deadline_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(DEADLINE_S * 1e9)


def _lost(why: str) -> None:
    raise RuntimeError(f"a connection was lost: {why}")
