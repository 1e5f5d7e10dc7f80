"""Loads: pages of L2 copied into the engine's blocks before a pass, layer by layer beside it, or between steps."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from inference_worker.connectors.vllm.plan import IN_PLACE, LoadJob
from inference_worker.connectors.vllm.worker_shard import HeldView, Shard
from inference_worker.deadlines import Deadline
from inference_worker.lease import PageLease
from kv_types.engine_limits import (
    ENGINE_LOAD_S_MAX,
    ENGINE_LOAD_THREADS,
    ENGINE_PIN_PAUSE_S,
    ENGINE_PIN_S_MAX,
    LOAD_BATCH_BYTES_MAX,
)
from kv_types.errors import StrataError
from kv_types.ids import NO_LIFE, LifeId
from kv_types.outcomes import MissReason
from kv_types.validity import NO_INSTANCES, UNKNOWN_INSTANCE, Instances

_log = logging.getLogger("stratakv.vllm")


@dataclass(slots=True, eq=False)
class _Load:
    """One order on its way. `in_place`: pages from its start that hold their bytes; `why`: what ended it early.

    `pinned_by`: until when the sidecar may be waited for, which must be asked where a namespace is new here."""

    job: LoadJob
    life: LifeId
    held: HeldView | None
    deadline: Deadline
    pinned_by: Deadline
    in_place: int = 0
    why: str = ""
    instances: Instances = NO_INSTANCES
    stands_on: int = UNKNOWN_INSTANCE

    @property
    def wanted(self) -> int:
        return self.job.pages - self.job.start


@dataclass(slots=True)
class LoadResults:
    """What came of loads since it was asked last: requests whose own blocks are ready or failed, what failed, and where."""

    received: set[str]
    failed_pages: dict[str, int]
    failed_block_ids: set[int]


class Loader:
    """`run` and `begin` are called by the engine's thread, as is all else but what is begun. Raises nothing for a failed load."""

    def __init__(self, shard: Shard, *, deadline_s: float = ENGINE_LOAD_S_MAX) -> None:
        self._shard = shard
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._pool: ThreadPoolExecutor | None = None
        self._ended: list[_Load] = []
        self._under_way = 0
        self._is_closing = False
        self._alone_until_s = 0.0
        self._layerwise: _LayerByLayer | None = None
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    @property
    def under_way(self) -> int:
        """Asynchronous loads that have not ended."""
        return self._under_way

    @property
    def is_beside(self) -> bool:
        """Whether loads go on beside this pass."""
        return self._layerwise is not None

    def run(self, jobs: Sequence[LoadJob], life: LifeId, held: HeldView | None) -> None:
        """Load before the pass."""
        pinned_by = self._pinned_by()
        for job in jobs:
            load = self._new(job, life, held, pinned_by)
            self._carry_out(load)
            self._end(load)

    def run_beside(self, jobs: Sequence[LoadJob], life: LifeId, held: HeldView | None) -> None:
        """Load layer by layer beside the pass, which calls `wait_for_layer`; `join` ends it."""
        self.join()
        if jobs:
            pinned_by = self._pinned_by()
            loads = [self._new(job, life, held, pinned_by) for job in jobs]
            beside = _LayerByLayer(self, loads)
            if self._is_started(beside.run):
                self._layerwise = beside
            else:
                self._end_unstarted(loads)

    def begin(self, jobs: Sequence[LoadJob], life: LifeId, held: HeldView | None) -> None:
        """Load between steps; `collect` tells of the end. One that is aborted is loaded, and told, all the same."""
        for job in jobs:
            load = self._new(job, life, held, Deadline(self._deadline_s))
            with self._changed:
                self._under_way += 1
            if not self._is_started(partial(self._run_async, load)):
                with self._changed:
                    self._under_way -= 1
                self._end_unstarted([load])

    def wait_for_layer(self, layer: int) -> None:
        """Return when this layer's bytes of all loads beside the pass are in place, or none of them will be."""
        if self._layerwise is not None:
            self._layerwise.wait(layer + 1)

    def join(self) -> None:
        """The pass is over: nothing is written into its blocks behind this."""
        if self._layerwise is not None:
            self._layerwise.wait(None)
            self._layerwise = None

    def collect(self) -> LoadResults:
        """What has ended since the last call. Each request is told once."""
        with self._changed:
            ended, self._ended = self._ended, []
        results = LoadResults(set(), {}, set())
        for load in ended:
            job = load.job
            if job.is_async:
                results.received.add(job.request_id)
            if load.in_place < load.wanted:
                first = job.start + load.in_place
                results.failed_pages[job.request_id] = min(
                    first, results.failed_pages.get(job.request_id, first)
                )
                blocks = job.block_ids[load.in_place * self._shard.blocks_per_page :]
                results.failed_block_ids.update(block for block in blocks if block != IN_PLACE)
        return results

    def close(self) -> None:
        """Wait for what is under way: the memory that it writes to is the engine's."""
        self.join()
        self._is_closing = True
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(ENGINE_LOAD_THREADS, thread_name_prefix="stratakv-load")
        return self._pool

    def _pinned_by(self) -> Deadline:
        """How long this step may wait for the sidecar."""
        return Deadline(0.0 if time.monotonic() < self._alone_until_s else ENGINE_PIN_S_MAX)

    def _is_started(self, work: Callable[[], None]) -> bool:
        """Have a thread do it; False: none can be had, and nothing will be done."""
        order = _Order(work)
        try:
            self._threads().submit(order.carry_out)
        except RuntimeError:
            # The pool keeps what it could start no thread for, and would do it once it has one.
            return not order.is_dropped()
        return True

    def _end_unstarted(self, loads: Sequence[_Load]) -> None:
        for load in loads:
            load.why = "no_thread"
            self._end(load)

    def _new(self, job: LoadJob, life: LifeId, held: HeldView | None, pinned_by: Deadline) -> _Load:
        shared = None if held is None else self._shard.holds.share(held)
        return _Load(job, life, shared, Deadline(self._deadline_s), pinned_by)

    def _run_async(self, load: _Load) -> None:
        try:
            self._carry_out(load)
        finally:
            with self._changed:
                self._under_way -= 1
            self._end(load)

    def _carry_out(self, load: _Load) -> None:
        began = time.perf_counter()
        try:
            with ExitStack() as stack:
                lease = self.lease(load, stack)
                if lease is not None:
                    self._copy(load, lease)
        except StrataError as error:
            load.why = error.code
        except Exception:  # noqa: BLE001  (whatever it is, the engine computes these blocks anew)
            _log.exception("a load for request %s failed", load.job.request_id)
            load.in_place, load.why = 0, "error"
        self.spend(time.perf_counter() - began)

    def spend(self, seconds: float) -> None:
        """Count time of a load."""
        with self._changed:
            self.seconds += seconds

    def lease(self, load: _Load, stack: ExitStack) -> PageLease | None:
        """Pin a load's pages until the stack is left, for the scheduler's side has counted them; None: none are to be had."""
        job, shard = load.job, self._shard
        if self._is_closing:
            load.why = "closed"
            return None
        if load.life != NO_LIFE and load.held is None:
            load.why = "life"  # what was found is another sidecar's, or no fence would wait for it
            return None
        space = stack.enter_context(shard.spaces.using(job.variant))
        keys = job.keys[shard.rank]
        left_s = load.deadline.remaining_s()
        if load.life != NO_LIFE:  # otherwise pages come over the network, and take their time
            left_s = min(left_s, load.pinned_by.remaining_s())
        lease = shard.client.lease(space, keys, start=job.start, deadline_s=left_s, counted=False)
        stack.enter_context(lease)
        if lease.reason is MissReason.DEADLINE and load.pinned_by.passed and left_s:
            self._alone_until_s = time.monotonic() + ENGINE_PIN_PAUSE_S
        if not lease.pages or load.life not in (NO_LIFE, lease.instances.life):
            load.why = lease.reason.name.lower() if not lease.pages else "life"
            return None
        if lease.pages < load.wanted:
            load.why = lease.reason.name.lower()
        load.instances, load.stands_on = lease.instances, lease.stands_on
        return lease

    def copy_layers(
        self, load: _Load, lease: PageLease, layers: range | None, *, first: int, end: int
    ) -> None:
        """Copy pages [first, end) of a lease."""
        blocks = self._shard.blocks_per_page
        ids = load.job.block_ids[first * blocks : end * blocks]
        self._shard.layout.scatter([lease[page] for page in range(first, end)], ids, layers=layers)

    def _copy(self, load: _Load, lease: PageLease) -> None:
        step = max(1, LOAD_BATCH_BYTES_MAX // self._shard.page_bytes)
        for first in range(0, lease.pages, step):
            if load.deadline.passed:
                load.why = MissReason.DEADLINE.name.lower()
                return
            end = min(lease.pages, first + step)
            began = time.perf_counter()
            self.copy_layers(load, lease, None, first=first, end=end)
            took_s = time.perf_counter() - began
            if took_s > 0.0:
                self._shard.client.observe_copy((end - first) * self._shard.page_bytes, took_s)
            load.in_place = end

    def _end(self, load: _Load) -> None:
        """Whatever came of a load, the engine is told: it waits for that."""
        try:
            self._note_origins(load)
        except Exception:  # noqa: BLE001  (likewise)
            _log.exception("what a load for request %s brought can't be noted", load.job.request_id)
            load.in_place, load.why = 0, "error"
        self._shard.holds.release(load.held)
        with self._changed:
            self.counts["load_jobs"] += 1
            self.counts["loaded_pages"] += load.in_place
            self.counts["loaded_bytes"] += load.in_place * self._shard.page_bytes
            if load.in_place < load.wanted:
                self.counts[f"load_jobs_failed_{load.why}"] += 1
            self._ended.append(load)

    def _note_origins(self, load: _Load) -> None:
        job, shard = load.job, self._shard
        if load.in_place:
            shard.origins.loaded(
                job.request_id,
                job.keys[shard.rank],
                job.start,
                Instances(load.instances.life, load.instances.numbers[: load.in_place]),
                stands_on=load.stands_on,
            )


class _Order:
    """Work for a thread, done once or dropped."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._taken = threading.Lock()

    def carry_out(self) -> None:
        if self._taken.acquire(blocking=False):
            self._work()

    def is_dropped(self) -> bool:
        """Drop it; False: a thread does it."""
        return self._taken.acquire(blocking=False)


class _LayerByLayer:
    """The loads of one pass, in a thread beside it."""

    def __init__(self, loader: Loader, loads: Sequence[_Load]) -> None:
        self._loader = loader
        self._loads = loads
        self._changed = threading.Condition()
        self._layers_done = 0
        self._is_over = False

    def wait(self, layers: int | None) -> None:
        """Return when so many layers are in place; None: when nothing is written any more.

        Bounded by the loads' deadline and one copy: giving up sooner would let the thread write into blocks that the engine
        computes anew meanwhile.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or (layers is not None and self._layers_done >= layers)
            )

    def run(self) -> None:
        """Pin all, copy each layer of all, tell what came of it."""
        began = time.perf_counter()
        try:
            with ExitStack() as stack:
                self._copy([(load, lease) for load in self._loads if (lease := self._lease(load, stack))])
        except Exception:  # noqa: BLE001  (likewise)
            _log.exception("loads beside a pass failed")
            for load in self._loads:
                load.in_place, load.why = 0, load.why or "error"
        finally:
            self._loader.spend(time.perf_counter() - began)
            for load in self._loads:
                self._loader._end(load)
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _lease(self, load: _Load, stack: ExitStack) -> PageLease | None:
        try:
            return self._loader.lease(load, stack)
        except StrataError as error:
            load.why = error.code
        except Exception:  # noqa: BLE001  (likewise)
            _log.exception("a load for request %s failed", load.job.request_id)
            load.why = "error"
        return None

    def _copy(self, leased: Sequence[tuple[_Load, PageLease]]) -> None:
        going = list(leased)
        for layer in range(self._loader._shard.layout.layers):
            going = [one for one in going if self._layer_is_copied(*one, layer)]
            with self._changed:
                self._layers_done = layer + 1
                self._changed.notify_all()
        # One that failed at a layer lacks it from there on, though the pass may have used the layers before.
        for load, lease in going:
            load.in_place = lease.pages

    def _layer_is_copied(self, load: _Load, lease: PageLease, layer: int) -> bool:
        """Copy one layer of one load; what fails is that load alone."""
        if load.deadline.passed:
            load.why = MissReason.DEADLINE.name.lower()
            return False
        try:
            self._loader.copy_layers(load, lease, range(layer, layer + 1), first=0, end=lease.pages)
        except StrataError as error:
            load.why = error.code
            return False
        except Exception:  # noqa: BLE001  (whatever it is, the engine computes these blocks anew)
            _log.exception("a load for request %s failed", load.job.request_id)
            load.why = "error"
            return False
        return True
