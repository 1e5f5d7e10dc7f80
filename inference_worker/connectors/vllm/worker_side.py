"""The worker's side of the connector: it carries out what the scheduler's side ordered, and reports what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from cache_l1.transfer_registration import RegisteredMemory
from inference_worker.client import Client
from inference_worker.connectors.vllm.block_layout import BlockLayout
from inference_worker.connectors.vllm.engine_facts import LayerFacts
from inference_worker.connectors.vllm.loads import Loader
from inference_worker.connectors.vllm.page_origins import PageOrigins
from inference_worker.connectors.vllm.plan import IN_PLACE, LoadJob, StepPlan, WorkerReport
from inference_worker.connectors.vllm.saves import Saver
from inference_worker.connectors.vllm.settings import ConnectorSettings, LoadMode
from inference_worker.connectors.vllm.version_board import VersionBoard
from inference_worker.connectors.vllm.worker_shard import HeldView, Shard, ShardSpaces, ViewHolds
from kv_types.engine_limits import ENGINE_DRAIN_S_MAX, ENGINE_SETTLE_S_MAX
from kv_types.namespace import AttentionKind, Geometry, Namespace, Uncacheable

_log = logging.getLogger("stratakv.vllm")


class Identity(Protocol):
    """What a worker says of itself at start."""

    @property
    def base(self) -> Namespace | Uncacheable:
        """The namespace of its shard, or why it has none."""
        ...

    @property
    def blocks_per_page(self) -> int:
        """Engine blocks of one page."""
        ...


Identify = Callable[[BlockLayout | Uncacheable, tuple[int, int]], Any]
"""Names a worker from how its blocks lie and from its version board's handle."""


