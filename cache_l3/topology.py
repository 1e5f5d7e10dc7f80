"""Which server has a key: one of several that stand for each other, or the primary of the key's slot in a Cluster.

Replicas are not asked for pages: what they lack is not lacking, and what they have may be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from redis.cluster import ClusterNode, NodesManager
from redis.exceptions import MovedError

from cache_l3.address import PORT_DEFAULT, RedisAddress, RedisServers
from cache_l3.connections import connect_error
from cache_l3.key_space import slot_of
from kv_types.limits import L3_REFRESH_S, L3_REFRESH_S_MIN, L3_TABLE_S


class Topology(Protocol):
    """Knows primaries. Called from one event loop."""

    kind: str
    """single, cluster."""
    is_spread: bool
    """Each of the primaries has keys of its own, and says itself whom to ask for others; else there is one at a time."""
    known: asyncio.Event
    """Set once there is an answer, or it turned out that there is none."""

    async def start(self) -> None:
        """Begin to look; returns at once."""
        ...

    async def close(self) -> None:
        """End the looking."""
        ...

    def server_of(self, key: bytes) -> RedisAddress | None:
        """The primary that has a key; None: nobody is known to."""
        ...

    def moved(self, redirect: str, source: RedisAddress) -> RedisAddress | None:
        """Learn from `MOVED slot host:port`, the answer of `source`; returns whom to ask instead."""
        ...

    def suspect(self, address: RedisAddress) -> None:
        """It is down, or no primary any more: look again, or take another."""
        ...

    def servers(self) -> list[RedisAddress]:
        """Primaries now."""
        ...

    @property
    def trouble(self) -> str:
        """Why nobody is known, with what to do; empty otherwise."""
        ...


class Candidates:
    """Servers any of which may be the primary. The one that works is kept until it fails."""

    kind = "single"
    is_spread = False

    def __init__(self, servers: RedisServers) -> None:
        self._addresses = servers.addresses
        self._current = 0
        self._trouble = ""
        self.known = asyncio.Event()
        self.known.set()

    async def start(self) -> None:
        """Nothing has to be found out."""

    async def close(self) -> None:
        """Nothing was begun."""

    def server_of(self, key: bytes) -> RedisAddress | None:
        """The one that is taken for the primary."""
        return self._addresses[self._current]

    def moved(self, redirect: str, source: RedisAddress) -> RedisAddress | None:
        """A server of a Cluster under a URL of none can't be used for more than its own slots."""
        self._trouble = (
            f"{source.label} is part of a Cluster: name it by redis+cluster://, or rediss+cluster:// for TLS"
        )
        return None

    def suspect(self, address: RedisAddress) -> None:
        """Go on to the next one, if nobody else has done so meanwhile."""
        if address == self._addresses[self._current]:
            self._current = (self._current + 1) % len(self._addresses)

    def servers(self) -> list[RedisAddress]:
        """All of them: each may be the primary again."""
        return list(self._addresses)

    @property
    def trouble(self) -> str:
        """What was learnt of a server that is none of the kind that its URL says."""
        return self._trouble


