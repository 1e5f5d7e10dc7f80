"""L3Tier: all that one sidecar has of L3, started, described, drained and closed together; or nothing, and why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cache_l2.judging import CommitJudge
from cache_l2.store import ArenaStore
from cache_l3.data_path import DataPath
from cache_l3.lossy_tally import LossyFigures, LossyTally
from cache_l3.opening import open_data_path
from cache_l3.record_store import L3Picture, RecordStore
from kv_policy.admission import L3Admission
from kv_types import limits
from kv_types.clock import Clock
from kv_types.errors import UnknownNamespaceError
from kv_types.ids import NamespaceId
from kv_types.namespace import Namespace
from sidecar.config import Settings
from sidecar.l3.admission import Admission
from sidecar.l3.choice import ChosenL3, NamespaceOf, bounds, record_store
from sidecar.l3.loader import Loader, Observer
from sidecar.l3.loads import Loads, RowLoaded
from sidecar.l3.reports import L3Reports
from sidecar.l3.residency import ResidentOnly
from sidecar.l3.store_queue import StoreQueue
from sidecar.l3.used_pages import LOOK_S
from sidecar.l3.write_behind import WriteBehind, WriteTerms
from sidecar.logs import SeldomLogger, logger

_SECOND_NS = 1_000_000_000

_log = logger("l3")


@dataclass(frozen=True, slots=True)
class L3State:
    """What there is to tell of L3 now. Counters are told by name, those that were never counted are left out."""

    why_off: str = ""
    """Why there is none; empty where there is one."""
    picture: L3Picture | None = None
    loads: Mapping[str, int] = field(default_factory=dict)
    """Of the planner: what was asked for, fetched and published, and what is under way."""
    stores: Mapping[str, int] = field(default_factory=dict)
    """Of write-behind: what became of the pages that clients stored, and what waits."""
    records: Mapping[str, int] = field(default_factory=dict)
    """Of the record store."""
    lossy: Mapping[NamespaceId | None, LossyFigures] = field(default_factory=dict)
    """What pages of namespaces that are stored lossily have lost; None: of all beyond the first."""
    choices: Mapping[str, float] = field(default_factory=dict)
    """Choices between loading and computing, and the estimate of L3's latency and bandwidth that they rest on."""


@dataclass(slots=True)
class _Parts:
    path: DataPath | None
    records: RecordStore
    loader: Loader
    behind: WriteBehind


class L3Tier:
    """Made and used in one running event loop. Nothing of it raises for what a server does."""

    def __init__(
        self,
        store: ArenaStore,
        judge: CommitJudge,
        chosen: ChosenL3,
        settings: Settings,
        *,
        clock: Clock,
        observe: Observer = lambda seconds, rows: None,
        records: RecordStore | None = None,
    ) -> None:
        """`observe` is told of every load that was answered; `records` takes the place of the servers, for tests.

        Raises OSError when there is no descriptor or thread to be had.
        """
        self._store = store
        self._why_off = chosen.why_off
        self._reports = L3Reports(clock)
        self._failures = SeldomLogger(_log, clock)
        self._looking: asyncio.Task[None] | None = None
        self._parts: _Parts | None = None
        self._lossy = LossyTally()
        self.loads: Loads = ResidentOnly(store)
        if chosen.servers is None and records is None:
            return
        path = None
        if records is None:
            assert chosen.servers is not None
            path = open_data_path(chosen.servers)
            records = record_store(
                chosen, settings, path, _namespace_of(store), lossy=self._lossy, clock=clock
            )
        self._why_off = ""

        def observed(seconds: float, rows: Sequence[RowLoaded]) -> None:
            admission.were_loaded(sum(row.pages - row.from_l3 for row in rows))
            observe(seconds, rows)

        loader = Loader(
            store, records, clock=clock, bounds=bounds(settings), observe=observed,
            weighs=settings.load_or_recompute == "auto",
        )  # fmt: skip
        admission = Admission(L3Admission(settings.l3_admission), loader.tier)
        behind = WriteBehind(
            store, records, judge,
            StoreQueue(
                pages_max=limits.L3_STORE_QUEUE_PAGES_MAX, bytes_max=settings.l3_queue,
                age_ns_max=int(limits.L3_STORE_QUEUE_S_MAX * _SECOND_NS),
            ),
            WriteTerms(ttl_s=int(settings.l3_ttl), deadline_ns=int(settings.l3_deadline * _SECOND_NS)),
            clock=clock, became_resident=loader.became_resident, stored_there=loader.stored_there,
            is_loading=lambda: loader.is_loading,
            admission=admission,
        )  # fmt: skip
        self._parts = _Parts(path, records, loader, behind)
        self.loads = loader

    async def start(self) -> None:
        """Begin to connect and to store; waits for no server."""
        if self._parts is not None:
            await self._parts.records.start()
            self._parts.behind.start()
            self._looking = asyncio.create_task(self._look(self._parts), name="l3 reports")

    async def _look(self, parts: _Parts) -> None:
        until_reports = 0.0
        while True:
            is_due = until_reports <= 0.0
            until_reports = (limits.L3_REPORT_S if is_due else until_reports) - LOOK_S
            try:
                if is_due:
                    picture = parts.records.describe()
                    self._reports.look(picture)
                    self._store.set_losing_costs(parts.loader.losing.costs(is_reachable=picture.is_readable))
                parts.behind.look_for_used()
            except Exception:  # noqa: BLE001  (whatever it is, the next look is another one)
                self._failures.error("a look at L3 failed in a way that it must not", exc_info=True)
            await asyncio.sleep(LOOK_S)

    async def drain(self, drain_s: float) -> None:
        """Answer all loads, and go on storing what waits for a part of the drain time; the rest is dropped and counted."""
        parts = self._parts  # `close` may overtake this
        if parts is None:
            return
        parts.loader.drain()
        await parts.behind.drain(drain_s * limits.L3_DRAIN_FRACTION)
        figures = parts.behind.statistics()
        if dropped := figures.get("dropped_closing", 0):
            _log.info("pages were not stored in L3 before the end", pages=dropped)

    async def close(self) -> None:
        """End everything; then no byte of the arena is touched any more. Idempotent."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        if self._looking is not None:
            self._looking.cancel()
        await parts.behind.close()
        landed = asyncio.create_task(parts.loader.close())
        await parts.records.close()
        await landed
        if parts.path is not None:
            parts.path.close()

    def state(self) -> L3State:
        """Tell how things stand, for status and metrics."""
        if self._parts is None:
            return L3State(why_off=self._why_off or "it has ended")
        return L3State(
            picture=self._parts.records.describe(),
            loads=self._parts.loader.statistics(),
            stores=self._parts.behind.statistics(),
            records=self._parts.records.statistics(),
            lossy=self._lossy.read(),
            choices=self._parts.loader.choices(),
        )


def _namespace_of(store: ArenaStore) -> NamespaceOf:
    """Tells a codec what the numbers of a page are."""

    def namespace_of(namespace: NamespaceId) -> Namespace | None:
        with contextlib.suppress(UnknownNamespaceError):
            return store.namespace(namespace).namespace
        return None

    return namespace_of
