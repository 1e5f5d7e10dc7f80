"""Validity inside an engine (R18, gated): what its own prefix cache may serve, and which running requests are tainted.

Events apply at a step's boundary alone. A look-up that sees a newer view than the boundary applied gets nothing and is
put off to the next step: within a step requests hold blocks that the engine doesn't count as computed yet. All requests
that are not tainted share one stamp, that of the applied view: at each boundary they were held against what came since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference_worker.connectors.vllm.adapter_contents import AdapterContents, EngineAdapter
from inference_worker.connectors.vllm.block_index import BlockIndex
from inference_worker.connectors.vllm.governed import (
    BlockPool,
    GateAnswer,
    Header,
    LiveRequest,
)
from inference_worker.connectors.vllm.hold import RequestHold
from inference_worker.connectors.vllm.running_weights import EngineWeights
from inference_worker.connectors.vllm.selection import EVERYTHING_SELECTED, Selection, selection_of
from inference_worker.connectors.vllm.tracked import BlockGeometry, Tracked
from kv_types.clock import Clock
from kv_types.engine_limits import ENGINE_DEFERRALS_MAX
from kv_types.ids import NO_LIFE, LifeId, Stamp
from kv_types.validity import EngineMode, ObservedView

_KEEP = 2**64 - 1


@dataclass(slots=True)
class GovernorCounts:
    """What was done, for metrics."""

    boundaries_with_news: int = 0
    blocks_evicted: int = 0
    evicted_all: int = 0
    tainted: int = 0
    untainted: int = 0
    look_ups_deferred: int = 0
    look_ups_emptied: int = 0

    def shown(self) -> dict[str, float]:
        """As the connector's metrics name them."""
        return {
            "events_applied": float(self.boundaries_with_news),
            "evicted_blocks": float(self.blocks_evicted),
            "tainted_requests": float(self.tainted),
            "gate_deferred": float(self.look_ups_deferred),
            "gate_emptied": float(self.look_ups_emptied),
        }


class _NoPool:
    """Stands for the engine's pool until there is one."""

    def has(self, block_hash: bytes) -> bool:
        return False

    def evict(self, block_hashes: Iterable[bytes]) -> int:
        return 0

    def evict_all(self) -> int:
        return 0


_NO_POOL = _NoPool()