class Cluster:
    """The slot table of a Cluster, kept by redis-py's NodesManager in a thread of its own.

    MOVED changes one slot at once (or all of a failed-over primary's). The whole table is read anew, L3_REFRESH_S_MIN apart
    at least, when a server is suspect or has moved something, when nobody has a slot that is asked for, and every L3_REFRESH_S;
    `on_change` is called after each time.
    """

    kind = "cluster"
    is_spread = True

    def __init__(self, servers: RedisServers, *, on_change: Callable[[], None]) -> None:
        self._named = servers.addresses
        self._on_change = on_change
        self._manager: NodesManager | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stratakv-topology")
        self._wanted = asyncio.Event()
        self._failed_node: str | None = None
        self._trouble = ""
        self._task: asyncio.Task[None] | None = None
        self.known = asyncio.Event()

    async def start(self) -> None:
        """Begin to read the table."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """End; a reading that is under way ends by itself."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)
        self.known.set()

    def server_of(self, key: bytes) -> RedisAddress | None:
        """The primary of the key's slot. Where nobody is said to have it, the table is read anew soon."""
        nodes = self._manager.slots_cache.get(slot_of(key)) if self._manager is not None else None
        if nodes:
            return self._address(nodes[0])
        self._wanted.set()
        return None

    def moved(self, redirect: str, source: RedisAddress) -> RedisAddress | None:
        """Change the slot's place in the table, and have the table read anew soon: it seldom is one slot alone."""
        target = redirect_target(redirect, source)
        if target is None or self._manager is None:
            return None
        slot, address = target
        if slot in self._manager.slots_cache:
            with contextlib.suppress(KeyError):  # the thread has put a table in its place that lacks the slot
                self._manager.move_slot(MovedError(f"{slot} {_node_name(address)}"))
        self._wanted.set()
        return address

    def suspect(self, address: RedisAddress) -> None:
        """Have the table read anew, from others than this one first."""
        self._failed_node = _node_name(address)
        self._wanted.set()

    def servers(self) -> list[RedisAddress]:
        """Primaries of the table."""
        if self._manager is None:
            return []
        found = self._manager.get_nodes_by_server_type("primary")
        return [self._address(node) for node in found]

    @property
    def trouble(self) -> str:
        """Why the table could not be read last."""
        return self._trouble

    def _address(self, node: ClusterNode) -> RedisAddress:
        return self._named[0].at(str(node.host), int(node.port))

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            failed, self._failed_node = self._failed_node, None
            try:
                await loop.run_in_executor(self._thread, self._read, failed)
                self._trouble = ""
            except Exception as error:  # noqa: BLE001 - whatever a broken server makes redis-py raise is a trouble to tell
                self._trouble = str(connect_error(self._named[0], error))
            self.known.set()
            self._on_change()
            await asyncio.sleep(L3_REFRESH_S_MIN)
            if not self._trouble:
                await _set_within(self._wanted, L3_REFRESH_S)

    def _read(self, failed_node: str | None) -> None:
        """In the thread. The manager is a new one until there has been a table."""
        if self._manager is not None:
            self._manager.initialize(last_failed_node_name=failed_node)
            return
        options = dict(self._named[0].options)
        named = [
            ClusterNode(address.options["host"], address.options.get("port", PORT_DEFAULT))  # type: ignore[no-untyped-call]
            for address in self._named
        ]
        for name in ("host", "port", "db"):
            options.pop(name, None)
        self._manager = NodesManager(
            startup_nodes=named, require_full_coverage=False, protocol=2, driver_info=None,
            ssl=self._named[0].is_encrypted, socket_timeout=L3_TABLE_S, socket_connect_timeout=L3_TABLE_S,
            **options,
        )  # fmt: skip

    def _disconnect(self) -> None:
        """In the thread, behind a reading that is under way."""
        for node in self._manager.nodes_cache.values() if self._manager is not None else ():
            if node.redis_connection is not None:
                node.redis_connection.close()


def redirect_target(redirect: str, source: RedisAddress) -> tuple[int, RedisAddress] | None:
    """Slot and server of `MOVED slot host:port` or `ASK …`; a host that is left out is the source's. None: it is neither."""
    words = redirect.split(" ")
    if len(words) != 3 or words[0] not in ("MOVED", "ASK"):
        return None
    host, _, port = words[2].rpartition(":")
    if not (words[1].isascii() and words[1].isdigit() and port.isascii() and port.isdigit()):
        return None
    return int(words[1]), source.at(host or str(source.options.get("host", "localhost")), int(port))


def open_topology(servers: RedisServers, *, on_change: Callable[[], None]) -> Topology:
    """Of the kind that the URLs say."""
    return Cluster(servers, on_change=on_change) if servers.is_cluster else Candidates(servers)


def _node_name(address: RedisAddress) -> str:
    return f"{address.options['host']}:{address.options.get('port', PORT_DEFAULT)}"


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
