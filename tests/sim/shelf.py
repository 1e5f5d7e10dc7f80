"""A model of L3: pages with their stamps on a shelf that all nodes share, written behind and promoted with a check at publish.

No code of the product does this yet. What it must do is rule R2 (whatever is promoted is judged when it is published, not
only when it was fetched) and rule R4 (an invalid page on the shelf counts as absent, and is written over).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_l2.attach_messages import Commit
from kv_types.ids import KEY_BYTES, PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import PutStatus, RefuseReason
from kv_types.selectors import Origin
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE
from tests.sim.arena_entries import Entry
from tests.sim.clockwork import MS, Signal
from tests.sim.environment import PAGE_BYTES

if TYPE_CHECKING:
    from tests.sim.sidecar import Life
    from tests.sim.world import World

QUEUE_MAX = 8


@dataclass(frozen=True, slots=True)
class ShelfRecord:
    """A page as it rests in L3."""

    namespace: Namespace
    chain: tuple[PageKey, ...]
    stamp: Stamp
    producer: bytes
    tags: tuple[bytes, ...]
    from_ms: int
    until_ms: int
    rests_on_nothing: bool
    """Whether whoever stored it computed it from no page at all: one that is stored again is somebody else's."""
    payload: bytes

    @property
    def origin(self) -> Origin:
        """Nobody keeps what an ancestor on the shelf was made of, so that it may be anything (invariant I6)."""
        return Origin(
            producer=self.producer, tags=self.tags, from_ms=self.from_ms, until_ms=self.until_ms,
            revision=self.stamp.revision, lineage_known=len(self.chain) == 1 and self.rests_on_nothing,
        )  # fmt: skip


class ShelfKeeper:
    """One sidecar's half of L3."""

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self._shelf = world.shelf
        self._queue: deque[ShelfRecord] = deque()
        self._has_work = asyncio.Event()
        self._promoting: set[PageKey] = set()
        self.dropped = 0
        """Pages that were not written because too much waited."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._has_work.is_set()

    # --- writing behind ---

    def stored(self, entry: Entry, terms: Commit) -> None:
        """A client's page was committed: it goes to the shelf as well, unless too much waits already."""
        if len(self._queue) >= QUEUE_MAX:
            self.dropped += 1
            return
        chain = self._life.arena.chain(entry.key, pages_max=1 << 16) or b""
        keys = tuple(PageKey(chain[at : at + KEY_BYTES]) for at in range(0, len(chain), KEY_BYTES))
        self._queue.append(
            ShelfRecord(
                namespace=self._life.store.namespace_of_number(entry.namespace_slot).namespace, chain=keys,
                stamp=terms.stamp, producer=terms.producer, tags=terms.tags, from_ms=terms.computed_from_ms,
                until_ms=terms.computed_until_ms, rests_on_nothing=terms.rests_on == NO_INSTANCE,
                payload=b"".join(word.to_bytes(8, "little") for word in entry.place),
            )
        )  # fmt: skip
        self._has_work.set()

    async def run(self) -> None:
        """Write what waits, one after the other."""
        while True:
            await self._has_work.wait()
            while self._queue:
                await self._linger()
                self._write(self._queue.popleft())
            self._has_work.clear()

    def _write(self, record: ShelfRecord) -> None:
        there = self._shelf.get(record.chain[-1])
        if there is not None and self._judge(there) is RefuseReason.NONE:
            return  # a valid page is there: what is known is not sent again
        self._shelf[record.chain[-1]] = record

    # --- promoting ---

    def ask(self, space: Namespace, keys: Sequence[PageKey]) -> Signal:
        """Bring what the shelf has of a chain into L2; the signal is set when that is over."""
        done = Signal(self._world.clockwork)
        self._life.loop.call_soon(lambda: self._life.spawn(self._promote(space, keys, done)))
        return done

    async def _promote(self, space: Namespace, keys: Sequence[PageKey], done: Signal) -> None:
        for index, key in enumerate(keys):
            if self._life.arena.find(key) is not None:
                continue
            record = self._shelf.get(key)
            if key in self._promoting or record is None or self._judge(record) is not RefuseReason.NONE:
                break
            self._promoting.add(key)
            await self._linger()
            is_there = self._publish(space, record, keys[index - 1] if index else None)
            self._promoting.discard(key)
            if not is_there:
                break
        done.set()

    def _publish(self, space: Namespace, record: ShelfRecord, parent: PageKey | None) -> bool:
        """Judged by the store as every commit is, now and by the record's own stamp."""
        store = self._life.store
        kept = store.register(space.canonical, PAGE_BYTES)
        ((status, _, reservation, offset),) = store.reserve(
            store.own_row, kept, parent, record.chain[-1], ttl_s=None
        )
        if status != PutStatus.STORED:
            return status == PutStatus.KNOWN
        store.reader.fill([offset], [record.payload], page_bytes=PAGE_BYTES)
        ((status, _),) = store.commit(
            store.own_row, [reservation], stamp=record.stamp, producer=record.producer, tags=record.tags,
            computed_from_ms=record.from_ms, computed_until_ms=record.until_ms,
            rests_on=NO_INSTANCE if record.origin.lineage_known else UNKNOWN_INSTANCE,
        )  # fmt: skip
        return status == PutStatus.STORED

    def _judge(self, record: ShelfRecord) -> RefuseReason:
        return self._life.validity.judge(record.namespace, record.stamp, record.origin, lambda: record.chain)

    async def _linger(self) -> None:
        longest_ns = 5 * MS if self._world.is_quiet else self._world.plan.shelf_ns
        await asyncio.sleep(self._world.clockwork.random.random() * longest_ns / 1e9)
