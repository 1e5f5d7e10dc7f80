"""Sockets of simulated processes to simulated servers, as the engine that moves pages has them: bytes out, replies in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.sim.clockwork import Clockwork, Process
from tests.sim.network import Network
from tests.sim.redis_client import NOWHERE, ServerEnd
from tests.sim.redis_server import RedisServer

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
    """One connection, open from the start: whoever made it has shaken hands."""

    def __init__(self, clockwork: Clockwork, network: Network, process: Process, server: RedisServer) -> None:
        self.process = process
        self._clockwork = clockwork
        self._server = server
        self._server_process = server.process
        self._forth = network.channel(process.node.name, server.node.name)
        self._back = network.channel(server.node.name, process.node.name)
        self._end = ServerEnd(self, server, self._back)
        self._is_closed = False
        self._arrive: Callable[[list[Any]], None] = lambda _: None
        self._break: Callable[[str], None] = lambda _: None
        self._broken = ""
        server.connections.append(self)

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
            self._clockwork.after(
                repeat_ns, lambda: again.receive(list(commands), sent_ns), self._server_process
            )

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
