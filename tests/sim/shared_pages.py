"""L3 as one life of a sidecar has it: all of the product's own, over simulated connections; and who asks it for pages."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cache_l3.address import RedisServers
from kv_types.loading import ComputeCost, LoadDecision
from sidecar.config import Settings
from sidecar.l3.choice import ChosenL3
from sidecar.l3.loads import Load, LoadRow, RowLoaded
from sidecar.l3.tier import L3Tier

if TYPE_CHECKING:
    from tests.sim.load_truth import LoadCheck
    from tests.sim.sidecar import Life
    from tests.sim.world import World

STORE_S = 0.5


class SharedPages:
    """Implements Loads for those who ask this life for pages; what they are told is held against the truth."""

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self._tier: L3Tier | None = None
        self.is_started = False

    async def start(self) -> None:
        """Begin, in the life's own loop."""
        life, plan = self._life, self._world.plan
        addresses: Any = tuple(life.addresses_of(self._world.page_servers)) if plan.l3 else ()
        chosen = ChosenL3(
            RedisServers(addresses, is_cluster=False) if plan.l3 else None, holds_log=plan.l3 == "log"
        )
        settings = _settings(plan.connections, plan.record_ttl_s)
        self._tier = L3Tier(life.store, life.validity, chosen, settings, clock=life.sidecar.node)
        await self._tier.start()
        self.is_started = True

    @property
    def is_available(self) -> bool:
        """Whether there is anything to load from."""
        return bool(self._world.plan.l3)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be stored."""
        figures = self.statistics()
        return not any(figures.get(f"stores_{name}") for name in ("queued_pages", "in_flight"))

    async def end(self) -> None:
        """As the sidecar takes its leave: answer all, store what can be stored, end."""
        if self._tier is not None:
            await self._tier.drain(0.4)
            await self._tier.close()

    def begin(
        self,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> Load:
        """See Loads."""
        assert self._tier is not None, "nobody has attached before it began"
        check = self._world.loads.begun(
            self._life, rows, deadline_ns=deadline_ns, is_group=group, compute=compute
        )
        load = self._tier.loads.begin(rows, deadline_ns=deadline_ns, group=group, compute=compute)
        return CheckedLoad(self._world, check, load)

    def statistics(self) -> Mapping[str, int]:
        """All counters and gauges of it; none when there is no L3, or none any more."""
        state = self._tier.state() if self._tier is not None else None
        if state is None or state.why_off:
            return {}
        parts = {"loads": state.loads, "stores": state.stores, "records": state.records}
        return {f"{part}_{name}": count for part, counts in parts.items() for name, count in counts.items()}


@functools.cache
def _settings(connections: int, ttl_s: int) -> Settings:
    return Settings(fleet="fleet", l3_connections=connections, l3_ttl=ttl_s, l3_deadline=STORE_S)


class CheckedLoad:
    """A load whose answer must be true, and come in time."""

    def __init__(self, world: World, check: LoadCheck, load: Load) -> None:
        self._world = world
        self._check = check
        self._load = load

    @property
    def decision(self) -> LoadDecision | None:
        """See Load."""
        return self._load.decision

    async def wait(self) -> list[RowLoaded]:
        """See Load."""
        try:
            told = await self._load.wait()
        except asyncio.CancelledError:
            self._world.loads.given_up(self._check)
            raise
        with self._world.watching():
            self._world.loads.answered(self._check, told, self._load.decision)
        return told

    def so_far(self) -> list[RowLoaded]:
        """See Load."""
        told = self._load.so_far()
        with self._world.watching():
            self._world.loads.told(self._check, told, self._load.decision)
        return told

    def cancel(self) -> None:
        """See Load."""
        self._world.loads.given_up(self._check)
        self._load.cancel()
