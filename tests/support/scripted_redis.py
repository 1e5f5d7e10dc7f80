"""A server that speaks RESP and answers what a test says: errors that a real one is hard to bring to, silence, nonsense."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

Answer = Callable[[list[bytes]], bytes | None]
"""The reply to a command as it goes out; None: what an empty server would say."""

_INFO = b"role:master\r\nused_memory:1000000\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


class ScriptedRedis:
    """Listens on a port of 127.0.0.1. `answer` may be changed at any time; `seen` counts commands by name."""

    def __init__(self) -> None:
        self.answer: Answer = lambda words: None
        self.seen: Counter[str] = Counter()
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                words = await _command(reader)
                self.seen[words[0].decode().upper()] += 1
                scripted = self.answer(words)
                writer.write(_empty(words) if scripted is None else scripted)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def scripted_redis() -> AsyncIterator[ScriptedRedis]:
    made = ScriptedRedis()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut_all()
        await server.wait_closed()


def only(*names: str, reply: bytes) -> Answer:
    """These commands get this reply; all others what an empty server would say."""
    wanted = {name.encode() for name in names}
    return lambda words: reply if words[0].upper() in wanted else None


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    words = []
    for _ in range(int((await reader.readuntil(b"\r\n"))[1:])):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


def _empty(words: list[bytes]) -> bytes:
    name = words[0].upper()
    if name == b"PING":
        return b"+PONG\r\n"
    if name == b"INFO":
        return bulk(_INFO)
    if name == b"GET":
        return b"$-1\r\n"
    if name == b"GETRANGE":
        return bulk(b"")
    if name in (b"SET", b"AUTH", b"SELECT", b"ASKING"):
        return b"+OK\r\n"
    return b":0\r\n"
