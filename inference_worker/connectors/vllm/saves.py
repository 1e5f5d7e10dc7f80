"""Saves: a thread that puts pages out of the engine's blocks, behind the passes that computed them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cache_l2._native import ScatteredPage
from inference_worker.buffers import PageSource
from inference_worker.connectors.vllm.plan import SaveJob
from inference_worker.connectors.vllm.worker_shard import HeldView, Shard
from inference_worker.deadlines import Deadline
from inference_worker.namespaces import RegisteredNamespace
from inference_worker.reused import ReusedPages
from kv_types.engine_limits import SAVE_BATCH_BYTES_MAX, SAVE_JOBS_QUEUED_MAX
from kv_types.errors import StrataError
from kv_types.ids import KEY_BYTES
from kv_types.limits import GRANTS_PER_CLIENT_MAX
from kv_types.outcomes import KNOWN, Hit, PutOutcome, Refused, RefuseReason

_log = logging.getLogger("stratakv.vllm")
_GRACE_S = 0.05
"""How much longer than a put's deadline the end waits for the thread."""
_COPY_POLL_S = 0.0005
"""How often a preemption looks whether copies are over, which tell nobody."""
_DROPPED = frozenset({"queue_full", "not_held", "closing", "interrupted", "no_thread"})
"""Why a job was not carried out, or not to its end; all else refuses pages."""
_TOO_LARGE = (
    "a page of this engine has %d bytes, more than a segment of the sidecar's arena, so that none is stored: give stratakv serve "
    "a larger --arena-size or --segment-size, or this engine a smaller --block-size or page_tokens"
)


@dataclass(slots=True, eq=False)
class _Save:
    """One order. `stored`: pages from its start that are stored or known. `is_copying`: blocks are copied for a put now;
    `sources`: what a put that is under way reads."""

    job: SaveJob
    held: HeldView | None
    stored: int = 0
    is_cancelled: bool = False
    is_copying: bool = False
    sources: Sequence[PageSource] = ()
    why: Counter[str] = field(default_factory=Counter)

    def revoke_if_cancelled(self) -> list[ScatteredPage]:
        """Let no put begin to read the blocks any more; returns those that one may be reading."""
        pages = [page for page in self.sources if isinstance(page, ScatteredPage) and self.is_cancelled]
        for page in pages:
            page.revoke()
        return pages


