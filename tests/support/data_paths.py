"""Data paths of every kind over every kind of link, records to move, and a peer that says what a test wants it to say."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import xxhash

from cache_l3.data_path import DataPath, HeaderShape
from cache_l3.native_path import NativePath
from cache_l3.tls_path import TlsPath

SHAPE = HeaderShape(size_at=8, checksum_at=136, bytes_min=232, bytes_max=4096)
PATIENCE_S = 20.0
MAKERS: dict[str, Callable[[], DataPath]] = {
    "native": lambda: NativePath(SHAPE),
    "blocking": lambda: TlsPath(SHAPE),
}


def within(seconds: float = PATIENCE_S) -> int:
    """A deadline."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(seconds * 1e9)


def header(size: int = 300, *, fill: int = 0x5A) -> bytes:
    """A header that says its size, and else nothing true."""
    made = bytearray([fill]) * size
    struct.pack_into("<I", made, SHAPE.size_at, size)
    return bytes(made)


def sealed(plain: bytes, payload: bytes) -> bytes:
    """What a data path is to make of a header: by other code than its own."""
    made = bytearray(plain)
    struct.pack_into("<Q", made, SHAPE.checksum_at, xxhash.xxh3_64_intdigest(payload))
    struct.pack_into("<I", made, len(made) - 4, zlib.crc32(made[:-4]))
    return bytes(made)


def payload_of(number: int, size: int) -> bytes:
    """Bytes that tell which payload they are of, all the way through."""
    return (xxhash.xxh3_128_digest(b"%d" % number) * (size // 16 + 1))[:size]


def record(number: int, size: int, *, header_bytes: int = 300) -> bytes:
    """A whole record."""
    payload = payload_of(number, size)
    return sealed(header(header_bytes), payload) + payload


def bulk(value: bytes) -> bytes:
    """A reply."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


@dataclass
class Site:
    """A data path with one shard, and what was heard of its connections."""

    path: DataPath
    shard: int = 0
    lost: list[str] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)

    def add(self, connection: socket.socket) -> None:
        self.path.add_connection(self.shard, connection, on_lost=self.lost.append)

    def peer(self) -> Peer:
        """Add a connection whose other end is the test's."""
        ours, theirs = socket.socketpair()
        self.peers.append(Peer(theirs))
        self.add(ours)
        return self.peers[-1]

    async def until_lost(self, count: int = 1) -> None:
        await until(lambda: len(self.lost) >= count, f"{count} connections to end")

    async def until_received(self, count: int) -> None:
        """Until so many bytes have come in, over all connections."""
        await until(lambda: self.path.statistics()["bytes_in"] >= count, f"{count} bytes to come in")


@dataclass
class Peer:
    """The server's end of a connection."""

    socket: socket.socket

    def says(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)

    async def hears(self, count: int) -> bytes:
        """The next `count` bytes that the data path sends."""
        loop = asyncio.get_running_loop()
        self.socket.setblocking(False)
        heard = b""
        while len(heard) < count:
            piece = await asyncio.wait_for(loop.sock_recv(self.socket, count - len(heard)), PATIENCE_S)
            assert piece, f"the connection ended after {len(heard)} of {count} bytes"
            heard += piece
        self.socket.setblocking(True)
        return heard

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@contextlib.contextmanager
def site(kind: str) -> Iterator[Site]:
    """One of MAKERS, closed at the end; within a running loop."""
    made = Site(MAKERS[kind]())
    made.shard = made.path.open_shard()
    try:
        yield made
    finally:
        made.path.close()
        for peer in made.peers:
            peer.close()


async def until(predicate: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S) -> None:
    """Let the loop run until it is so."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s"
        await _next_turn()


async def _next_turn() -> None:
    """A moment for threads too: the loop looks at its descriptors before it comes back."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(0.0005, passed.set_result, None)
    await passed


async def outcome(future: asyncio.Future[Any]) -> Any:
    """Its value, or the exception that it ended with."""
    try:
        return await asyncio.wait_for(asyncio.shield(future), PATIENCE_S)
    except TimeoutError as error:
        raise AssertionError("a request did not end") from error
    except Exception as error:
        return error


def tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def unix(path: object) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    return made


def tls(port: int, certificate: object) -> socket.socket:
    context = ssl.create_default_context(cafile=str(certificate))
    return context.wrap_socket(socket.create_connection(("localhost", port)), server_hostname="localhost")
