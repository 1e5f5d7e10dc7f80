"""The scheduler's side of the connector: what the engine asks in a step, answered from look-ups, saves and the governor."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference_worker.client import Client
from inference_worker.connectors.vllm.asking import Asker
from inference_worker.connectors.vllm.engine_hooks import Governs, govern, reset_beside
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.identity import WorkerIdentity
from inference_worker.connectors.vllm.loading import PagesLoading
from inference_worker.connectors.vllm.look_ups import LookUps
from inference_worker.connectors.vllm.naming import RequestNaming
from inference_worker.connectors.vllm.plan import LoadJob, SaveJob, StepPlan, Variant, WorkerReport
from inference_worker.connectors.vllm.prefill_steps import PrefillWatch
from inference_worker.connectors.vllm.rank_boards import weights_of
from inference_worker.connectors.vllm.requests import RequestState, ShardChains, asks_for_report
from inference_worker.connectors.vllm.save_plans import SavePlans
from inference_worker.connectors.vllm.settings import ConnectorSettings, LoadMode
from inference_worker.connectors.vllm.variants import VariantNamespaces
from kv_types.errors import InvalidArgumentError
from kv_types.namespace import Namespace, Uncacheable, UncacheableReason
from kv_types.outcomes import MissReason

BlocksOf = Callable[[str], Sequence[int]]

_IDLE_PAUSE_S = 0.001
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
        self._asker = Asker(client)
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
        self._page_tokens, self._block_tokens, self._ranks = 0, 0, 1
        self._prefill = PrefillWatch(client)
        self._states: dict[str, RequestState] = {}
        self._leaving: dict[str, RequestState] = {}
        self._progressed: dict[str, RequestState] = {}
        self._loads: list[LoadJob] = []
        self._loading = PagesLoading()
        self._hash: Callable[[Any, int], None] = lambda request, tokens: None
        self._has_paused = False
        self._late_saves: list[SaveJob] = []
        self._freed: set[str] = set()
        self._step = 0
        self._done_step = 0
        self._is_idle = True
        self.is_async = settings.load_mode is LoadMode.ASYNC
        self._is_ungoverned = False
        self.counts: Counter[str] = Counter()
        self.hook_s = 0.0

    # --- set-up ----------------------------------------------------------------------------------------------------

    def bind(self, kv_cache_manager: Any, governor: Governs | None = None) -> None:
        """The engine's own cache is there; from now on it is governed. Raises UngovernedEngineError."""
        govern(self._governor if governor is None else governor, kv_cache_manager)
        reset_beside(
            kv_cache_manager, lambda: {one for name in self._leaving for one in self._blocks_of(name)}
        )
        self._hash = kv_cache_manager.cache_blocks
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
        first, self._ranks = ranks[0], len(ranks)
        weights = weights_of(ranks, self._client, follow=self._settings.follow_weights)
        self._governor.learn(weights, blocks_per_page=first.blocks_per_page)
        self._page_tokens, self._block_tokens = first.page_tokens, first.block_tokens
        bases = [rank.base for rank in ranks if isinstance(rank.base, Namespace)]
        self._variants = VariantNamespaces(
            self._client, bases, page_bytes=first.page_bytes, asker=self._asker
        )
        self._look_ups = LookUps(
            self._client,
            blocks_per_page=first.blocks_per_page,
            block_tokens=first.block_tokens,
            deadline_s=self._settings.look_up_deadline_s,
            is_async=self.is_async,
            asker=self._asker,
        )
        self._saves = SavePlans(
            self._asker,
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
        if self._look_ups is not None and self._is_registered(state):
            self._look_ups.arrive(state)
            self._settle_hold(state)

    def match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the engine's own could be loaded; None: ask in the next step."""
        state = self._states.get(request.request_id)
        if state is not None and state.is_admitted:
            # Only who has no blocks is looked up: they were taken away, in this step or by a load that brought nothing.
            self._interrupt(state, has_failed=state.has_failed_to_load)
        if not self._governor.was_gated(request.request_id):
            self._stop_serving()
        if self._governor.is_deferred(request.request_id):
            return None, False
        if state is None or self._look_ups is None or self._is_ungoverned or self._governor.weights.trouble:
            return 0, False
        self._rename(state)
        if not self._is_registered(state):
            return 0, False
        found = self._look_ups.match(state, local_tokens)
        self._settle_hold(state)
        if found and self._loading.has(self._look_ups.first_key(state)):
            return None, False  # another request loads it in this step, and shares it in the next one
        if found is None:
            self._pause_if_idle()
        elif found and not self.is_async:
            self._governor.await_load(state.request_id)
        return found, bool(found) and self.is_async

    def admit(self, request: Any, block_ids: Sequence[int], external_tokens: int) -> None:
        """The engine has given a request its blocks; asked again for one that loads asynchronously, it is admitted already."""
        state = self._states.get(request.request_id)
        if state is None or self._look_ups is None or state.is_admitted:
            return
        state.save_from_step = self._step + 1
        state.computed_from = -(-(state.found.local_tokens + external_tokens) // self._page_tokens)
        state.computed_from_ms = time.time_ns() // 1_000_000
        self._is_registered(state)
        job = self._look_ups.admit(state, external_tokens, block_ids)
        self._settle_hold(state)
        if state.is_cacheable and state.found.ended_by is not MissReason.NONE:
            self.counts[f"ended_by_{state.found.ended_by.name.lower()}"] += 1
        if job is not None:
            self._loads.append(job)
            state.load_step = self._step + 1
            state.is_loading_async = job.is_async
            if not job.is_async:
                self._loading.begin(job)
            self._count_found(state)

    def plan_step(self, scheduled: Mapping[str, int], interrupted: Sequence[str]) -> StepPlan:
        """The orders of the step that the scheduler has just made."""
        self._step += 1
        self._is_idle, self._has_paused = not scheduled, False
        for request_id in interrupted:
            state = self._states.get(request_id)
            if state is not None and state.save_from_step != self._step:  # else it was admitted again already
                self._interrupt(state)
        saves = [*self._late_saves, *self._due_saves(scheduled)]
        plan = StepPlan(
            step=self._step,
            life=self._governor.life,
            view=self._governor.view,
            loads=tuple(self._loads),
            saves=tuple(saves),
            interrupted=frozenset(interrupted),
            recompute_block_ids=self._to_recompute(),
            freed=frozenset(self._freed),
        )
        self._prefill.made(plan, scheduled, self._states)
        self._governor.step_begun(self._step)
        for request_id in scheduled:
            if request_id in self._states:
                self._progressed[request_id] = self._states[request_id]
        # last: what raises before loses no promise
        self._loads, self._late_saves, self._freed = [], [], set()
        return plan

    def take_report(self, report: WorkerReport | None, received: Sequence[str]) -> None:
        """The outcome of a step has come: what ranks have stored, and whose pages are in place."""
        if report is not None:
            self._done_step = max(self._done_step, report.step)
            self._prefill.ended(report.step)
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
                self._settle_hold(state)
                if state.is_finished and not state.jobs:
                    self._leaving.pop(request_id, None)
        for state in list(self._progressed.values()):
            if (
                state.load_step is not None
                and state.load_step <= self._done_step
                and not state.is_loading_async
            ):
                self._load_ended(state)

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
            if state.load_step is not None and self._is_step_over(state, state.load_step):
                self._load_ended(state)
            state.release_leases()
        self._loading.end(state.request_id)
        self._settle_hold(state)
        self._governor.untrack(request.request_id)
        holds = bool(state.jobs) and not is_loading
        if state.jobs or is_loading:
            self._leaving[request.request_id] = state
        if holds:
            self._freed.add(request.request_id)
        return holds, state.found.told(self._page_tokens) if state.wants_report else None

    def reset(self) -> bool:
        """The engine's owner voids what was cached: nothing from before is served to this engine any more.

        What is not stored yet of requests that ended stays out: blocks may lose what they hold, as in vLLM's sleep.
        """
        dropped, self._late_saves = self._late_saves, []
        for job in dropped:
            self._save_ended(job.number, [0] * len(job.keys))
        self._governor.reset()
        return not self._leaving  # else workers may be reading blocks of requests that have ended

    def statistics(self) -> dict[str, float]:
        """Counters and gauges by name."""
        saves = Counter() if self._saves is None else self._saves.counts
        under_way = 0 if self._saves is None else self._saves.under_way
        return {
            **self.counts,
            **self._governor.counts.shown(),
            **{f"saves_{name}": float(pages) for name, pages in saves.items()},
            "save_jobs_under_way": float(under_way),
            "requests": float(len(self._states)),
            "hook_s_scheduler": self.hook_s,
            "prefill_tokens_per_s": self._client.prefill_tokens_per_s,
        }

    def shutdown(self) -> None:
        """The engine ends: let go of what is pinned, and detach."""
        self.give_up()
        self._client.close()

    # --- when something has gone wrong here: see fuse.py --------------------------------------------------------------

    def give_up(self) -> set[str]:
        """Let go of what is pinned; the requests that are live."""
        for state in (*self._states.values(), *self._leaving.values()):
            try:
                state.cancel_prefetches()
                state.release_leases()
            except Exception:  # noqa: BLE001  (the others are to be let go of all the same)
                _log.exception("what request %s held was not all given back", state.request_id)
        return set(self._states)

    def take_promised(self) -> tuple[list[LoadJob], set[str]]:
        """Loads that the engine counts on, and requests whose blocks it holds, that no plan has told yet."""
        told, self._loads, self._freed = (self._loads, self._freed), [], set()
        return told

    def failing_load(
        self, request_id: str, local: int, external: int, block_ids: Sequence[int]
    ) -> LoadJob | None:
        """See LookUps."""
        if not external or self._look_ups is None:
            return None
        return self._look_ups.failing_load(request_id, local, external, block_ids, ranks=self._ranks)

    def let_go(self, request_id: str, *, holds: bool) -> bool:
        """A request has ended. True: its blocks are freed when workers have told it; `holds`: they are where that isn't known."""
        state = self._states.pop(request_id, None)
        self._progressed.pop(request_id, None)
        holds = holds if state is None else bool(state.jobs)
        if holds:
            self._freed.add(request_id)
        return holds

    # --- inside ----------------------------------------------------------------------------------------------------

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
                try:
                    state.chains.extend(state.request.all_token_ids)
                except InvalidArgumentError as error:
                    named, state.chains = Uncacheable(UncacheableReason.INPUT_UNNAMED, str(error)), None
        state.named = named
        state.reads_external = self._naming.reads_external(state.request)
        if isinstance(named, Uncacheable):
            self._count_uncacheable(named)

    def _rename(self, state: RequestState) -> None:
        """The weights have got another name while the request waited."""
        variant = state.variant
        if variant is not None and variant.weights_version != self._governor.weights_version:
            state.cancel_prefetches()
            self._settle_hold(state)
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
            if (
                stamp is not None
                and self._saves is not None
                and self._may_store(state)
                and self._is_registered(state)
            ):
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
            and not self._is_ungoverned
            and not self._governor.is_tainted(state.request_id)
        )

    def _save_last(self, state: RequestState, block_ids: Sequence[int]) -> None:
        stamp = self._governor.stamp
        if stamp is None or self._saves is None or not state.is_cacheable or not state.is_admitted:
            return
        if not self._is_step_over(state, state.save_from_step) or self._governor.is_tainted(state.request_id):
            return
        job = self._saves.plan(state, stamp, lambda _: block_ids) if self._is_registered(state) else None
        if job is not None:
            self._late_saves.append(job)

    def _is_step_over(self, state: RequestState, step: int) -> bool:
        # The output of its last step may be what ends it: that step is over, though its report is taken only after this.
        return step <= self._done_step + (0 if state.request.num_in_flight_tokens else 1)

    def _load_ended(self, state: RequestState) -> None:
        """The step that began with a load is over: what the engine counts as computed now is in place, and may be shared."""
        state.release_leases()
        state.load_step = None
        self._loading.end(state.request_id)
        self._settle_hold(state)
        self._governor.loaded(state.request_id)
        tokens = min(state.confirmed_tokens, state.request.num_tokens)
        if tokens:
            self._hash(state.request, tokens)

    def _interrupt(self, state: RequestState, *, has_failed: bool = False) -> None:
        state.interrupt()
        state.has_failed_to_load = has_failed
        self._loading.end(state.request_id)
        self._settle_hold(state)

    def _pause_if_idle(self) -> None:
        """Once in a step: the engine has nothing to do but to ask again at once."""
        if self._is_idle and not self._has_paused:
            self._has_paused = True
            time.sleep(_IDLE_PAUSE_S)

    def _is_registered(self, state: RequestState) -> bool:
        """Whether a request's namespaces can be asked about; others may have taken their places since it was named."""
        variant = state.variant
        if variant is None or self._variants is None:
            return variant is None
        shards = self._variants.get(variant)
        if shards is not None:
            state.shards = shards
        return shards is not None

    def _settle_hold(self, state: RequestState) -> None:
        """Namespaces keep their places while leases or prefetches under them are under way."""
        wanted = state.variant if state.leases or state.prefetches else None
        if self._variants is not None and wanted != state.held:
            if state.held is not None:
                self._variants.release(state.held)
            if wanted is not None:
                self._variants.hold(wanted)
            state.held = wanted

    def _save_ended(self, number: int, pages: Sequence[int]) -> None:
        state = None if self._saves is None else self._saves.ended(number, pages)
        if state is not None and state.is_finished and not state.jobs:
            self._leaving.pop(state.request_id, None)

    def _load_failed(self, request_id: str, page: int) -> None:
        """Nothing of it was hashed yet, and nobody shares it: the engine computes what is missing, for this request alone."""
        state = self._states.get(request_id) or self._leaving.get(request_id)
        self.counts["failed_loads"] += 1
        if state is not None:
            self.counts["failed_load_tokens"] += state.load_failed(page, page_tokens=self._page_tokens)

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
        return state.found.l3_tokens(self._page_tokens)

    def state(self, request_id: str) -> RequestState | None:
        """A request that has not ended."""
        return self._states.get(request_id)