class Saver:
    """`enqueue` costs the engine a queue's lock; all else happens in the thread. Every job is told as over in the end."""

    def __init__(self, shard: Shard, *, deadline_s: float, stores: bool = True) -> None:
        """`deadline_s`: of one put. Without `stores` every job is over at once: another rank stores the same pages."""
        self._shard = shard
        self._deadline_s = deadline_s
        self._stores = stores
        self._changed = threading.Condition()
        self._queue: deque[_Save] = deque()
        self._now: _Save | None = None
        self._pending: Counter[str] = Counter()
        self._over: dict[int, int] = {}
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    @property
    def queued(self) -> int:
        """Jobs that wait or are carried out."""
        return self._pending.total()

    def enqueue(self, job: SaveJob, held: HeldView | None) -> None:
        """Take an order. A full queue drops it: that is a miss later."""
        if not self._stores:
            with self._changed:
                self._over[job.number] = job.pages - job.start
            return
        save = _Save(job, None if held is None else self._shard.holds.share(held))
        with self._changed:
            self._pending[job.request_id] += 1
            if held is None or self._is_closing or len(self._queue) >= SAVE_JOBS_QUEUED_MAX:
                # Without a hold no fence waits for us, and nothing may be stored that rests on what we read.
                save.why["not_held" if held is None else "closing" if self._is_closing else "queue_full"] += 1
                self._end(save)
                return
            if not self._has_thread():
                save.why["no_thread"] += 1
                self._end(save)
                return
            self._queue.append(save)
            self._changed.notify_all()

    def _has_thread(self) -> bool:
        """Whether the thread runs, which the first order starts; False: this machine gives none now."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="stratakv-save", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def collect(self) -> dict[int, int]:
        """Numbers of the jobs that ended since the last call, and how many pages from each one's start stand."""
        with self._changed:
            over, self._over = self._over, {}
        return over

    def is_pending(self, request_id: str) -> bool:
        """Whether a request has jobs that have not ended."""
        return request_id in self._pending

    def finish_reading(self, request_ids: Collection[str]) -> None:
        """Return when no block of these requests is read any more; what waits of theirs is dropped.

        Waits for no more than copies of one batch: a put whose copy has not begun, or that waits for the sidecar, is not
        waited for, since it can't read them any more.
        """
        with self._changed:
            for save in [one for one in self._queue if one.job.request_id in request_ids]:
                self._queue.remove(save)
                save.why["interrupted"] += 1
                self._end(save)
            now = self._now
            if now is None or now.job.request_id not in request_ids:
                return
            now.is_cancelled = True
            pages = now.revoke_if_cancelled()
            while now.is_copying or any(page.is_read for page in pages):
                self._changed.wait(_COPY_POLL_S)

    def drain(self, deadline_s: float) -> bool:
        """Wait until all orders are carried out; whether they were within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, deadline_s)

    def settle(self, deadline_s: float) -> None:
        """Have all orders carried out within the time, drop the rest: no block is read behind this."""
        if not self.drain(deadline_s):
            with self._changed:
                pending = set(self._pending)
            self.finish_reading(pending)

    def close(self, *, drain_s: float) -> None:
        """Carry out what waits, within the time, drop the rest, and end the thread."""
        self.drain(drain_s)
        with self._changed:
            self._is_closing = True
            while self._queue:
                save = self._queue.popleft()
                save.why["closing"] += 1
                self._end(save)
            if self._now is not None:
                self._now.is_cancelled = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._deadline_s + _GRACE_S)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if self._is_closing:
                    return
                save = self._now = self._queue.popleft()
            began = time.perf_counter()
            try:
                self._carry_out(save)
            except StrataError as error:
                save.why["interrupted" if save.is_cancelled else error.code] += 1
            except Exception:  # noqa: BLE001  (whatever it is, these pages are misses later)
                _log.exception("a save for request %s failed", save.job.request_id)
                save.why["error"] += 1
            with self._changed:
                self._now = None
                self.seconds += time.perf_counter() - began
                self._end(save)

    def _carry_out(self, save: _Save) -> None:
        job, shard = save.job, self._shard
        packed = job.keys[shard.rank]
        computed_from = job.computed_from
        if computed_from is None:
            computed_from = shard.origins.noted_until(packed, job.start)
        with shard.spaces.using(job.variant) as space:
            known = self._known(space, packed, job)
            shard.origins.not_stored(packed, job.start, job.start + known)
            save.stored = known
            self.counts["known_pages"] += known
            if job.start + known == job.pages:
                return
            reused = shard.origins.reused_for(job.request_id, packed, computed_from)
            batch = max(1, min(GRANTS_PER_CLIENT_MAX, SAVE_BATCH_BYTES_MAX // shard.page_bytes))
            first = job.start + known
            while first < job.pages and not save.is_cancelled:
                end = min(job.pages, first + batch)
                outcomes = self._put(save, space, packed[: end * KEY_BYTES], first, reused)
                if not self._note(save, packed, first, outcomes, reused):
                    break
                first = end
            if save.is_cancelled:
                save.why["interrupted"] += 1

    def _known(self, space: RegisteredNamespace, packed: bytes, job: SaveJob) -> int:
        """Pages from the job's start on that somebody has stored: neither read nor sent."""
        found = self._shard.client.match(space, packed)
        return max(0, found.pages - job.start) if isinstance(found, Hit) else 0

    def _put(
        self, save: _Save, space: RegisteredNamespace, packed: bytes, first: int, reused: ReusedPages
    ) -> list[PutOutcome]:
        job, shard = save.job, self._shard
        deadline = Deadline(self._deadline_s)
        blocks, end = shard.blocks_per_page, len(packed) // KEY_BYTES
        ids = job.block_ids[(first - job.start) * blocks : (end - job.start) * blocks]
        if not self._sources_are_taken(save, ids, end - first):
            return []
        try:
            return shard.client.put_computed(
                space,
                packed,
                [*save.sources],
                start=first,
                stamp=job.stamp,
                ttl_s=None,
                tags=(),
                deadline_s=deadline.remaining_s(),
                computed_from_ms=job.computed_from_ms,
                refused=RefuseReason.NONE,
                reused=reused,
            )
        finally:
            with self._changed:
                save.sources = ()

    def _sources_are_taken(self, save: _Save, block_ids: Sequence[int], pages: int) -> bool:
        """Copy blocks, or say where they are; False for a job that was interrupted meanwhile."""
        with self._changed:
            if save.is_cancelled:
                return False
            save.is_copying = True
        sources: Sequence[PageSource] = ()
        try:
            sources = self._shard.layout.sources(block_ids, pages=pages)
        finally:
            with self._changed:
                save.is_copying = False
                save.sources = sources
                save.revoke_if_cancelled()
                self._changed.notify_all()
        return True

    def _note(
        self, save: _Save, packed: bytes, first: int, outcomes: list[PutOutcome], reused: ReusedPages
    ) -> bool:
        """Take a batch's outcomes; whether the next may follow."""
        stands = next((at for at, one in enumerate(outcomes) if isinstance(one, Refused)), len(outcomes))
        known = sum(one == KNOWN for one in outcomes[:stands])
        self._shard.origins.stored(packed, first, reused, pages=stands)
        for at in range(stands):
            if outcomes[at] == KNOWN:  # another computation's bytes, not those in our blocks
                self._shard.origins.not_stored(packed, first + at, first + at + 1)
        self.counts["known_pages"] += known
        self.counts["stored_pages"] += stands - known
        self.counts["saved_bytes"] += (stands - known) * self._shard.page_bytes
        for one in outcomes[stands:]:
            assert isinstance(one, Refused), "all that follows a refused page is refused"
            save.why[one.reason.name.lower()] += 1
            if one.reason is RefuseReason.TOO_LARGE and not self.counts["refused_pages_too_large"]:
                _log.warning(_TOO_LARGE, self._shard.page_bytes)
        save.stored += stands
        return bool(outcomes) and stands == len(outcomes)

    def _end(self, save: _Save) -> None:
        """Under the lock: whatever came of a job, it is over."""
        job = save.job
        self._shard.holds.release(save.held)
        self._over[job.number] = save.stored
        self._pending[job.request_id] -= 1
        if not self._pending[job.request_id]:
            del self._pending[job.request_id]
        self.counts["save_jobs"] += 1
        for why, count in save.why.items():
            is_dropped = why in _DROPPED
            self.counts[f"save_jobs_dropped_{why}" if is_dropped else f"refused_pages_{why}"] += count
        self._shard.origins.not_stored(job.keys[self._shard.rank], job.start + save.stored, job.pages)
        self._changed.notify_all()