class Governor:
    """Not thread-safe, and for the engine's own thread alone: no lock protects the engine's pool."""

    def __init__(self, header: Header, clock: Clock, *, mode: EngineMode, recompute: bool = False) -> None:
        """`recompute`: tainted requests are to be computed anew from the first selected page on, else they finish as they
        are. Only for an engine that has no further step in flight when it hears of blocks that failed to load.
        """
        self.weights = EngineWeights("unnamed")
        self.counts = GovernorCounts()
        self._header = header
        self._clock = clock
        self._mode = mode
        self._recompute = recompute
        self._pool: BlockPool = _NO_POOL
        self._geometry = BlockGeometry(1, 1)
        self._can_be_exact = False
        self._index: BlockIndex | None = None
        self._requests: dict[str, Tracked] = {}
        self._marked: dict[str, Tracked] = {}  # tainted, or may turn out to be
        self._answers: dict[str, GateAnswer] = {}
        self._loading: set[str] = set()
        self._applied: ObservedView | None = None
        self._stamp: Stamp | None = None
        self._hold = RequestHold(header)
        self._adapters = AdapterContents()
        self._claims = False
        self._is_void = False

    def bind(self, pool: BlockPool, *, block_tokens: int, can_be_exact: bool) -> None:
        """The engine's cache is there. Until names are known too, and unless `can_be_exact`, any event takes all of it."""
        self._pool = pool
        self._geometry = BlockGeometry(block_tokens, 1)
        self._can_be_exact = can_be_exact

    def learn(self, weights: EngineWeights, *, blocks_per_page: int) -> None:
        """The engine's computations have names: from now on events take exactly what they select."""
        self.weights = weights
        self._geometry = BlockGeometry(self._geometry.block_tokens, blocks_per_page)
        if self._can_be_exact:
            self._index = BlockIndex(blocks_per_page=blocks_per_page, is_cached=self._pool.has)
        self._is_void = True  # what was cached before is not in the index

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def life(self) -> LifeId:
        """The life whose events were applied last; NO_LIFE before the first."""
        return NO_LIFE if self._applied is None else self._applied.life

    @property
    def view(self) -> int:
        """The view that the last boundary applied; 0 before the first."""
        return 0 if self._applied is None else self._applied.view

    @property
    def weights_version(self) -> str | None:
        """What the weights are called from here on; None: as the workers named them when they loaded them."""
        return self.weights.version

    @property
    def stamp(self) -> Stamp | None:
        """Of everything that a request which is not tainted has computed in confirmed steps (R1); None: save nothing."""
        return None if self.weights.trouble else self._stamp

    def is_tainted(self, request_id: str) -> bool:
        """Whether nothing of it may be hashed, saved or shared; so it is with a request that isn't tracked."""
        request = self._requests.get(request_id)
        return request is None or request.is_tainted

    def was_gated(self, request_id: str) -> bool:
        """Whether its look-up in this step went through the gate; if not, the engine looks up by another path."""
        return request_id in self._answers

    def is_deferred(self, request_id: str) -> bool:
        """Whether the gate has put its look-up off to the next step."""
        return self._answers.get(request_id) is GateAnswer.DEFER

    # --- requests ---------------------------------------------------------------------------------------------------

    def track(self, request: LiveRequest) -> None:
        """A request has come; before it is looked up."""
        self._requests[request.request_id] = Tracked(request, self._geometry)

    def untrack(self, request_id: str) -> None:
        """It has ended: no step to come uses its blocks. Steps in flight may."""
        self._requests.pop(request_id, None)
        self._marked.pop(request_id, None)
        self._answers.pop(request_id, None)
        self._loading.discard(request_id)
        self._move_hold()

    def end(self) -> None:
        """Nothing in the engine rests on anything any more, and nothing will."""
        self._requests.clear()
        self._marked.clear()
        self._hold.end()

    # --- steps ------------------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """A step begins: apply what came since the last one, before the engine looks at any request."""
        self._answers.clear()
        now, stamp = self._present()
        selection, is_foreign = self._news(now)
        has_moved = now is not None and now != self._applied
        has_switched = self.weights.settle(has_news=has_moved)
        if is_foreign or has_switched or self._is_void:
            self._drop_everything(until_gate=has_switched or self._is_void)
        elif selection:
            self._apply(selection)
        if is_foreign:  # views of another life mean nothing in this one: whatever it publishes is newer
            for request in self._marked.values():
                request.view = 0
        self._is_void = False
        self._review_marked()
        self._stamp = stamp
        if now is not None and has_moved:
            self._applied = now
            self._header.set_applied_view(now.view)
            self.counts.boundaries_with_news += 1
        self._move_hold()

    def to_recompute(self) -> dict[str, int]:
        """Request → first of its blocks (index in its chain) to compute anew, each told once. In a step, behind its boundary."""
        if not self._recompute:
            return {}
        wanted = ((name, request.wants_recomputation()) for name, request in self._marked.items())
        return {name: block for name, block in wanted if block is not None}

    def step_begun(self, step: int) -> None:
        """The step of the last boundary was made, under this number."""
        if self._requests or self._hold.is_held:
            self._hold.step_begun(step)

    def step_done(self, step: int) -> None:
        """The outputs of all steps up to this one were processed."""
        self._hold.step_done(step)
        self._move_hold()

    def watch_versions(self, numbers: tuple[int, ...]) -> None:
        """How often a weights version was set in each rank, by their reports."""
        self.weights.watch(numbers)

    def gate(self, request_id: str) -> GateAnswer:
        """May this look-up, which is invoked now, use the engine's own cache? `looked_up` must follow its end."""
        request = self._requests.get(request_id)
        if request is None:  # it could not be tainted
            answer = GateAnswer.EMPTY
        else:
            answer = self._answer()
            self._loading.discard(request_id)
            adapter = request.live.adapter
            is_twin = answer is not GateAnswer.DEFER and self._adapters.is_other(adapter)
            if is_twin and adapter is not None:
                answer = self._answer_twin(adapter)
            request.deferrals = request.deferrals + 1 if answer is GateAnswer.DEFER else 0
            if request.deferrals > ENGINE_DEFERRALS_MAX:
                request.deferrals, answer = 0, GateAnswer.EMPTY
            request.forget_noted()
            if answer is not GateAnswer.DEFER:
                request.begin()
                self._marked.pop(request_id, None)
                if is_twin:
                    self._taint(request, 0)
                    request.is_until_gate = True
        self._answers[request_id] = answer
        self.counts.look_ups_deferred += answer is GateAnswer.DEFER
        self.counts.look_ups_emptied += answer is GateAnswer.EMPTY
        return answer

    def looked_up(self) -> None:
        """The look-up has returned: nothing is claimed any more."""
        if self._claims:
            self._claims = False
            self._header.claim_freshness(0)

    # --- what the engine hashes -------------------------------------------------------------------------------------

    def may_hash(self, request_id: str) -> bool:
        """Whether blocks of a request may come into the engine's own cache."""
        request = self._requests.get(request_id)
        if request is None or request_id in self._loading:
            return False
        if request.is_awaiting and not request.is_tainted:
            self._taint(request, request.first_awaited())
        return not request.is_tainted

    def await_load(self, request_id: str) -> None:
        """What is loaded for a request may fail: nothing of it is hashed until `loaded`, or its next look-up.

        The engine hashes blocks before a step fills them, and leaves the hashes of those whose load has failed.
        """
        self._loading.add(request_id)

    def loaded(self, request_id: str) -> None:
        """What a request's blocks lack is known to the engine."""
        self._loading.discard(request_id)

    def hashed(self, request_id: str, tokens: int) -> None:
        """The engine has hashed the blocks of its first `tokens` tokens."""
        request = self._requests.get(request_id)
        if self._index is not None and request is not None:
            request.note(self._index, tokens)

    # --- weights ----------------------------------------------------------------------------------------------------

    def switch(self, version: str) -> None:
        """The weights are of this version from now on: all goes, and all that runs is tainted, before the next look-up."""
        self.weights.switch(version)
        self._void()

    def reset(self) -> str:
        """The weights may have changed under their name: all goes; returns the private version that they have now."""
        version = self.weights.reset()
        self._void()
        return version

    def _void(self) -> None:
        self._drop_everything(until_gate=True)
        self._is_void = True  # also what steps are hashing now, or in this step

    # --- how --------------------------------------------------------------------------------------------------------

    def _present(self) -> tuple[ObservedView | None, Stamp | None]:
        """The header now; None where none can be read, or one that is being closed."""
        found = self._header.stamped_view()
        if found is None or found[0].life == NO_LIFE:
            return None, None
        now, stamp = found
        is_older = (
            self._applied is not None and now.life == self._applied.life and now.view < self._applied.view
        )
        return (None, None) if is_older else (now, stamp)

    def _news(self, now: ObservedView | None) -> tuple[Selection, bool]:
        """What was selected since the last boundary; and whether the life is another one, so that nothing can be told."""
        before = self._applied
        if now is None or now == before:
            return Selection(), False
        if before is None or before.life != now.life:
            return EVERYTHING_SELECTED, True
        events = self._header.events_since(before.view)
        if self._header.life != now.life:
            events = None
        return selection_of(events, after=before.view, until=now.view), False

    def _answer(self) -> GateAnswer:
        if self.weights.has_moved or self._is_void:
            return GateAnswer.DEFER
        if self._applied is None and self._header.never_attached:
            return GateAnswer.SERVE  # a member of nothing: it serves as it would alone
        # Before the header is looked at (R19): what this look-up reuses is held from now on.
        can_hold = self._stamp is None or self._hold.begin(self.life, self.view)
        freshness_ns = self._header.freshness_ns  # then the view (R16)
        now, _ = self._present()
        if now is not None and now != self._applied:
            return GateAnswer.DEFER
        if now is None or self.weights.trouble or not can_hold:
            return GateAnswer.EMPTY
        if self._clock.now_ns() < freshness_ns:
            return GateAnswer.SERVE
        return self._claim() if self._mode is EngineMode.KEEP else GateAnswer.EMPTY

    def _answer_twin(self, adapter: EngineAdapter) -> GateAnswer:
        """The engine would take blocks of another content for this adapter's. While such are in use it gets nothing and gives
        nothing; else all goes, and the name is this content's."""
        if any(
            other.live.computed_tokens
            and other.live.adapter is not None
            and other.live.adapter.name == adapter.name
            and other.live.adapter.content != adapter.content
            for other in self._requests.values()
        ):
            return GateAnswer.EMPTY
        self._adapters.replace(adapter)
        self._void()
        return GateAnswer.DEFER

    def _claim(self) -> GateAnswer:
        """The log is out of reach, or the sidecar has died: serve on by a claim, which holds acknowledgements back meanwhile."""
        claimed, view = self._header.claim_freshness(_KEEP)
        self._claims = True
        if claimed == _KEEP and view == self.view and self._header.life == self.life:
            return GateAnswer.SERVE
        self.looked_up()
        return GateAnswer.EMPTY if claimed != _KEEP else GateAnswer.DEFER

    def _drop_everything(self, *, until_gate: bool) -> None:
        if self._index is not None:
            self._index.clear()
        self.counts.blocks_evicted += self._pool.evict_all()
        self.counts.evicted_all += 1
        for request in self._requests.values():
            if request.live.computed_tokens:
                self._taint(request, 0)
                request.is_until_gate |= until_gate

    def _apply(self, selection: Selection) -> None:
        taken = None if self._index is None else self._index.take(selection)
        if taken is None:
            self._drop_everything(until_gate=False)
            return
        if taken:
            self.counts.blocks_evicted += self._pool.evict(taken)
        for request in self._requests.values():
            self._taint(request, request.first_selected(selection, taken))

    def _taint(self, request: Tracked, page: int | None) -> None:
        if page is not None:
            self.counts.tainted += not request.is_tainted
            request.taint(page)
        if request.is_tainted or request.is_awaiting:
            if request.live.request_id not in self._marked:
                request.view = self.view
            self._marked[request.live.request_id] = request

    def _review_marked(self) -> None:
        """Taint who turns out to be, and no longer those of whom nothing is left that was selected."""
        for name, request in list(self._marked.items()):
            if not request.is_tainted:
                self._taint(request, request.first_awaited())
            elif request.is_clean_again():
                self.counts.untainted += 1
                request.begin()
            if not request.is_tainted and not request.is_awaiting:
                del self._marked[name]

    def _move_hold(self) -> None:
        views = [request.view for request in self._marked.values() if request.live.computed_tokens]
        if self._requests:
            views.append(self.view)
        self._hold.move(self.life, min(views) if views else None)
