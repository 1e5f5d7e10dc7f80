"""The scheduler's side of the connector: what the engine asks in a step, answered from look-ups, saves and the governor."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference_worker.client import Client
from inference_worker.connectors.vllm.engine_hooks import govern
from inference_worker.connectors.vllm.failed_blocks import FailedBlocks
from inference_worker.connectors.vllm.governed import VersionBoard as Board
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.identity import WorkerIdentity
from inference_worker.connectors.vllm.look_ups import LookUps
from inference_worker.connectors.vllm.naming import RequestNaming
from inference_worker.connectors.vllm.plan import LoadJob, SaveJob, StepPlan, Variant, WorkerReport
from inference_worker.connectors.vllm.rank_boards import RankBoards
from inference_worker.connectors.vllm.requests import RequestState, ShardChains, asks_for_report
from inference_worker.connectors.vllm.running_weights import EngineWeights
from inference_worker.connectors.vllm.save_plans import SavePlans
from inference_worker.connectors.vllm.settings import ConnectorSettings, LoadMode
from inference_worker.connectors.vllm.variants import VariantNamespaces
from kv_types.errors import StrataError
from kv_types.namespace import Namespace, Uncacheable, UncacheableReason
from kv_types.outcomes import MissReason

BlocksOf = Callable[[str], Sequence[int]]

_log = logging.getLogger("stratakv.vllm")


class SchedulerSide:
    """One engine's scheduler: a single thread calls everything here, in the order of the engine's steps.

    Until the workers have said what they are (`learn_workers`), and where their model can't be named, nothing is looked
    up or stored, and the reason is counted.
    """

    def __init__(
        self, client: Client, settings: ConnectorSettings, naming: RequestNaming, governor: Governor
    ) -> None:
        self._client = client
        self._settings = settings
        self._naming = naming
        self._governor = governor
        self._unnamed = Uncacheable(
            UncacheableReason.MODEL_UNNAMED, "the workers have not said what they compute"
        )
        self._variants: VariantNamespaces | None = None
        self._look_ups: LookUps | None = None
        self._saves: SavePlans | None = None
        self._blocks_of: BlocksOf = lambda request_id: ()
        self._page_tokens = self._block_tokens = 0
        self._states: dict[str, RequestState] = {}
        self._leaving: dict[str, RequestState] = {}
        self._progressed: dict[str, RequestState] = {}
        self._loads: list[LoadJob] = []
        self._loading: dict[str, RequestState] = {}
        self._failed = FailedBlocks(1)
        self._late_saves: list[SaveJob] = []
        self._freed: set[str] = set()
        self._step = 0
        self._done_step = 0
        self._is_idle = True
        self._is_ungoverned = False
        self.counts: Counter[str] = Counter()
        self.hook_s = 0.0

    # --- set-up ----------------------------------------------------------------------------------------------------

    def bind(self, kv_cache_manager: Any) -> None:
        """The engine's own cache is there; from now on it is governed. Raises UngovernedEngineError."""
        govern(self._governor, kv_cache_manager)
        self._blocks_of = lambda request_id: kv_cache_manager.get_block_ids(request_id)[0]

    def learn_workers(self, workers: Mapping[int, WorkerIdentity]) -> None:
        """Take what the ranks say of themselves; they must agree on all but which part of the model they hold."""
        ranks = [workers[rank] for rank in sorted(workers)]
        unnamed = next((rank.base for rank in ranks if isinstance(rank.base, Uncacheable)), None)
        if (
            unnamed is None
            and len({(rank.page_bytes, rank.blocks_per_page, rank.block_tokens) for rank in ranks}) > 1
        ):
            unnamed = Uncacheable(UncacheableReason.INVALID, "the ranks keep pages of different sizes")
        if unnamed is not None:
            self._unnamed = unnamed
            _log.warning("pages of this engine are not shared (%s): %s", unnamed.reason, unnamed.detail)
            return
        first = ranks[0]
        self._governor.learn(self._weights(ranks), blocks_per_page=first.blocks_per_page)
        self._page_tokens, self._block_tokens = first.page_tokens, first.block_tokens
        self._failed = FailedBlocks(first.block_tokens)
        bases = [rank.base for rank in ranks if isinstance(rank.base, Namespace)]
        self._variants = VariantNamespaces(self._client, bases, page_bytes=first.page_bytes)
        self._look_ups = LookUps(
            self._client,
            blocks_per_page=first.blocks_per_page,
            block_tokens=first.block_tokens,
            deadline_s=self._settings.look_up_deadline_s,
            is_async=self._settings.load_mode is LoadMode.ASYNC,
        )
        self._saves = SavePlans(
            self._client,
            blocks_per_page=first.blocks_per_page,
            page_tokens=self._page_tokens,
            saves_generated=self._settings.save_generated,
            ranks=len(ranks),
        )

    # --- the engine's hooks, in the order of a step ----------------------------------------------------------------

    def arrive(self, request: Any) -> None:
        """A request was added."""
        state = RequestState(request, self._unnamed)
        state.wants_report = asks_for_report(request.kv_transfer_params)
        self._states[request.request_id] = state
        self._name(state)
        self._governor.track(state)
        if self._look_ups is not None:
            self._look_ups.arrive(state)

    def match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the engine's own could be loaded; None: ask in the next step."""
        state = self._states.get(request.request_id)
        if not self._governor.was_gated(request.request_id):
            self._stop_serving()
        if self._governor.is_deferred(request.request_id):
            return None, False
        if state is None or self._look_ups is None or self._is_ungoverned or self._governor.weights.trouble:
            return 0, False
        self._rename(state)
        found = self._look_ups.match(state, local_tokens, is_idle=self._is_idle)
        return found, bool(found) and self._settings.load_mode is LoadMode.ASYNC

    def admit(self, request: Any, block_ids: Sequence[int], external_tokens: int) -> None:
        """The engine has given a request its blocks; asked again for one that loads asynchronously, it is admitted already."""
        state = self._states.get(request.request_id)
        if state is None or self._look_ups is None or state.is_admitted:
            return
        state.save_from_step = self._step + 1
        state.computed_from = -(-(state.found.local_tokens + external_tokens) // self._page_tokens)
        state.computed_from_ms = time.time_ns() // 1_000_000
        job = self._look_ups.admit(state, external_tokens, block_ids)
        if state.is_cacheable and state.found.ended_by is not MissReason.NONE:
            self.counts[f"ended_by_{state.found.ended_by.name.lower()}"] += 1
        if job is not None:
            self._loads.append(job)
            self._loading[state.request_id] = state
            state.load_step = self._step + 1
            state.is_loading_async = job.is_async
            self._count_found(state)

    def plan_step(self, scheduled: Mapping[str, int], interrupted: Sequence[str]) -> StepPlan:
        """The orders of the step that the scheduler has just made."""
        self._step += 1
        self._is_idle = not scheduled
        for request_id in interrupted:
            state = self._states.get(request_id)
            if state is not None:
                state.interrupt()
        again = self._failed.review(scheduled, self._states, self._blocks_of)
        saves = [*self._late_saves, *self._due_saves(scheduled)]
        plan = StepPlan(
            step=self._step,
            life=self._governor.life,
            view=self._governor.view,
            loads=tuple(self._loads),
            saves=tuple(saves),
            interrupted=frozenset(interrupted),
            recompute_block_ids=self._to_recompute() | again,
            freed=frozenset(self._freed),
        )
        self._loads, self._late_saves, self._freed = [], [], set()
        self._governor.step_begun(self._step)
        for request_id in scheduled:
            if request_id in self._states:
                self._progressed[request_id] = self._states[request_id]
        return plan

    def take_report(self, report: WorkerReport | None, received: Sequence[str]) -> None:
        """The outcome of a step has come: what ranks have stored, and whose pages are in place."""
        if report is not None:
            self._done_step = max(self._done_step, report.step)
            self._governor.step_done(self._done_step)
            self._governor.watch_versions(report.version_numbers)
            for number, pages in report.saved.items():
                self._save_ended(number, pages)
            for request_id, page in report.failed_loads.items():
                self._load_failed(request_id, page)
        for request_id in received:
            state = self._states.get(request_id) or self._leaving.get(request_id)
            if state is not None:
                state.release_leases()
                state.is_loading_async = False
            self._loading.pop(request_id, None)
        for state in list(self._loading.values()):
            if not state.is_loading_async and (state.load_step or 0) <= self._done_step:
                del self._loading[state.request_id]
        for state in list(self._progressed.values()):
            if (
                state.load_step is not None
                and state.load_step <= self._done_step
                and not state.is_loading_async
            ):
                state.release_leases()
                state.load_step = None

    def finish(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended. True: its blocks are freed when the ranks have told it as saved.

        Those that are being loaded into the engine holds by itself, until it hears that the load is over.
        """
        state = self._states.pop(request.request_id, None)
        if state is None:
            return False, None
        self._progressed.pop(request.request_id, None)
        is_loading = state.is_loading_async
        state.cancel_prefetches()
        state.is_finished = True
        if not is_loading:
            self._save_last(state, block_ids)
            state.release_leases()
        self._governor.untrack(request.request_id)
        holds = bool(state.jobs) and not is_loading
        if state.jobs or is_loading:
            self._leaving[request.request_id] = state
        if holds:
            self._freed.add(request.request_id)
        return holds, self._told(state)

    def reset(self) -> None:
        """The engine's owner voids what was cached: nothing from before is served to this engine any more."""
        self._governor.reset()

    def statistics(self) -> dict[str, float]:
        """Counters and gauges by name."""
        saves = Counter() if self._saves is None else self._saves.counts
        under_way = 0 if self._saves is None else self._saves.under_way
        return {
            **self.counts,
            **self._governor_counts(),
            **{f"saves_{name}": float(pages) for name, pages in saves.items()},
            "save_jobs_under_way": float(under_way),
            "requests": float(len(self._states)),
            "hook_s_scheduler": self.hook_s,
        }

    def _governor_counts(self) -> dict[str, float]:
        counts = self._governor.counts
        return {
            "events_applied": float(counts.boundaries_with_news),
            "evicted_blocks": float(counts.blocks_evicted),
            "tainted_requests": float(counts.tainted),
            "gate_deferred": float(counts.look_ups_deferred),
            "gate_emptied": float(counts.look_ups_emptied),
        }

    def shutdown(self) -> None:
        """The engine ends: let go of what is pinned, and detach."""
        for state in (*self._states.values(), *self._leaving.values()):
            state.cancel_prefetches()
            state.release_leases()
        self._client.close()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _weights(self, ranks: Sequence[WorkerIdentity]) -> EngineWeights:
        """What the weights are called, and where it is heard that they are called otherwise."""
        base = ranks[0].base
        assert isinstance(base, Namespace), "only what has a name is learnt"
        boards = [rank.board for rank in ranks]
        board: Board | None = None
        if all(boards):
            try:
                board = RankBoards([handle for handle in boards if handle is not None])
            except StrataError as error:
                _log.warning("weights can't be renamed at a look-up, only a step later: %s", error)
        announced = (lambda: self._client.announced(base.model)) if self._settings.follow_weights else None
        loaded = base.weights.version or (base.weights.digest or b"").hex()
        return EngineWeights(loaded, board=board, announced=announced)

    def _name(self, state: RequestState) -> None:
        """Give a request its variant and keys, as of the weights that are named now."""
        state.named, state.chains, state.shards = self._unnamed, None, ()
        # Asked for every request: it takes note of what the engine's identifiers of images stand for.
        named = self._naming.variant_of(state.request, self._governor.weights_version)
        if self._variants is None:
            self._count_uncacheable(self._unnamed)
            return
        if isinstance(named, Variant):
            extras = self._naming.extras_of(state.request, self._page_tokens)
            shards = self._variants.get(named)
            if isinstance(extras, Uncacheable):
                named = extras
            elif shards is None:
                named = Uncacheable(
                    UncacheableReason.INVALID, "more variants are in use than a client may have namespaces"
                )
            else:
                state.shards = shards
                namespaces = [shard.namespace for shard in shards]
                state.chains = ShardChains(namespaces, page_tokens=self._page_tokens, extras=extras)
        state.named = named
        state.reads_external = self._naming.reads_external(state.request)
        if isinstance(named, Uncacheable):
            self._count_uncacheable(named)

    def _rename(self, state: RequestState) -> None:
        """The weights have got another name while the request waited."""
        variant = state.variant
        if variant is not None and variant.weights_version != self._governor.weights_version:
            self._name(state)

    def _stop_serving(self) -> None:
        """The engine looks up by a path that is not governed: fences are told of it for as long as it runs."""
        if not self._is_ungoverned:
            self._is_ungoverned = True
            self._client.validity.claim_freshness(2**64 - 1)
            _log.error(
                "this engine looks up its own cache by another path than the one that is kept valid: no pages are shared"
            )

    def _due_saves(self, scheduled: Mapping[str, int]) -> list[SaveJob]:
        """Pages that became full and certain since the last step, of requests that may store."""
        stamp, jobs = self._governor.stamp, []
        for request_id, state in list(self._progressed.items()):
            if self._may_store(state) and stamp is not None and self._saves is not None:
                job = self._saves.plan(state, stamp, self._blocks_of)
                if job is not None:
                    jobs.append(job)
            if request_id not in scheduled and not state.request.num_in_flight_tokens:
                del self._progressed[request_id]
        return jobs

    def _may_store(self, state: RequestState) -> bool:
        # A request that was admitted with blocks which others still compute or load has nothing certain before that step is over.
        return (
            state.is_cacheable
            and state.is_admitted
            and not state.is_loading_async
            and state.save_from_step <= self._done_step
            and not self._failed.are_held(self._blocks_of(state.request_id), state)
            and not self._is_ungoverned
            and not self._governor.is_tainted(state.request_id)
        )

    def _save_last(self, state: RequestState, block_ids: Sequence[int]) -> None:
        stamp = self._governor.stamp
        if stamp is None or self._saves is None or not state.is_cacheable or not state.is_admitted:
            return
        # The output of its last step may be what ends it: that step is over, though its report is taken only after this.
        over = self._done_step + (0 if state.request.num_in_flight_tokens else 1)
        if state.save_from_step > over or self._governor.is_tainted(state.request_id):
            return
        if self._failed.are_held(block_ids, state):
            return
        job = self._saves.plan(state, stamp, lambda _: block_ids)
        if job is not None:
            self._late_saves.append(job)

    def _save_ended(self, number: int, pages: Sequence[int]) -> None:
        state = None if self._saves is None else self._saves.ended(number, pages)
        if state is not None and state.is_finished and not state.jobs:
            self._leaving.pop(state.request_id, None)

    def _load_failed(self, request_id: str, page: int) -> None:
        state = self._loading.get(request_id)
        self.counts["failed_loads"] += 1
        if state is None:
            return
        was_local = bool(state.found.local_tokens)
        self.counts["failed_load_tokens"] += state.load_failed(page, page_tokens=self._page_tokens)
        if state.is_loading_async:
            # Nothing of it is hashed yet. With nothing in place the engine takes its blocks away, and looks it up anew.
            state.is_admitted = bool(page) or was_local
            return
        block_tokens = self._block_tokens
        first = max(page * self._page_tokens, state.found.local_tokens) // block_tokens
        self._governor.lost(state.block_hashes[first:])
        if request_id in self._states:
            self._failed.add(state, first, self._blocks_of(request_id))

    def _to_recompute(self) -> frozenset[int]:
        """Blocks of tainted requests from the first selected page on, where they are to be computed anew."""
        blocks: set[int] = set()
        for request_id, first in self._governor.to_recompute().items():
            state = self._states.get(request_id)
            if state is not None and self._page_tokens:
                state.to_store_from(first * self._block_tokens // self._page_tokens)
            blocks.update(self._blocks_of(request_id)[first:])
        return frozenset(blocks)

    def _count_found(self, state: RequestState) -> None:
        l3 = self.l3_tokens(state)
        self.counts["external_tokens_l3"] += l3
        self.counts["external_tokens_l2"] += state.found.external_tokens - l3

    def _count_uncacheable(self, why: Uncacheable) -> None:
        self.counts[f"uncacheable_requests_{why.reason.value}"] += 1

    def l3_tokens(self, state: RequestState) -> int:
        """Tokens of what was found that L3 gave, at this request's asking."""
        found = state.found
        end = found.local_tokens + found.external_tokens
        return max(0, min(found.external_tokens, end - found.resident_at_arrival * self._page_tokens))

    def state(self, request_id: str) -> RequestState | None:
        """A request that has not ended."""
        return self._states.get(request_id)

    def _told(self, state: RequestState) -> dict[str, Any] | None:
        if not state.wants_report:
            return None
        l3 = self.l3_tokens(state)
        return {
            "stratakv": {
                "engine_tokens": state.found.local_tokens,
                "l2_tokens": state.found.external_tokens - l3,
                "l3_tokens": l3,
                "ended_by": state.found.ended_by.name.lower(),
            }
        }
