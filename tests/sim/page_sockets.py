"""Sockets of simulated processes to simulated servers, as the engine that moves pages has them: bytes out, replies in."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from cache_l3.connections import connect_error
from tests.sim.redis_client import NOWHERE, ServerEnd, SimulatedAddress

Commands = tuple[tuple[bytes, ...], ...]


@functools.lru_cache(4096)
def commands_of(data: bytes) -> Commands:
    """Read commands as RESP writes them."""
    commands, at = [], 0
    while at < len(data):
        count, at = _number(data, at, b"*")
        words = []
        for _ in range(count):
            size, at = _number(data, at, b"$")
            words.append(data[at : at + size])
            at += size + 2
        commands.append(tuple(words))
    return tuple(commands)


def _number(data: bytes, at: int, kind: bytes) -> tuple[int, int]:
    end = data.index(b"\r\n", at)
    assert data[at : at + 1] == kind, data[at:end]
    return int(data[at + 1 : end]), end + 2


class PageSocket:
    """One connection to an address; its server's process is that of now. Stands for socket.socket in the product's hands."""

    descriptors: ClassVar[dict[int, PageSocket]] = {}
    """Those that were detached and that nobody has taken over yet."""

    def __init__(self, address: SimulatedAddress) -> None:
        clockwork, network, node, process, server = address.route
        self.process = process
        self._clockwork = clockwork
        self._server = server
        self._server_process = server.process
        self._forth = network.channel(node.name, server.node.name)
        self._back = network.channel(server.node.name, node.name)
        self._end = ServerEnd(self, server, self._back)
        self._is_closed = False
        self._arrive: Callable[[list[Any]], None] = lambda _: None
        self._break: Callable[[str], None] = lambda _: None
        self._broken = ""

    def knock(self) -> None:
        """Ask to be let in, and for a sign of life; whoever took it over is told of either end."""

        def enter() -> None:
            if self._server_process.alive:
                self._server.connections.append(self)
            else:
                self._back.send(lambda: self._ends("refused"), self.process)

        self._forth.send(enter, None)
        self.send(((b"PING",),))

    # --- what product code calls ---

    def fileno(self) -> int:
        return 0

    def setblocking(self, _: bool) -> None:
        """It never blocks."""

    def detach(self) -> int:
        number = len(self.descriptors) + 1
        while number in self.descriptors:
            number += 1
        self.descriptors[number] = self
        return number

    # --- what the engine calls ---

    def taken_over(self, arrive: Callable[[list[Any]], None], break_: Callable[[str], None]) -> None:
        """From now on whoever gave these is told what comes, and when it ends."""
        self._arrive, self._break = arrive, break_
        if self._broken:
            self._clockwork.after(0, lambda: break_(self._broken), self.process)

    def send(self, commands: Commands) -> None:
        """Have commands carried out, once or twice, unless the server or its process is another by then."""
        end, sent_ns = self._end, self.process.node.now_ns()
        self._forth.send(lambda: end.receive(list(commands), sent_ns), self._server_process)
        repeat_ns = self._server.repeat_ns()
        if repeat_ns:
            again = ServerEnd(self, self._server, NOWHERE)

            def repeat() -> None:
                if not self._server.is_calm:
                    again.receive(list(commands), sent_ns)

            self._clockwork.after(repeat_ns, repeat, self._server_process)

    def close(self) -> None:
        """What was sent may still be carried out; nothing comes any more."""
        self._is_closed = True
        if self in self._server.connections:
            self._server.connections.remove(self)

    # --- what the network does ---

    def arrived(self, replies: list[Any]) -> None:
        """Replies came in."""
        if not self._is_closed:
            self._arrive(replies)

    def reset(self) -> None:
        """The server's process ended: say so, if that gets through."""
        self._back.send(lambda: self._ends("Connection reset by peer"), self.process)

    def _ends(self, why: str) -> None:
        if not self._is_closed:
            self._broken = why
            self._break(why)


class SimulatedConnector:
    """Stands for cache_l3.connections.Connector, whose threads a simulation has no use for."""

    async def open(self, address: SimulatedAddress, *, timeout_s: float) -> PageSocket:
        """See Connector."""
        socket, opened = PageSocket(address), asyncio.get_running_loop().create_future()
        loop: Any = opened.get_loop()

        def arrived(replies: list[Any]) -> None:
            loop.call_soon(end, "")

        def ended(why: str) -> None:
            loop.call_soon(end, why)

        def end(why: str) -> None:
            if opened.done():
                return
            if why:
                opened.set_exception(ConnectionError(why))
            else:
                opened.set_result(None)

        socket.taken_over(arrived, ended)
        socket.knock()
        try:
            async with asyncio.timeout(timeout_s):
                await opened
        except Exception as error:
            socket.close()
            named: Any = address
            raise connect_error(named, error) from error
        except asyncio.CancelledError:
            socket.close()
            raise
        return socket

    def close(self) -> None:
        """Nothing is kept."""
