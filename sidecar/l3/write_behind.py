"""WriteBehind: pages that clients have stored go on to L3, behind everybody's back: bounded, and never before loads.

A page's way: told right after its commit → queued by its instance → described when its turn comes (what was evicted or
invalidated meanwhile is gone, and counted) → asked for in L3, with others → what is there and surely valid is known, and
only lives longer; everything else is overwritten (rule R4) → pinned, stored, released.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cache_l2._native import Lease
from cache_l2.descriptions import terms_of
from cache_l2.judging import CommitJudge
from cache_l2.store import ArenaStore
from cache_l3.record_store import RecordName, RecordStore
from kv_policy.admission import L3Admission
from kv_policy.load_or_recompute import LoadOrRecompute
from kv_types.clock import Clock, Pause, unix_ms
from kv_types.errors import UnknownNamespaceError
from kv_types.ids import PageKey
from kv_types.limits import (
    ANCESTORS_WALKED_MAX,
    L3_STORE_ATTEMPTS_MAX,
    L3_STORE_BACKOFF_S_MAX,
    L3_STORE_BACKOFF_S_MIN,
    L3_STORE_BATCH_PAGES,
    L3_STORE_BYTES_IN_FLIGHT_MAX,
    L3_STORES_IN_FLIGHT_MAX,
    L3_STORES_IN_FLIGHT_WHILE_LOADING,
    L3_TURN_PAGES,
)
from kv_types.outcomes import MissReason, PutOutcome, Refused, RefuseReason
from kv_types.record import RESTS_ON_NOTHING, PageDescription, RecordHeader
from sidecar.l3.admission import Admission
from sidecar.l3.ancestors import AncestorKeeper
from sidecar.l3.store_queue import Queued, StoreQueue
from sidecar.l3.used_pages import UsedPages
from sidecar.logs import SeldomLogger, logger

_SECOND_NS = 1_000_000_000
_OUT_OF_REACH = (MissReason.L3_UNAVAILABLE, MissReason.DEADLINE, MissReason.OVERLOADED, MissReason.CLOSED)
"""What says nothing of a record: it is asked again later."""
_NO_ANSWER = (RefuseReason.UNREACHABLE, RefuseReason.DEADLINE, RefuseReason.OVERLOADED)
"""What says nothing of the server's room: it is sent again later."""

_log = logger("l3")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTerms:
    """How pages are stored."""

    ttl_s: int
    deadline_ns: int
    """How long one store or one question may take."""


