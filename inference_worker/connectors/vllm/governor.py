"""Validity inside an engine (R18, gated): what its own prefix cache may serve, and which running requests are tainted.

Events apply at a step's boundary alone. A look-up that sees a newer view than the boundary applied gets nothing and is
put off to the next step: within a step requests hold blocks that the engine doesn't count as computed yet. All requests
that are not tainted share one stamp, that of the applied view: at each boundary they were held against what came since.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inference_worker.connectors.vllm.block_index import BlockIndex
from inference_worker.connectors.vllm.engine_weights import EngineWeights
from inference_worker.connectors.vllm.governed import (
    BlockPool,
    GateAnswer,
    Header,
    LiveRequest,
    StampedView,
)
from inference_worker.connectors.vllm.hold import RequestHold
from inference_worker.connectors.vllm.selection import EVERYTHING_SELECTED, Selection, selection_of
from inference_worker.connectors.vllm.tracked import Tracked
from kv_types.clock import Clock
from kv_types.ids import NO_LIFE, LifeId, Stamp
from kv_types.limits import ENGINE_DEFERRALS_MAX
from kv_types.validity import EngineMode

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


@dataclass(frozen=True, slots=True)
class Boundary:
    """What one step begins with. `recompute`: request → first of its blocks (index in its chain) to compute anew."""

    step: int
    life: LifeId
    view: int
    recompute: dict[str, int] = field(default_factory=dict)


class Governor:
    """Not thread-safe, and for the engine's own thread alone: no lock protects the engine's pool."""

    def __init__(
        self,
        header: Header,
        clock: Clock,
        pool: BlockPool,
        weights: EngineWeights,
        *,
        mode: EngineMode,
        block_tokens: int,
        blocks_per_page: int = 1,
        is_exact: bool = True,
        recompute: bool = False,
    ) -> None:
        """`is_exact` False: blocks can't be told apart (several groups, no names), so any event evicts and taints all.

        `recompute`: tainted requests are to be computed anew from the first selected page on, else they finish as they
        are. Only for an engine that has no further step in flight when it hears of blocks that failed to load.
        """
        self.weights = weights
        self.counts = GovernorCounts()
        self._header = header
        self._clock = clock
        self._pool = pool
        self._mode = mode
        self._block_tokens = block_tokens
        self._blocks_per_page = blocks_per_page
        self._is_exact = is_exact
        self._recompute = recompute
        self._index = BlockIndex(blocks_per_page=blocks_per_page, is_cached=pool.has)
        self._requests: dict[str, Tracked] = {}
        self._answers: dict[str, GateAnswer] = {}
        self._applied: StampedView | None = None
        self._is_present = False
        self._hold = RequestHold(header)
        self._step = 0
        self._claims = False
        self._evict_all_next = False

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
    def step(self) -> int:
        """Number of the step that the last boundary began."""
        return self._step

    @property
    def stamp(self) -> Stamp | None:
        """Of everything that a request which is not tainted has computed in confirmed steps (R1); None: save nothing."""
        if self._applied is None or not self._is_present or self.weights.trouble:
            return None
        return self._applied.stamp

    def is_tainted(self, request_id: str) -> bool:
        """Whether nothing of it may be hashed, saved or shared; so it is with a request that isn't tracked."""
        request = self._requests.get(request_id)
        return request is None or request.is_tainted

    def was_gated(self, request_id: str) -> bool:
        """Whether its look-up in this step went through the gate; if not, the engine looks up by another path."""
        return request_id in self._answers

    def answer(self, request_id: str) -> GateAnswer:
        """What the gate said in this step; EMPTY to a request that did not come to it."""
        return self._answers.get(request_id, GateAnswer.EMPTY)

    # --- requests ---------------------------------------------------------------------------------------------------

    def track(self, request: LiveRequest) -> None:
        """A request has come; before it is looked up."""
        self._requests[request.request_id] = Tracked(
            request, block_tokens=self._block_tokens, blocks_per_page=self._blocks_per_page
        )

    def untrack(self, request_id: str) -> None:
        """It has ended: no step to come uses its blocks. Steps in flight may."""
        self._requests.pop(request_id, None)
        self._answers.pop(request_id, None)
        self._move_hold()

    # --- steps ------------------------------------------------------------------------------------------------------

    def boundary(self) -> Boundary:
        """A step begins: apply what came since the last one, before the engine looks at any request."""
        self._step += 1
        self._answers.clear()
        now = self._present()
        self._is_present = now is not None
        selection, is_foreign = self._news(now)
        has_switched = self.weights.settle(has_news=bool(selection) or now is not self._applied)
        if is_foreign or has_switched or self._evict_all_next:
            self._drop_everything(until_gate=has_switched or self._evict_all_next, was_foreign=is_foreign)
            self._evict_all_next = False
        elif selection:
            self._apply(selection)
        self._check_awaited()
        if now is not None and (self._applied is None or _moved(self._applied, now)):
            self._applied = now
            self._header.set_applied_view(now.view)
            self.counts.boundaries_with_news += 1
        elif now is not None:
            self._applied = now
        self._end_taints()
        self._move_hold()
        self._hold.step_begins(self._step)
        return Boundary(self._step, self.life, self.view, self._recomputations())

    def step_done(self, step: int) -> None:
        """The outputs of all steps up to this one were processed."""
        self._hold.step_done(step)
        self._move_hold()

    def gate(self, request_id: str) -> GateAnswer:
        """May this look-up, which is invoked now, use the engine's own cache? `looked_up` must follow its end."""
        request = self._requests.get(request_id)
        if request is None:  # it could not be tainted
            answer = GateAnswer.EMPTY
        else:
            answer = self._answer()
            request.deferrals = request.deferrals + 1 if answer is GateAnswer.DEFER else 0
            if request.deferrals > ENGINE_DEFERRALS_MAX:
                request.deferrals, answer = 0, GateAnswer.EMPTY
            if answer is not GateAnswer.DEFER:
                request.begin(self.view)
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
        if request is None:
            return False
        if not request.is_tainted:
            self._taint(request, request.first_awaited())
        return not request.is_tainted

    def hashed(self, request_id: str, tokens: int) -> None:
        """The engine has hashed the blocks of its first `tokens` tokens."""
        request = self._requests.get(request_id)
        if self._is_exact and request is not None:
            request.note(self._index, tokens)

    # --- weights ----------------------------------------------------------------------------------------------------

    def switch(self, version: str) -> None:
        """The weights are of this version from now on: all goes, and all that runs is tainted, before the next look-up."""
        self.weights.switch(version)
        self._drop_everything(until_gate=True, was_foreign=False)
        self._evict_all_next = True

    def reset(self) -> str:
        """The weights may have changed under their name: all goes; returns the private version that they have now."""
        version = self.weights.reset()
        self._drop_everything(until_gate=True, was_foreign=False)
        self._evict_all_next = True
        return version

    # --- how --------------------------------------------------------------------------------------------------------

    def _present(self) -> StampedView | None:
        """The header now; None where none can be read, or one that is being closed."""
        now = self._header.stamped_view()
        if now is None or now.life == NO_LIFE:
            return None
        is_older = (
            self._applied is not None and now.life == self._applied.life and now.view < self._applied.view
        )
        return None if is_older else now

    def _news(self, now: StampedView | None) -> tuple[Selection, bool]:
        """What was selected since the last boundary; and whether the life is another one, so that nothing can be told."""
        if now is None:
            return Selection(), False
        before = self._applied
        if before is None or before.life != now.life:
            return EVERYTHING_SELECTED, True
        if before.view == now.view:
            return Selection(), False
        events = self._header.events_since(before.view)
        if self._header.life != now.life:
            events = None
        return selection_of(events, after=before.view, until=now.view), False

    def _answer(self) -> GateAnswer:
        if self.weights.board_moved or self._evict_all_next:
            return GateAnswer.DEFER
        if self._applied is None and self._header.never_attached:
            return GateAnswer.SERVE
        # Before the header is looked at (R19): what this look-up reuses is held from now on.
        if self._is_present and not self._hold.begin(self.life, self.view):
            return GateAnswer.EMPTY
        freshness_ns = self._header.freshness_ns  # then the view (R16)
        now = self._present()
        if now is None:
            is_kept = self._mode is EngineMode.KEEP and self._applied is not None and self._header.outlived
            return GateAnswer.SERVE if is_kept and not self.weights.trouble else GateAnswer.EMPTY
        if self._applied is None or _moved(self._applied, now):
            return GateAnswer.DEFER
        if self.weights.trouble:
            return GateAnswer.EMPTY
        if self._clock.now_ns() < freshness_ns:
            return GateAnswer.SERVE
        return self._claim() if self._mode is EngineMode.KEEP else GateAnswer.EMPTY

    def _claim(self) -> GateAnswer:
        """The log is out of reach: serve on by a claim, which holds acknowledgements back until the look-up is over."""
        claimed, view = self._header.claim_freshness(_KEEP)
        self._claims = True
        if claimed == _KEEP and view == self.view and self._header.life == self.life:
            return GateAnswer.SERVE
        self.looked_up()
        return GateAnswer.EMPTY if claimed != _KEEP else GateAnswer.DEFER

    def _drop_everything(self, *, until_gate: bool, was_foreign: bool) -> None:
        self._index.clear()
        self.counts.blocks_evicted += self._pool.evict_all()
        self.counts.evicted_all += 1
        for request in self._requests.values():
            if request.live.computed_tokens:
                self._taint(request, 0)
                request.is_until_gate |= until_gate
        if was_foreign:  # views of another life mean nothing in this one: whatever it publishes is newer
            for request in self._requests.values():
                request.view = 0

    def _apply(self, selection: Selection) -> None:
        taken = None if not self._is_exact else self._index.take(selection)
        if taken is None:
            self._drop_everything(until_gate=False, was_foreign=False)
            return
        if taken:
            self.counts.blocks_evicted += self._pool.evict(taken)
        for request in self._requests.values():
            self._taint(request, request.first_selected(selection, taken))

    def _check_awaited(self) -> None:
        for request in self._requests.values():
            if not request.is_tainted:
                self._taint(request, request.first_awaited())

    def _taint(self, request: Tracked, page: int | None) -> None:
        if page is not None:
            self.counts.tainted += not request.is_tainted
            request.taint(page)

    def _end_taints(self) -> None:
        """Where what was selected is computed anew, or is held no more; and move all others on to the applied view."""
        for request in self._requests.values():
            if request.is_tainted and request.is_clean_again():
                self.counts.untainted += 1
                request.begin(self.view)
            elif not request.is_tainted:
                request.view = self.view

    def _recomputations(self) -> dict[str, int]:
        if not self._recompute:
            return {}
        wanted = ((name, request.wants_recomputation()) for name, request in self._requests.items())
        return {name: block for name, block in wanted if block is not None}

    def _move_hold(self) -> None:
        if not self._is_present:
            return
        views = [request.view for request in self._requests.values() if request.is_tainted]
        if self._requests:
            views.append(self.view)
        self._hold.move(self.life, min(views) if views else None)


def _moved(before: StampedView, now: StampedView) -> bool:
    return before.life != now.life or before.view != now.view
