"""What L3 writes to the daemon's own log: each change of a server once, however often it is looked at."""

from __future__ import annotations

from cache_l3.record_store import L3Picture, ServerPicture
from kv_types.clock import Clock
from kv_types.limits import LOG_REPORT_S_MIN
from sidecar.logs import logger

_SECOND_NS = 1_000_000_000
_FULL = "full"
_CLOSED = "closed"

_log = logger("l3")


class L3Reports:
    """Remembers what was said. A server that comes and goes is not told of more often than every LOG_REPORT_S_MIN."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._down: dict[str, int] = {}
        """Servers that were said to be out of reach, and when that was said last."""
        self._full: set[str] = set()
        self._refused: dict[str, tuple[int, tuple[str, ...]]] = {}
        """What servers were said to refuse, and when that was said last."""
        self._trouble = ""

    def look(self, picture: L3Picture) -> None:
        """Take in how things stand now, and say what has changed."""
        for server in picture.servers:
            self._reach(server)
            self._room(server)
            self._refusals(server)
        known = {server.server for server in picture.servers}
        self._down = {name: at_ns for name, at_ns in self._down.items() if name in known}
        self._full &= known
        self._refused = {name: said for name, said in self._refused.items() if name in known}
        if picture.trouble != self._trouble:
            self._trouble = picture.trouble
            if picture.trouble:
                _log.warning("L3 does not work: only pages of this node are served", reason=picture.trouble)
            else:
                _log.info("L3 works again")

    def _reach(self, server: ServerPicture) -> None:
        said_ns = self._down.get(server.server)
        if server.breaker == _CLOSED:
            if said_ns is not None and self._is_due(said_ns):
                del self._down[server.server]
                _log.info("a server of L3 answers again", server=server.server)
        elif said_ns is None:
            self._down[server.server] = self._clock.now_ns()
            _log.warning(
                "a server of L3 is given up for a while: its pages miss as l3_unavailable",
                server=server.server, reason=server.last_error,
            )  # fmt: skip

    def _room(self, server: ServerPicture) -> None:
        is_full = server.writes == _FULL
        if is_full == (server.server in self._full):
            return
        if is_full:
            self._full.add(server.server)
            _log.warning(
                "a server of L3 is full and evicts nothing: no page is stored there",
                server=server.server, remedy="raise its maxmemory, lower l3_ttl, or set maxmemory-policy volatile-lru",
            )  # fmt: skip
        else:
            self._full.discard(server.server)
            _log.info("a server of L3 has room again", server=server.server)

    def _refusals(self, server: ServerPicture) -> None:
        said_ns, said = self._refused.get(server.server, (None, ()))
        if server.refused == said or (said_ns is not None and not self._is_due(said_ns)):
            return
        self._refused[server.server] = (self._clock.now_ns(), server.refused)
        if server.refused:
            _log.warning(
                "a server of L3 refuses commands", server=server.server, commands=list(server.refused),
                reason=server.last_error,
            )  # fmt: skip
        else:
            _log.info("a server of L3 refuses nothing any more", server=server.server)

    def _is_due(self, said_ns: int) -> bool:
        return self._clock.now_ns() - said_ns >= LOG_REPORT_S_MIN * _SECOND_NS
