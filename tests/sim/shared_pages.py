"""L3 as one life of a sidecar has it: the product's record store, loader and write-behind over simulated connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cache_l3.address import RedisServers
from cache_l3.native_path import NativePath
from cache_l3.record_store import RecordStore
from cache_l3.redis_store import RecordStoreSettings, RedisRecordStore
from cache_l3.verification import SHAPE
from sidecar.l3.loader import Loader
from sidecar.l3.loads import Load, LoadRow, RowLoaded
from sidecar.l3.plan import Bounds
from sidecar.l3.store_queue import StoreQueue
from sidecar.l3.write_behind import WriteBehind, WriteTerms
from tests.sim.clockwork import MS, S
from tests.sim.environment import PAGE_BYTES

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

BOUNDS = Bounds(
    requests=6, pages=24, flights=6, flight_bytes=6 * PAGE_BYTES, run_pages=2, probe_pages=2, absent_pages=64,
    absent_ns=100 * MS, put_awaited_ns=100 * MS,
)  # fmt: skip
"""Small, so that runs, questions and queues are shorter than chains."""
STORE_NS = 500 * MS


class SharedPages:
    """Implements Loads for those who ask this life for pages."""

    is_available = True

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self.path: NativePath
        self.records: RecordStore
        self.loader: Loader
        self.behind: WriteBehind
        self.is_started = False

    async def start(self) -> None:
        """Begin, in the life's own loop."""
        life, plan, node = self._life, self._world.plan, self._life.sidecar.node
        addresses: Any = tuple(life.addresses_of(self._world.page_servers))
        self.path = NativePath(SHAPE, window=plan.window)
        self.records = RedisRecordStore(
            RecordStoreSettings(
                servers=RedisServers(addresses, is_cluster=False), fleet="fleet", holds_log=plan.l3 == "log",
                connections_per_shard=plan.connections,
            ),
            path=self.path, clock=node,
        )  # fmt: skip
        self.loader = Loader(life.store, self.records, clock=node, bounds=BOUNDS)
        self.behind = WriteBehind(
            life.store, self.records, life.validity,
            StoreQueue(pages_max=plan.queue_pages, bytes_max=1 << 20, age_ns_max=60 * S),
            WriteTerms(ttl_s=plan.record_ttl_s, deadline_ns=STORE_NS), clock=node,
            became_resident=self.loader.became_resident, stored_there=self.loader.stored_there,
            is_loading=lambda: self.loader.is_loading,
        )  # fmt: skip
        await self.records.start()
        self.behind.start()
        self.is_started = True

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be stored."""
        return self.is_started and self.behind.is_idle

    async def end(self) -> None:
        """As the sidecar takes its leave: answer all, store what can be stored, end."""
        self.loader.drain()
        await self.behind.drain(0.2)
        await self.loader.close()
        await self.records.close()
        self.path.close()

    # --- Loads ---

    def begin(self, rows: Sequence[LoadRow], *, deadline_ns: int, group: bool = False) -> Load:
        """See Loads; what is told of it is held against the truth."""
        load = self.loader.begin(rows, deadline_ns=deadline_ns, group=group)
        return CheckedLoad(self._world, self._life, load, rows, deadline_ns, is_group=group)

    def statistics(self) -> Mapping[str, int]:
        """All counters and gauges of it."""
        return {
            **{f"loads_{name}": count for name, count in self.loader.statistics().items()},
            **{f"stores_{name}": count for name, count in self.behind.statistics().items()},
            **{f"records_{name}": count for name, count in self.records.statistics().items()},
        }


class CheckedLoad:
    """A load whose answer must be true, and come in time."""

    def __init__(
        self, world: World, life: Life, load: Load, rows: Sequence[LoadRow], deadline_ns: int, *, is_group: bool
    ) -> None:  # fmt: skip
        self._world = world
        self._life = life
        self._load = load
        self._check = world.loads.begun(life, rows, deadline_ns=deadline_ns, is_group=is_group)

    async def wait(self) -> list[RowLoaded]:
        try:
            told = await self._load.wait()
        except asyncio.CancelledError:
            self._world.loads.given_up(self._check)
            raise
        self._world.loads.answered(self._check, told)
        return told

    def so_far(self) -> list[RowLoaded]:
        told = self._load.so_far()
        self._world.loads.told(self._check, told)
        return told

    def cancel(self) -> None:
        self._world.loads.given_up(self._check)
        self._load.cancel()
