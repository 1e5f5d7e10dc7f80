"""Connections of simulated processes to simulated servers, as RedisLog uses redis-py's: it is the real RedisLog that asks.

What was sent before a connection ended may still arrive and be carried out; its reply reaches nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis._parsers import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.sim.clockwork import Clockwork, Process
from tests.sim.network import Channel, Network
from tests.sim.nodes import Node
from tests.sim.redis_server import RedisServer, Session
from tests.support.lua_redis import ErrorReply

Command = Sequence[bytes | str]
Batch = list[tuple[bytes, ...]]


_parse_error: Callable[[str], Exception] = BaseParser.parse_error


class Caller(Protocol):
    """A connection's other end."""

    process: Process

    def arrived(self, replies: list[Any]) -> None:
        """Replies came in."""
        ...


class ServerEnd:
    """A connection as its server has it: commands one after the other, replies in their order."""

    def __init__(self, connection: Caller, server: RedisServer, back: Channel) -> None:
        self._connection = connection
        self._server = server
        self._back = back
        self._session = Session()
        self._queue: deque[tuple[bytes, ...]] = deque()
        self._replies: list[Any] = []
        self._is_blocked = False
        self._sent_ns = 0

    def receive(self, batch: Batch, sent_ns: int) -> None:
        """Take commands that were sent at this time of the client's boot clock."""
        self._queue += batch
        self._sent_ns = sent_ns
        if not self._is_blocked:
            self._go_on()

    def _go_on(self) -> None:
        server = self._server
        while self._queue and not self._is_blocked:
            command = self._queue.popleft()
            name = command[0].upper()
            if name == b"WAIT":
                self._is_blocked = True
                server.wait(self._session, int(command[1]), int(command[2]), self._unblocked)
            elif name == b"XREAD":
                self._is_blocked = True
                options = dict(zip(command[1:5:2], command[2:5:2], strict=True))
                server.read_stream(
                    command[6], command[7], int(options[b"BLOCK"]), int(options[b"COUNT"]), self._unblocked
                )
            else:
                try:
                    reply = server.execute(self._session, *command)
                    if server.on_script is not None and name in (b"EVALSHA", b"EVAL"):
                        server.on_script(server, command[1:], reply, self._sent_ns)
                except ErrorReply as error:
                    reply = error
                self._replies.append(reply)
        self._flush()

    def _unblocked(self, reply: Any) -> None:
        self._replies.append(reply)
        self._is_blocked = False
        if not self._queue:
            self._flush()
        else:
            self._go_on()

    def _flush(self) -> None:
        if self._replies:
            replies, self._replies = self._replies, []
            self._back.send(lambda: self._connection.arrived(replies), self._connection.process)


class SimulatedConnection:
    """The client's end; the methods of redis.asyncio.Connection that the product calls."""

    _writer = None
    """No transport that would have to be told to end."""

    def __init__(
        self, clockwork: Clockwork, network: Network, node: Node, process: Process, server: RedisServer
    ) -> None:
        self.process = process
        self._clockwork = clockwork
        self._server = server
        self._forth = network.channel(node.name, server.node.name)
        self._back = network.channel(server.node.name, node.name)
        self._end = ServerEnd(self, server, self._back)
        self._server_process = server.process
        self._replies: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = False
        self._is_closed = False
        self._broken = ""

    async def connect(self) -> None:
        """Shake hands, once; a server that isn't there refuses."""
        if self._is_open:
            return
        server, process = self._server, self._server.process
        self._server_process = process

        def knock() -> None:
            def open_() -> None:
                self._is_open = True
                self._wake()

            if process.alive:
                server.connections.append(self)
                self._back.send(open_, self.process)
            else:
                self._back.send(lambda: self.break_("refused"), self.process)

        self._forth.send(knock, None)
        while not self._is_open:
            await self._wait()

    async def can_read(self) -> bool:
        """Whether something came that nobody asked for, an end among it."""
        return bool(self._replies or self._broken)

    def pack_commands(self, commands: Sequence[Command]) -> Batch:
        """As the wire has them: bytes."""
        return [
            tuple(part.encode() if isinstance(part, str) else part for part in command)
            for command in commands
        ]

    async def send_packed_command(self, batch: Batch, check_health: bool = True) -> None:
        """Send; does not wait for anything."""
        if self._broken:
            raise RedisConnectionError(self._broken)
        end, server = self._end, self._server
        sent_ns = self.process.node.now_ns()
        self._forth.send(lambda: end.receive(batch, sent_ns), self._server_process)
        repeat_ns = server.repeat_ns()
        if repeat_ns:
            again = ServerEnd(self, server, NOWHERE)
            self._clockwork.after(repeat_ns, lambda: again.receive(batch, sent_ns), self._server_process)

    async def read_response(self) -> Any:
        """Return the next reply; raises what an error reply stands for."""
        while not self._replies:
            await self._wait()
        reply = self._replies.popleft()
        if isinstance(reply, ErrorReply):
            raise _parse_error(str(reply))
        return reply

    async def disconnect(self, nowait: bool = False) -> None:
        """Close."""
        self._is_closed = True
        if self in self._server.connections:
            self._server.connections.remove(self)

    # --- what the network does ---

    def arrived(self, replies: list[Any]) -> None:
        """Replies came in."""
        if not self._is_closed:
            self._replies += replies
            self._wake()

    def break_(self, why: str) -> None:
        """The connection is reset."""
        if not self._is_closed:
            self._broken = why
            self._wake()

    def reset(self) -> None:
        """The server's process ended: say so to the client, if that gets through."""
        self._back.send(lambda: self.break_("Connection reset by peer"), self.process)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._check()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self._check()

    def _check(self) -> None:
        if self._broken and not self._replies:
            raise RedisConnectionError(self._broken)


class _Nowhere:
    def send(self, arrive: object, process: object) -> None:
        """Replies to a message that came a second time reach nobody."""


NOWHERE: Any = _Nowhere()


Route = tuple[Clockwork, Network, Node, Process, RedisServer]


class SimulatedAddress:
    """A server as one process reaches it; stands for cache_l3.address.RedisAddress."""

    scheme, is_encrypted = "redis", False

    def __init__(
        self, clockwork: Clockwork, network: Network, node: Node, process: Process, server: RedisServer
    ) -> None:
        self.label = server.node.name
        self.options: dict[str, Any] = {}
        self.route: Route = clockwork, network, node, process, server

    def connection(self) -> Any:
        """A new connection, not connected yet."""
        return SimulatedConnection(*self.route)