class WriteBehind:
    """Carries pages of the arena into L3. On the event loop alone; `start` begins, `drain` and `close` end."""

    def __init__(
        self,
        store: ArenaStore,
        records: RecordStore,
        judge: CommitJudge,
        queue: StoreQueue,
        terms: WriteTerms,
        *,
        clock: Clock,
        pause: Pause = asyncio.sleep,
        wall_ms: Callable[[], int] = unix_ms,
        became_resident: Callable[[Iterable[PageKey]], None] = lambda keys: None,
        stored_there: Callable[[Iterable[PageKey]], None] = lambda keys: None,
        is_loading: Callable[[], bool] = lambda: False,
        admission: Admission | None = None,
    ) -> None:
        """`became_resident` and `stored_there` are told keys of pages that clients, and this, have stored."""
        self._store = store
        self._records = records
        self._judge = judge
        self._queue = queue
        self._admission = Admission(L3Admission.ALWAYS, LoadOrRecompute()) if admission is None else admission
        self._admission.queue_fill = lambda: queue.fill
        queue.on_too_old = self._admission.was_too_late
        self._used = UsedPages(store, self._admission, self._offer_used)
        self._terms = terms
        self._ancestors = AncestorKeeper(store, records, clock=clock, ttl_s=terms.ttl_s)
        self._clock = clock
        self._pause = pause
        self._wall_ms = wall_ms
        self._became_resident = became_resident
        self._stored_there = stored_there
        self._is_loading = is_loading
        self._told: deque[int] = deque()
        self._taking_in: asyncio.Handle | None = None
        self._work = asyncio.Event()
        self._changed = asyncio.Event()
        self._sending: dict[asyncio.Future[PutOutcome], Queued] = {}
        self._bytes_sending = 0
        self._in_batch = 0
        self._backoff_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failures = SeldomLogger(_log, clock)
        self._counts = queue.counts

    def start(self) -> None:
        """Begin to take in what clients store, and to store it."""
        self._store.on_stored = self.on_stored
        self._task = asyncio.get_running_loop().create_task(self._run(), name="l3 write-behind")

    def on_stored(self, instances: list[int]) -> None:
        """Clients have stored these pages, parents first."""
        if self._is_closed:
            return
        room = L3_TURN_PAGES * L3_STORE_BATCH_PAGES - len(self._told)
        self._queue.refuse(max(0, len(instances) - room))
        self._told.extend(instances[:room])
        if self._taking_in is None:
            self._taking_in = asyncio.get_running_loop().call_soon(self._take_in)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not (self._told or len(self._queue) or self._in_batch or self._sending)

    def statistics(self) -> Mapping[str, int]:
        """Counters of what became of pages, and what waits now.

        offered = stored + known + gone + left_here + dropped_… + refused_… + what is queued and in flight.
        """
        return {
            **self._counts,
            "queued_pages": len(self._queue) + len(self._told),
            "queued_bytes": self._queue.bytes,
            "in_flight": len(self._sending) + self._in_batch,
            "in_flight_bytes": self._bytes_sending,
            "oldest_ms": int(self._queue.oldest_s(self._clock.now_ns()) * 1000),
        }

    # --- the end ---

    async def drain(self, seconds: float) -> None:
        """Store what waits for so long at most; the rest is dropped and counted."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_idle and not self._task.done():
                    self._changed.clear()
                    await self._changed.wait()
        await self.close()

    async def close(self) -> None:
        """Begin nothing any more; what is on its way ends with the record store. Idempotent."""
        self._is_closed = True
        self._store.on_stored = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._taking_in is not None:
            self._taking_in.cancel()
        self._counts["dropped_closing"] += len(self._told)
        self._counts["offered"] += len(self._told)
        self._told.clear()
        self._queue.clear()

    # --- taking in ---

    def _take_in(self) -> None:
        """Describe what was told, so many in a turn, and queue it."""
        self._taking_in = None
        now_ns = self._clock.now_ns()
        keys = []
        for _ in range(min(len(self._told), L3_TURN_PAGES)):
            instance = self._told.popleft()
            page = self._store.describe(instance)
            if page is None:
                self._counts["offered"] += 1
                self._counts["gone"] += 1
                continue
            keys.append(page.key)
            if not self._admission.admits(instance, page.key, page.payload_bytes):
                self._counts["offered"] += 1
                self._counts["left_here"] += 1
            elif not self._queue.offer(instance, page.payload_bytes, now_ns=now_ns):
                self._admission.was_lost(instance)
        self._became_resident(keys)
        self._work.set()
        self._changed.set()
        if self._told:
            self._taking_in = asyncio.get_running_loop().call_soon(self._take_in)

    def look_for_used(self) -> None:
        """Offer pages that were asked for since they were stored and that L3 does not have, before they are evicted."""
        dropped = self._counts["dropped_queue_full"] + self._counts["dropped_too_old"]
        if self._is_closed or (self._admission.policy is L3Admission.ALWAYS and not dropped):
            return  # all went there already
        if self._used.look(self._clock.now_ns() / _SECOND_NS):
            self._work.set()

    def _offer_used(self, instance: int, size: int) -> None:
        self._counts["offered_used"] += 1
        if not self._queue.offer(instance, size, now_ns=self._clock.now_ns()):
            self._admission.was_lost(instance)

    # --- storing ---

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            batch = self._queue.take(L3_STORE_BATCH_PAGES, now_ns=self._clock.now_ns())
            self._changed.set()
            if not batch:
                self._work.clear()
                continue
            self._in_batch = len(batch)
            try:
                was_asked = await self._carry(batch)
            except Exception:  # noqa: BLE001  (whatever it is, it is no reason to store nothing any more)
                self._failures.error("storing pages in L3 failed in a way that it must not", exc_info=True)
                self._counts["dropped_failed"] += self._in_batch
                self._in_batch = 0
                self._back_off(self._backoff_s)
                was_asked = True
            finally:
                self._counts["dropped_closing"] += self._in_batch  # none, unless it was ended in between
                self._in_batch = 0
                self._changed.set()
            if not was_asked:  # no reason to wait: nothing was learnt of L3, which may answer again
                await asyncio.sleep(0)
            elif self._backoff_s:
                await self._pause(self._backoff_s)

    async def _carry(self, batch: Sequence[Queued]) -> bool:
        """Store what is to be stored of a batch; returns whether L3 was asked, as it is unless all pages are gone."""
        described = []
        for queued in batch:
            page = self._store.describe(queued.instance)
            if page is None:
                self._end("gone")
            else:
                described.append((queued, page))
        if not described:
            return False
        names = [RecordName(page.namespace, page.key) for _, page in described]
        found = await self._records.probe(names, deadline_ns=self._deadline_ns())
        self._put_back(
            [queued for (queued, _), there in zip(described, found, strict=True) if there in _OUT_OF_REACH]
        )
        known: dict[RecordName, int] = {}
        for (queued, page), there in zip(described, found, strict=True):
            if isinstance(there, RecordHeader) and await self._is_known(page, there.page):
                known[RecordName(page.namespace, page.key)] = self._ttl_of(there.page)
                self._store.set_elsewhere(queued.instance, True)
                self._end("known")
            elif there not in _OUT_OF_REACH:
                await self._send(queued, page)
        if known:
            await self._records.refresh(known, deadline_ns=self._deadline_ns())
            self._ancestors.there(name.key for name in known)
        if not self._backoff_s:
            await self._keep_ancestors([page for _, page in described])
        return True

    async def _keep_ancestors(self, pages: Sequence[PageDescription]) -> None:
        for instance in await self._ancestors.missing(pages, deadline_ns=self._deadline_ns()):
            self._store.set_elsewhere(instance, False)  # until it is there again
            page = self._store.describe(instance)
            if page is not None:
                self._counts["restored"] += 1
                self._queue.offer(instance, page.payload_bytes, now_ns=self._clock.now_ns())
                self._work.set()

    def _put_back(self, out_of_reach: Sequence[Queued]) -> None:
        """Try them again, later each time while L3 stays out of reach."""
        self._queue.put_back(out_of_reach)
        self._in_batch -= len(out_of_reach)
        if out_of_reach:
            self._back_off(self._backoff_s)
        else:
            self._backoff_s = 0.0

    def _back_off(self, before_s: float) -> None:
        """Wait twice as long as before what failed now: many that fail together are one failure."""
        wanted_s = min(max(L3_STORE_BACKOFF_S_MIN, 2 * before_s), L3_STORE_BACKOFF_S_MAX)
        self._backoff_s = max(self._backoff_s, wanted_s)

    async def _is_known(self, page: PageDescription, there: PageDescription) -> bool:
        """Whether what L3 has is this page and surely valid, for everybody: a doubt is a reason to overwrite it (rule R4)."""
        if (there.parent, there.payload_bytes) != (page.parent, page.payload_bytes):
            return False
        if there.birth == page.birth:
            return True
        if there.expires_ms and not 0 < page.expires_ms <= there.expires_ms:
            return False  # it would be gone before this one
        await asyncio.sleep(0)  # judging may walk its chain
        try:
            namespace = self._store.namespace(page.namespace).namespace
        except UnknownNamespaceError:
            return False
        origin = terms_of(there).origin(lineage_known=there.rests_on == RESTS_ON_NOTHING)
        chain = partial(self._store.chain, page.key, pages_max=ANCESTORS_WALKED_MAX)
        return self._judge.judge_loaded(namespace, there.stamp, origin, chain) is RefuseReason.NONE

    async def _send(self, queued: Queued, page: PageDescription) -> None:
        while not self._has_room(queued.size):
            self._changed.clear()
            await self._changed.wait()
        lease = self._store.pin(queued.instance)
        ttl_s = self._ttl_s(queued.instance)
        if lease is None or not ttl_s:
            if lease is not None:
                lease.release()
            self._end("gone")
            return
        payload, began_ns = lease[0], self._clock.now_ns()
        try:
            future = self._records.store(page, payload, ttl_s=ttl_s, deadline_ns=self._deadline_ns())
        except BaseException:
            payload.release()  # or the traceback would keep the page
            lease.release()
            raise
        self._in_batch -= 1
        self._sending[future] = queued
        self._bytes_sending += queued.size
        future.add_done_callback(partial(self._sent, lease, page.key, self._backoff_s, began_ns))

    def _has_room(self, size: int) -> bool:
        if not self._sending:
            return True
        pages = L3_STORES_IN_FLIGHT_WHILE_LOADING if self._is_loading() else L3_STORES_IN_FLIGHT_MAX
        return len(self._sending) < pages and self._bytes_sending + size <= L3_STORE_BYTES_IN_FLIGHT_MAX

    def _sent(
        self, lease: Lease, key: PageKey, backoff_s: float, began_ns: int, future: asyncio.Future[PutOutcome]
    ) -> None:
        queued = self._sending.pop(future)
        self._bytes_sending -= queued.size
        lease.release()
        self._changed.set()
        outcome = future.result()
        if not isinstance(outcome, Refused):
            self._counts["stored"] += 1
            now_ns = self._clock.now_ns()
            self._admission.was_stored(
                queued.size,
                (now_ns - began_ns) / _SECOND_NS,
                beside=len(self._sending),
                now_s=now_ns / _SECOND_NS,
            )
            self._ancestors.there((key,))
            self._store.set_elsewhere(queued.instance, True)
            self._stored_there((key,))
        elif self._may_try_again(queued, outcome.reason):
            self._queue.put_back([queued._replace(attempts=queued.attempts + 1)])
            self._back_off(backoff_s)
            self._work.set()
        else:
            self._counts[f"refused_{outcome.reason.name.lower()}"] += 1
            self._admission.was_refused(queued.instance, now_s=self._clock.now_ns() / _SECOND_NS)

    def _may_try_again(self, queued: Queued, reason: RefuseReason) -> bool:
        return reason in _NO_ANSWER and not self._is_closed and queued.attempts + 1 < L3_STORE_ATTEMPTS_MAX

    def _end(self, how: str) -> None:
        self._counts[how] += 1
        self._in_batch -= 1

    def _ttl_s(self, instance: int) -> int:
        """No record outlives its page's time."""
        left_s = self._store.expires_in_s(instance)
        return self._terms.ttl_s if left_s is None else min(self._terms.ttl_s, left_s)

    def _ttl_of(self, there: PageDescription) -> int:
        """The same of a record that is there."""
        left_s = (there.expires_ms - self._wall_ms()) // 1000 if there.expires_ms else self._terms.ttl_s
        return max(1, min(self._terms.ttl_s, left_s))

    def _deadline_ns(self) -> int:
        return self._clock.now_ns() + self._terms.deadline_ns
