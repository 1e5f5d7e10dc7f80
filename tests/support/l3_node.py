"""Nodes with a small arena and what the daemon does with L3, on one shelf, one log and one clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cache_l2.store import NamespaceRecord
from cache_l3.record_store import RecordName
from invalidation.local_log import LocalLog
from kv_policy.admission import L3Admission
from kv_types.clock import BoottimeClock
from kv_types.ids import PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import STORED, Hit, PutOutcome
from kv_types.record import PageDescription
from sidecar.l3.admission import Admission
from sidecar.l3.loader import Loader
from sidecar.l3.loads import LoadRow, RowLoaded
from sidecar.l3.plan import Bounds
from sidecar.l3.store_queue import StoreQueue
from sidecar.l3.write_behind import WriteBehind, WriteTerms
from tests.support.manual_time import ManualTime
from tests.support.memory_records import MemoryRecords, MemoryShelf, other_birth
from tests.support.pages import chain, namespace_of, packed, page_of
from tests.support.stores import add, make_store

SECOND_NS = 1_000_000_000
SMALL = Bounds(
    requests=16, pages=4096, flights=64, flight_bytes=1 << 20, run_pages=8, probe_pages=64, absent_pages=1024,
    absent_ns=SECOND_NS // 4, put_awaited_ns=SECOND_NS // 10, sent_ns=SECOND_NS // 5,
)  # fmt: skip


class LaterTask:
    """A timer on the clock of a test."""

    def __init__(self, time: ManualTime, delay_s: float, call: Callable[[], None]) -> None:
        async def wait() -> None:
            await time.pause(delay_s)
            call()

        self._task = asyncio.get_running_loop().create_task(wait())

    def cancel(self) -> None:
        self._task.cancel()


class Node:
    """One sidecar's store, loader and write-behind."""

    def __init__(
        self,
        shelf: MemoryShelf,
        log: LocalLog,
        time: ManualTime,
        *,
        bounds: Bounds = SMALL,
        space: Namespace | None = None,
        queue_pages: int = 1024,
        queue_bytes: int = 1 << 30,
        admission: L3Admission = L3Admission.ALWAYS,
        **config: Any,
    ) -> None:
        self.time = time
        self.store = make_store(time, log=log, **config)
        self.record: NamespaceRecord = add(self.store, space or namespace_of())
        self.records = MemoryRecords(shelf, clock=time, pause=time.pause)
        self.answered: list[tuple[float, Sequence[RowLoaded]]] = []
        self.loader = Loader(
            self.store, self.records, clock=time, bounds=bounds,
            later=lambda delay_s, call: LaterTask(time, delay_s, call),
            observe=lambda seconds, rows: self.answered.append((seconds, rows)),
        )  # fmt: skip
        self.queue = StoreQueue(pages_max=queue_pages, bytes_max=queue_bytes, age_ns_max=60 * SECOND_NS)
        self.behind = WriteBehind(
            self.store, self.records, self.store.validity, self.queue,
            WriteTerms(ttl_s=100, deadline_ns=SECOND_NS), clock=time, pause=time.pause,
            wall_ms=lambda: time.now_ns() // 1_000_000,
            became_resident=self.loader.became_resident, stored_there=self.loader.stored_there,
            is_loading=lambda: self.loader.is_loading, admission=Admission(admission, self.loader.tier),
        )  # fmt: skip

    def put_for(self, keys: Sequence[PageKey], *, ttl_s: int) -> None:
        """Store new pages that have so many seconds to live."""
        store, row = self.store, self.store.own_row
        places = store.reserve(row, self.record, None, packed(list(keys)), ttl_s)
        for key, (_, _, _, offset) in zip(keys, places, strict=True):
            memoryview(store.reader.slot(offset, self.record.page_bytes)).cast("B")[:] = page_of(
                key, self.record.page_bytes
            )
        store.commit(row, [one[2] for one in places], stamp=store.stamp(), rests_on=0)

    def put(self, keys: Sequence[PageKey], *, start: int = 0) -> list[PutOutcome]:
        sources = [memoryview(page_of(key, self.record.page_bytes)) for key in keys[start:]]
        return self.store.put(self.record.id, keys, sources, stamp=self.store.stamp(), start=start)

    def shelve(
        self,
        keys: Sequence[PageKey],
        *,
        stamp: Stamp | None = None,
        start: int = 0,
        **changes: Any,
    ) -> None:
        """Put records on the shelf, as another node would have."""
        for index, key in list(enumerate(keys))[start:]:
            page = PageDescription(
                **{
                    "namespace": self.record.id, "key": key, "parent": keys[index - 1] if index else None,
                    "stamp": stamp or self.store.stamp(), "payload_bytes": self.record.page_bytes,
                    "birth": other_birth(), **changes,
                }
            )  # fmt: skip
            outcome = self.records.write(page, memoryview(page_of(key, self.record.page_bytes)), ttl_s=100)
            assert outcome == STORED

    def name(self, key: PageKey) -> RecordName:
        return RecordName(self.record.id, key)

    def row(self, keys: Sequence[PageKey], *, start: int = 0) -> LoadRow:
        return LoadRow(self.record.id, keys[start - 1] if start else None, packed(list(keys[start:])))

    async def load(
        self, *chains: Sequence[PageKey], seconds: float = 1.0, group: bool = False
    ) -> list[RowLoaded]:
        rows = [self.row(keys) for keys in chains]
        return await self.loader.begin(rows, deadline_ns=self.within(seconds), group=group).wait()

    def within(self, seconds: float) -> int:
        return self.time.now_ns() + int(seconds * SECOND_NS)

    def resident(self, keys: Sequence[PageKey]) -> int:
        found = self.store.look_up(self.record.id, list(keys))
        return found.pages if isinstance(found, Hit) else 0

    def check_bytes(self, keys: Sequence[PageKey]) -> None:
        """Every page is there, and each byte of it is right."""
        with self.store.lease(self.record.id, list(keys)) as lease:
            assert lease.pages == len(keys)
            for key, view in zip(keys, lease, strict=True):
                assert bytes(view) == page_of(key, self.record.page_bytes)

    @property
    def reserved(self) -> int:
        """Places that somebody may still write to."""
        figures = self.store.statistics()
        return figures["entries_reserved"] + figures["entries_quarantined"]

    async def close(self) -> None:
        await self.behind.close()
        closing = asyncio.create_task(self.loader.close())
        await self.records.close()
        await closing
        assert self.reserved == 0, "no place is leaked"
        assert self.store.reader.held() == 0, "no page stays pinned"
        self.store.check_invariants()
        self.store.close()


@asynccontextmanager
async def nodes(count: int = 1, **options: Any) -> AsyncIterator[list[Node]]:
    """Nodes that share everything that nodes share; whatever happened, nothing is leaked at the end."""
    time = ManualTime(BoottimeClock().now_ns())
    shelf = MemoryShelf(clock=time)
    log = LocalLog(clock=time)
    made = [Node(shelf, log, time, **options) for _ in range(count)]
    yield made
    for node in made:
        await node.close()


def fresh(pages: int) -> list[PageKey]:
    return chain(pages)