def stores_pages(geometry: Geometry, *, rank: int, tensor_size: int) -> bool:
    """Whether this rank stores: the first of those that keep the same heads, or all the same latent."""
    heads = 1 if geometry.attention is AttentionKind.MLA else geometry.kv_heads_total
    return rank % tensor_size % max(1, tensor_size // heads) == 0


class WorkerSide:
    """One rank. Every method is the engine's thread's, and none raises because a page or the sidecar is not there.

    In a step: `handle_preemptions`, `begin_step`, `start_loads`, `wait_for_layer`…, `end_step`, `finished`,
    `failed_block_ids`, `report`.
    """

    def __init__(
        self,
        client: Client | None,
        identify: Identify,
        *,
        rank: int,
        settings: ConnectorSettings,
        tensor_size: int = 1,
        may_sleep: bool = False,
        registered: RegisteredMemory | None = None,
    ) -> None:
        """Without a client nothing is loaded or stored. `tensor_size`: ranks that share the model's heads.

        `may_sleep`: the engine may give its blocks' memory away between two steps, and says nothing of it to us.
        `registered`: host memory that its device reads by itself.
        """
        self._client = client
        self._identify = identify
        self._rank = rank
        self._settings = settings
        self._tensor_size = tensor_size
        self._may_sleep = may_sleep
        self._registered = registered
        self._board = VersionBoard.create()
        self._identity: Any = None
        self._layers: dict[str, int] = {}
        self._loader: Loader | None = None
        self._saver: Saver | None = None
        self._shard: Shard | None = None
        self._plan: StepPlan | None = None
        self._held: HeldView | None = None
        self._freed: set[str] = set()
        self._saved: dict[int, list[int]] = {}
        self._failed_pages: dict[str, int] = {}
        self._failed_block_ids: set[int] = set()
        self._unserved: set[str] = set()
        self._hook_s = 0.0

    # --- set-up ----------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Mapping[str, Any], facts: LayerFacts) -> Any:
        """Understand the engine's KV tensors and name this shard; returns what the scheduler's side is told."""
        layout = BlockLayout.of(
            kv_caches,
            num_blocks=facts.num_blocks,
            block_tokens=facts.block_tokens,
            attention_name=facts.attention_name,
            isa=facts.isa,
            layer_order=facts.layer_order,
            registered=self._registered,
        )
        self._identity = self._identify(layout, self._board.handle)
        base = self._identity.base
        if isinstance(base, Uncacheable) or isinstance(layout, Uncacheable):
            _log.warning("this worker's pages are neither loaded nor stored: %s", base)
        elif self._client is not None:
            self._begin_serving(self._client, layout, base)
        return self._identity

    def _begin_serving(self, client: Client, layout: BlockLayout, base: Namespace) -> None:
        blocks = self._identity.blocks_per_page
        self._shard = Shard(
            client=client,
            rank=self._rank,
            layout=layout,
            blocks_per_page=blocks,
            spaces=ShardSpaces(client, base, page_bytes=layout.page_bytes(blocks)),
            # The engine holds no more pages than it has blocks for; those that it has just evicted may come again.
            origins=PageOrigins(pages_max=2 * max(1, layout.num_blocks // blocks)),
            holds=ViewHolds(client.validity),
        )
        self._layers = {name: index for index, name in enumerate(layout.layer_order)}
        self._loader = Loader(self._shard)
        stores = stores_pages(base.geometry, rank=self._rank, tensor_size=self._tensor_size)
        self._saver = Saver(self._shard, deadline_s=self._settings.store_deadline_s, stores=stores)

    @property
    def identity(self) -> Any:
        """What `register_kv_caches` returned."""
        return self._identity

    # --- a step ----------------------------------------------------------------------------------------------------

    def handle_preemptions(self, plan: StepPlan) -> None:
        """Before blocks change hands: end what still reads those of interrupted requests."""
        with self._in_hook():
            if self._saver is not None and plan.interrupted:
                self._saver.finish_reading(plan.interrupted)
            if self._shard is not None:
                for request_id in plan.interrupted:
                    self._shard.origins.forget_request(request_id)

    def begin_step(self, plan: StepPlan) -> None:
        """Take a step's orders. What is to be stored is put in the queue of the thread that does it.

        A request whose load fails in this step is not stored out of its failed blocks: orders to store name KV of steps that
        are over and known to be right, so those of this step come with a later plan, after the scheduler's side has heard of
        the failure.
        """
        with self._in_hook():
            self._end_hold()
            if self._shard is not None:
                self._shard.layout.follow_engine()
            self._plan = plan
            self._freed |= plan.freed
            self._failed_block_ids |= plan.recompute_block_ids
            if self._shard is not None and (plan.loads or plan.saves or plan.view):
                self._held = self._shard.holds.take(plan.life, plan.view)
            for job in plan.saves:
                if self._saver is None:
                    self._saved[job.number] = [0]
                elif job.request_id in plan.interrupted:
                    self._saved[job.number] = [0]  # its blocks are another's by now
                else:
                    self._saver.enqueue(job, self._held)

    def start_loads(self) -> None:
        """Carry out, or begin, the loads of this step."""
        with self._in_hook():
            plan, self_held = self._plan, self._held
            if plan is None or not plan.loads:
                return
            if self._loader is None:
                self._fail(plan.loads)
                return
            now = [job for job in plan.loads if not job.is_async]
            self._loader.begin([job for job in plan.loads if job.is_async], plan.life, self_held)
            if self._settings.load_mode is LoadMode.LAYERWISE:
                self._loader.run_beside(now, plan.life, self_held)
            else:
                self._loader.run(now, plan.life, self_held)

    def wait_for_layer(self, layer_name: str) -> None:
        """Return when the layer's part of what is loaded beside this pass is in place."""
        if self._loader is not None and self._loader.is_beside:
            with self._in_hook():
                self._loader.wait_for_layer(self._layers.get(layer_name, len(self._layers) - 1))

    def end_step(self) -> None:
        """The pass is over."""
        if self._loader is not None and self._loader.is_beside:
            with self._in_hook():
                self._loader.join()

    def finished(self) -> tuple[set[str] | None, set[str] | None]:
        """(requests whose blocks may be freed, requests whose asynchronous loads have ended), each told once."""
        with self._in_hook():
            received, self._unserved = self._unserved, set()
            if self._loader is not None:
                results = self._loader.collect()
                received |= results.received
                self._failed_pages |= results.failed_pages
                self._failed_block_ids |= results.failed_block_ids
            if self._may_sleep and self._saver is not None:
                self._saver.settle(ENGINE_SETTLE_S_MAX)
            sent = {one for one in self._freed if self._saver is None or not self._saver.is_pending(one)}
            self._freed -= sent
            if self._shard is not None:
                for request_id in sent:
                    self._shard.origins.forget_request(request_id)
            return sent or None, received or None

    def failed_block_ids(self) -> set[int]:
        """Blocks that don't hold what was to be loaded into them, as far as `finished` has heard; each told once."""
        failed, self._failed_block_ids = self._failed_block_ids, set()
        return failed

    def report(self) -> WorkerReport | None:
        """What this rank did since the last report; None where no step was begun."""
        with self._in_hook():
            plan, self._plan = self._plan, None
            self._end_hold()
            if plan is None:
                return None
            saved, self._saved = self._saved, {}
            if self._saver is not None:
                saved |= {number: [pages] for number, pages in self._saver.collect().items()}
            failed, self._failed_pages = self._failed_pages, {}
            reading = self._board.read()
            number = 0 if reading is None else reading[0]
            return WorkerReport(plan.step, saved, failed, (number,))

    # --- beside steps ----------------------------------------------------------------------------------------------

    def set_weights_version(self, version: str) -> None:
        """Write the new name of this worker's weights where the scheduler's side looks. Raises InvalidArgumentError."""
        self._board.publish(version)

    def statistics(self) -> dict[str, float]:
        """Counters and gauges by name; seconds are of this rank's threads, `hook_s_worker` those of the engine's."""
        figures: dict[str, float] = {"hook_s_worker": self._hook_s}
        if self._loader is not None:
            figures |= self._loader.counts
            figures |= {"load_s": self._loader.seconds, "load_jobs_under_way": self._loader.under_way}
        if self._saver is not None:
            figures |= self._saver.counts
            figures |= {"save_s": self._saver.seconds, "save_jobs_queued": self._saver.queued}
        return figures

    def shutdown(self) -> None:
        """Carry out what is to be stored, for a bounded time, and detach."""
        if self._saver is not None:
            self._saver.close(drain_s=ENGINE_DRAIN_S_MAX)
        if self._loader is not None:
            self._loader.close()
        self._end_hold()
        if self._client is not None:
            self._client.close()
        self._board.close()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _fail(self, jobs: tuple[LoadJob, ...]) -> None:
        """Nothing can be loaded here: the engine computes it."""
        for job in jobs:
            self._failed_pages[job.request_id] = job.start
            self._failed_block_ids.update(block for block in job.block_ids if block != IN_PLACE)
            if job.is_async:
                self._unserved.add(job.request_id)

    def _end_hold(self) -> None:
        if self._shard is not None:
            self._shard.holds.release(self._held)
        self._held = None

    @contextmanager
    def _in_hook(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._hook_s += time.perf_counter() - began
