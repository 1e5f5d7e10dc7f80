"""Connections to servers: opened and authenticated by redis-py in threads of their own, then lent to whatever moves the bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.connection import AbstractConnection as ThreadedConnection
from redis.exceptions import NoPermissionError, ResponseError

from cache_l3.address import RedisAddress
from cache_l3.errors import explain, reason_of, tls_hint
from kv_types.limits import L3_CONNECTING_ENDS_S, L3_CONNECTING_MAX

Command = Sequence[bytes | str]
REMEDIES = {
    "denied": (
        "give its user what pages need: ACL SETUSER <user> ~stratakv:* +get +set +getrange +expire +unlink +ping +info +select, "
        "in a Cluster also +asking +cluster|slots"
    ),
    "version": "use Redis 6.2 or later, or Valkey",
    "disk": "look at its disk: it refuses writes until it can save again",
    "clients": "let it take more clients: CONFIG SET maxclients",
    "moved": "if it is part of a Cluster and its URL does not say so: that begins with redis+cluster://",
    "readonly": "it is a replica: name its primary, in its place or beside it",
    "size": "raise its proto-max-bulk-len above the size of a page, or use smaller pages",
    "single": "it is no Cluster: its URL begins with redis://, or rediss:// for TLS",
}


class ConnectError(Exception):
    """A server can't be had; `reason` in one word, the text in a line with what to do about it."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Connector:
    """Opens connections, some at a time, in threads: a name that is looked up or a handshake that hangs keeps nobody else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(L3_CONNECTING_MAX, thread_name_prefix="stratakv-l3-connect")

    async def open(self, address: RedisAddress, *, timeout_s: float) -> socket.socket:
        """A socket on which nothing is under way, of a server that has answered a PING. Raises ConnectError."""
        try:
            opening = self._threads.submit(_open, address, timeout_s)
        except RuntimeError as error:  # closed, or the machine gives no more threads
            raise connect_error(address, error) from error
        ended, is_taken = asyncio.wrap_future(opening), False
        ended.add_done_callback(_heed)
        try:
            await asyncio.wait([ended], timeout=timeout_s)
            if not ended.done():
                raise TimeoutError(f"not connected within {timeout_s} s")  # noqa: TRY301 - one way out
            made = ended.result()
            is_taken = True
        except Exception as error:  # whatever a broken or hostile server makes redis-py or its parser raise
            raise connect_error(address, error) from error
        finally:
            if not is_taken:
                opening.add_done_callback(_throw_away)
                opening.cancel()
        return made

    def close(self) -> None:
        """Begin no more; threads that wait for a server end when they have waited enough."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Control:
    """One connection for small questions to one server, apart from those that move pages. Dropped after each trouble."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._connection: AbstractConnection | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def ask(self, commands: Sequence[Command], *, timeout_s: float) -> list[object]:
        """Replies to commands that are sent together; errors among them are values. Raises ConnectError."""
        is_new, is_done = self._connection is None, False
        connection = self._connection or self._address.connection()
        self._connection = connection
        try:
            async with asyncio.timeout(timeout_s):
                if is_new:
                    self._connecting = asyncio.ensure_future(connection.connect())  # type: ignore[no-untyped-call]
                    await asyncio.shield(self._connecting)
                    self._connecting = None
                replies = await exchange(connection, commands)
            is_done = True
        except Exception as error:  # as above
            raise connect_error(self._address, error, is_new=is_new) from error
        finally:
            if not is_done:
                await self.close()
        return replies

    async def close(self) -> None:
        """Drop the connection; the next question opens another. A good end of TLS would wait for a server that may hang."""
        connection, self._connection = self._connection, None
        connecting, self._connecting = self._connecting, None
        try:
            if connecting is not None:
                await _end(connecting)
        finally:  # also where whoever closes it is cancelled meanwhile
            if connection is not None:
                await _abort(connection)


async def _abort(connection: AbstractConnection) -> None:
    writer = connection._writer
    if writer is not None:
        writer.transport.abort()
    await connection.disconnect(nowait=True)


async def _end(connecting: asyncio.Task[None]) -> None:
    """Give it a moment first: asyncio does not close a connection of TLS that is cancelled at its very beginning."""
    await asyncio.wait([connecting], timeout=L3_CONNECTING_ENDS_S)
    connecting.cancel()
    await asyncio.wait([connecting])
    _heed(connecting)


async def exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[object]:
    """Send commands at once and return the reply to each; one that is an error is returned as a ResponseError."""
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[object] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            replies.append(error)
    return replies


def connect_error(address: RedisAddress, error: Exception, *, is_new: bool = True) -> ConnectError:
    """The same trouble, in words for people; `is_new`: the connection had never worked."""
    hint = tls_hint(address.scheme, error) if is_new else ""
    return ConnectError(reason_of(error), explain(error, server=address.label, remedies=REMEDIES, hint=hint))


def _open(address: RedisAddress, timeout_s: float) -> socket.socket:
    connection = address.threaded_connection(timeout_s=timeout_s)
    is_done = False
    try:
        connection.connect()  # type: ignore[no-untyped-call]
        connection.send_command("PING")  # type: ignore[no-untyped-call]
        with contextlib.suppress(NoPermissionError):  # an answer is an answer
            connection.read_response()
        is_done = True
    finally:
        if not is_done:
            connection.disconnect()  # type: ignore[no-untyped-call]
    return _taken(connection)


def _taken(connection: ThreadedConnection) -> socket.socket:
    """Take the socket out of redis-py's hands: there is no other way to get at one that it has authenticated."""
    taken: object = connection._sock
    connection._sock = None
    connection._parser.on_disconnect()  # it has read all there was
    if not isinstance(taken, socket.socket):
        raise ConnectionError("the connection was lost as soon as it was open")
    return taken


def _heed(ended: asyncio.Future[Any]) -> None:
    """What it failed with may come too late to be told to anybody."""
    if not ended.cancelled():
        ended.exception()


def _throw_away(opening: Future[socket.socket]) -> None:
    """Close what came too late for whoever asked."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
