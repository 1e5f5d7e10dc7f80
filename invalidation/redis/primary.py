"""Which server is taken for the log's primary: one of several that stand for each other, or whoever has its slot in a Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from cache_l3.address import RedisAddress, RedisServers
from cache_l3.topology import Cluster
from invalidation.log import LogUnavailableError
from invalidation.redis.errors import MovedElsewhereError
from kv_types.limits import LOG_REDIRECTS_MAX, LOG_RETRY_S, LOG_UNCONFIRMED_MAX

_ELSEWHERE = frozenset({"moved", "readonly", "unreachable", "loading"})
"""What another look at a Cluster's slots may heal, or a moment's patience."""


class Primary(Protocol):
    """Knows the server to talk to. Called from one event loop."""

    @property
    def label(self) -> str:
        """The server that is in use, or is tried, now; for people."""
        ...

    async def find(self) -> RedisAddress:
        """The server to try now; raises LogUnavailableError when none is known."""
        ...

    async def failed(self, address: RedisAddress | None, met: Sequence[LogUnavailableError]) -> None:
        """A call failed with this server, or found none; `met` is all that befell the call, this last.

        Returns when there is something to be tried next, maybe after a while; else raises what its caller is to be told.
        """
        ...

    def timed_out(self, address: RedisAddress) -> None:
        """A call's deadline passed while this server was asked."""
        ...

    def answered(self, address: RedisAddress, *, confirmed: bool) -> None:
        """Take note of a renewal's answer. A server whose replicas stay silent may be an old primary that lives on."""
        ...

    async def close(self) -> None:
        """End whatever it does."""
        ...


class Candidates:
    """Servers any of which may be the primary. The one that works is kept until it fails."""

    def __init__(self, addresses: Sequence[RedisAddress]) -> None:
        self._addresses = tuple(addresses)
        self._current = 0
        self._unconfirmed = 0

    @property
    def label(self) -> str:
        """See Primary."""
        return self._addresses[self._current].label

    async def find(self) -> RedisAddress:
        """See Primary."""
        return self._addresses[self._current]

    async def failed(self, address: RedisAddress | None, met: Sequence[LogUnavailableError]) -> None:
        """See Primary. Each is tried once; the first one's reason is told when all fail."""
        self._leave(address)
        if len(met) >= len(self._addresses):
            raise met[0]

    def timed_out(self, address: RedisAddress) -> None:
        """See Primary."""
        self._leave(address)

    def answered(self, address: RedisAddress, *, confirmed: bool) -> None:
        """See Primary."""
        self._unconfirmed = 0 if confirmed else self._unconfirmed + 1
        if self._unconfirmed >= LOG_UNCONFIRMED_MAX:
            self._leave(address)

    def _leave(self, address: RedisAddress | None) -> None:
        """Go on to the next one, if nobody else has done so meanwhile."""
        if address == self._addresses[self._current]:
            self._current = (self._current + 1) % len(self._addresses)
            self._unconfirmed = 0

    async def close(self) -> None:
        """Nothing was begun."""


class SlotPrimary:
    """The primary of the one slot of a Cluster that all keys of the log are in.

    MOVED is followed at once, a few times in a row. ASK and TRYAGAIN, of a slot that is on its way, are not followed: the log
    is many keys, and half of it may be at either end. So it is waited until all of it is at one.
    """

    def __init__(self, servers: RedisServers, key: str) -> None:
        self._servers = servers
        self._key = key.encode()
        self._cluster = Cluster(servers, on_change=self._table_was_read)
        self._redirected: RedisAddress | None = None
        self._read = asyncio.Event()
        self._unconfirmed = 0
        self._closed = False

    @property
    def label(self) -> str:
        """See Primary. What was named, until the slot's primary is known."""
        address = self._known()
        return self._servers.addresses[0].label if address is None else address.label

    def _known(self) -> RedisAddress | None:
        return self._redirected or self._cluster.server_of(self._key)

    async def find(self) -> RedisAddress:
        """See Primary. The first call begins to read the Cluster's table of slots."""
        if not self._closed:
            await self._cluster.start()
            await self._cluster.known.wait()
        if self._closed:
            raise LogUnavailableError("closed", "this log was closed")
        address = self._known()
        if address is None:
            trouble = self._cluster.trouble
            raise LogUnavailableError(
                "unreachable" if trouble else "moved",
                trouble or "no server of the Cluster has the log's slot",
            )
        return address

    async def failed(self, address: RedisAddress | None, met: Sequence[LogUnavailableError]) -> None:
        """See Primary. What no other server would heal is told at once; all else is tried again until the deadline."""
        error = met[-1]
        if error.reason not in _ELSEWHERE:
            raise error
        if address is not None and isinstance(error, MovedElsewhereError):
            self._redirected = self._cluster.moved(error.redirect, address)
            if self._redirected is not None and len(met) <= LOG_REDIRECTS_MAX:
                return
        elif address is not None:
            self._suspect(address)
        self._read.clear()
        try:
            async with asyncio.timeout(LOG_RETRY_S):
                await self._read.wait()
        except TimeoutError:
            return

    def timed_out(self, address: RedisAddress) -> None:
        """See Primary."""
        self._suspect(address)

    def answered(self, address: RedisAddress, *, confirmed: bool) -> None:
        """See Primary."""
        self._unconfirmed = 0 if confirmed else self._unconfirmed + 1
        if self._unconfirmed >= LOG_UNCONFIRMED_MAX:
            self._unconfirmed = 0
            self._suspect(address)

    def _suspect(self, address: RedisAddress) -> None:
        """Have the table read anew, which the topology does no more often than it may."""
        if address == self._redirected:
            self._redirected = None
        self._cluster.suspect(address)

    def _table_was_read(self) -> None:
        if not self._cluster.trouble:
            self._redirected = None
        self._read.set()

    async def close(self) -> None:
        """See Primary. Idempotent."""
        self._closed = True
        self._read.set()
        await self._cluster.close()


def open_primary(servers: RedisServers, *, key: str) -> Primary:
    """Of the kind that the URLs say; `key` is any of the log's."""
    return SlotPrimary(servers, key) if servers.is_cluster else Candidates(servers.addresses)
