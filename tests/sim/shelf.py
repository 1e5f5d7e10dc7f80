"""A model of L3: pages with their descriptions on a shelf that all nodes share, written behind, and loaded into L2.

The shelf stands for Redis and what moves bytes to it. All that decides about a page is the product's: what is known of it
when it is written, what is loaded, and what is published (rules R2 and R4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_l2.namespaces import NamespaceRecord
from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.record import PageDescription
from tests.sim.clockwork import MS, Signal
from tests.sim.environment import PAGE_BYTES

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

QUEUE_MAX = 8


@dataclass(frozen=True, slots=True)
class ShelfRecord:
    """A page as it rests in L3."""

    page: PageDescription
    payload: bytes


class ShelfKeeper:
    """One sidecar's half of L3."""

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self._shelf = world.shelf
        self._queue: deque[int] = deque()
        self._has_work = asyncio.Event()
        self._loading: set[PageKey] = set()
        self.dropped = 0
        """Pages that were not written because too much waited, or because they were gone at their turn."""
        life.store.on_stored = self._stored

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._has_work.is_set()

    # --- writing behind ---

    def _stored(self, instances: list[int]) -> None:
        """A client's pages were committed: they go to the shelf as well, unless too much waits already."""
        for instance in instances:
            if len(self._queue) >= QUEUE_MAX:
                self.dropped += 1
                continue
            self._queue.append(instance)
            self._has_work.set()

    async def run(self) -> None:
        """Write what waits, one after the other."""
        while True:
            await self._has_work.wait()
            while self._queue:
                await self._linger()
                await self._write(self._queue.popleft())
            self._has_work.clear()

    async def _write(self, instance: int) -> None:
        store = self._life.store
        page, lease = store.describe(instance), store.pin(instance)
        if page is None or lease is None:
            self.dropped += 1
            return
        with lease:
            there = self._shelf.get(page.key)
            if there is not None and store.judge_shared(instance, there.page) is RefuseReason.NONE:
                return  # a valid page is there: what is known is not sent again
            await self._linger()
            self._shelf[page.key] = ShelfRecord(page, bytes(lease[0]))

    # --- loading ---

    def ask(self, space: Namespace, keys: Sequence[PageKey]) -> Signal:
        """Bring what the shelf has of a chain into L2; the signal is set when that is over."""
        done = Signal(self._world.clockwork)
        self._life.loop.call_soon(lambda: self._life.spawn(self._load(space, keys, done)))
        return done

    async def _load(self, space: Namespace, keys: Sequence[PageKey], done: Signal) -> None:
        kept = self._life.store.register(space.canonical, PAGE_BYTES)
        resident = next(
            (index for index, key in enumerate(keys) if self._life.arena.find(key) is None), len(keys)
        )
        parent = keys[resident - 1] if resident else None
        run = self._probed(kept, parent, keys[resident:])
        wanted = [record.page.key for record in run]
        self._loading.update(wanted)
        if run:
            await self._fill(kept, parent, run)
        self._loading.difference_update(wanted)
        done.set()

    def _probed(
        self, kept: NamespaceRecord, parent: PageKey | None, keys: Sequence[PageKey]
    ) -> list[ShelfRecord]:
        """What the shelf has of a run that nobody loads yet, as far as it is valid now."""
        run: list[ShelfRecord] = []
        for key in keys:
            record = self._shelf.get(key)
            if record is None or key in self._loading:
                break
            run.append(record)
        reasons = self._life.store.judge_probed(kept, parent, [record.page for record in run])
        return [record for record, reason in zip(run, reasons, strict=True) if reason is RefuseReason.NONE]

    async def _fill(self, kept: NamespaceRecord, parent: PageKey | None, run: list[ShelfRecord]) -> None:
        """Judged by the store as every commit is, when it is published and by the page's own stamp."""
        store = self._life.store
        rows = store.reserve_for_load(kept, parent, b"".join(record.page.key for record in run))
        places = [
            (reservation, offset) for status, _, reservation, offset in rows if status == PutStatus.STORED
        ]
        for (reservation, offset), record in zip(places, run, strict=False):
            await self._linger()
            store.reader.fill([offset], [record.payload], page_bytes=PAGE_BYTES)
            store.publish_loaded(reservation, record.page)
        store.abort(store.own_row, [reservation for reservation, _ in places[len(run) :]])

    async def _linger(self) -> None:
        longest_ns = 5 * MS if self._world.is_quiet else self._world.plan.shelf_ns
        await asyncio.sleep(self._world.clockwork.random.random() * longest_ns / 1e9)
