"""A fuse before the scheduler's side: what goes wrong in it ends our part and not the engine.

The first unexpected exception blows it, for good: it is logged and counted, the engine's own cache gives and takes nothing any
more, nothing is looked up or stored. What the engine was promised it still hears of: loads, as failed where they can't be
ordered; and blocks that it holds for us, as free when workers have read them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from inference_worker.connectors.vllm.governed import BlockPool, GateAnswer
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.plan import LoadJob, StepPlan, WorkerReport
from inference_worker.connectors.vllm.scheduler_side import SchedulerSide

T = TypeVar("T")
_log = logging.getLogger("stratakv.vllm")


class Fuse:
    """`is_blown` for good after the first exception. `on_blown` is called once."""

    def __init__(self, on_blown: Callable[[], None]) -> None:
        self.is_blown = False
        self._on_blown = on_blown

    def run(self, hook: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """What the hook answers; `otherwise`, where it can't."""
        if not self.is_blown:
            try:
                return hook()
            except Exception:  # noqa: BLE001  (whatever it is, the engine is to go on)
                self.is_blown = True
                _log.exception(
                    "stratakv has failed in this engine, which goes on without it and without its own prefix cache; restart "
                    "it, and please report this"
                )
                self.attempt(self._on_blown)
        return otherwise()

    @staticmethod
    def attempt(hook: Callable[[], object]) -> None:
        """Do what can still be done of letting go."""
        try:
            hook()
        except Exception:  # noqa: BLE001  (likewise)
            _log.exception("what stratakv held in this engine was not all given back")


class FusedGovernor:
    """What is put into the engine's cache manager: a governor behind the fuse."""

    def __init__(self, governor: Governor, fuse: Fuse) -> None:
        self._governor = governor
        self._fuse = fuse

    def bind(self, pool: BlockPool, *, block_tokens: int, can_be_exact: bool) -> None:
        """See Governor. May raise: the engine has not started."""
        self._governor.bind(pool, block_tokens=block_tokens, can_be_exact=can_be_exact)

    def boundary(self) -> None:
        """See Governor."""
        self._fuse.run(self._governor.boundary, lambda: None)

    def gate(self, request_id: str) -> GateAnswer:
        """See Governor."""
        return self._fuse.run(lambda: self._governor.gate(request_id), lambda: GateAnswer.EMPTY)

    def looked_up(self) -> None:
        """See Governor."""
        self._fuse.run(self._governor.looked_up, lambda: None)

    def may_hash(self, request_id: str) -> bool:
        """See Governor."""
        return self._fuse.run(lambda: self._governor.may_hash(request_id), lambda: False)

    def hashed(self, request_id: str, tokens: int) -> None:
        """See Governor."""
        self._fuse.run(lambda: self._governor.hashed(request_id, tokens), lambda: None)


class FusedScheduler:
    """SchedulerSide behind a fuse; the engine's thread calls its hooks in the order of a step."""

    def __init__(self, side: SchedulerSide, governor: Governor) -> None:
        self.side = side
        self._governor = governor
        self._fuse = Fuse(self._blown)
        self._step = 0
        self._local: dict[str, int] = {}
        self._receiving: set[str] = set()
        self._failing: list[LoadJob] = []
        self._before: set[str] = set()

    def bind(self, kv_cache_manager: Any) -> None:
        """See SchedulerSide. Raises UngovernedEngineError."""
        self.side.bind(kv_cache_manager, FusedGovernor(self._governor, self._fuse))

    def arrive(self, request: Any) -> None:
        """See SchedulerSide."""
        self._fuse.run(lambda: self.side.arrive(request), lambda: None)

    def match(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """See SchedulerSide."""
        self._local[request.request_id] = local_tokens
        return self._fuse.run(lambda: self.side.match(request, local_tokens), lambda: (0, False))

    def admit(self, request: Any, block_ids: Sequence[int], external_tokens: int) -> None:
        """See SchedulerSide. What was promised and can't be ordered is told as failed."""
        self._fuse.run(
            lambda: self.side.admit(request, block_ids, external_tokens),
            lambda: self._fail(request.request_id, block_ids, external_tokens),
        )
        state = self.side.state(request.request_id)
        if external_tokens and self.side.is_async and (state is None or state.is_loading_async):
            self._receiving.add(request.request_id)

    def plan_step(self, scheduled: Mapping[str, int], interrupted: Sequence[str]) -> StepPlan:
        """See SchedulerSide."""
        self._step += 1
        return self._fuse.run(
            lambda: self.side.plan_step(scheduled, interrupted), lambda: self._bare_plan(interrupted)
        )

    def take_report(self, report: WorkerReport | None, received: Sequence[str]) -> None:
        """See SchedulerSide."""
        self._receiving.difference_update(received)
        self._fuse.run(lambda: self.side.take_report(report, received), lambda: None)

    def finish(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, dict[str, Any] | None]:
        """See SchedulerSide."""
        self._local.pop(request.request_id, None)
        return self._fuse.run(
            lambda: self.side.finish(request, block_ids), lambda: self._finish_bare(request.request_id)
        )

    def l3_tokens(self, request_id: str, tokens: int) -> int:
        """How many of a request's tokens that were found outside the engine L3 gave."""
        state = self.side.state(request_id)
        return (
            0 if state is None else self._fuse.run(lambda: min(tokens, self.side.l3_tokens(state)), lambda: 0)
        )

    def reset(self) -> bool:
        """Void what was cached; whether no blocks of ended requests are read any more."""
        return self._fuse.run(self.side.reset, lambda: False)

    def statistics(self) -> dict[str, float]:
        """Counters and gauges by name."""
        counts = self._fuse.run(self.side.statistics, dict[str, float])
        return {**counts, "fuse_blown": float(self._fuse.is_blown)}

    # --- when it is blown -------------------------------------------------------------------------------------------

    def _blown(self) -> None:
        self._before = self.side.give_up()
        self._fuse.attempt(self._governor.looked_up)  # no claim outlives the look-up that it was made for
        self._end_hold()

    def _fail(self, request_id: str, block_ids: Sequence[int], external_tokens: int) -> None:
        """Order a load that can't succeed: its keys are nobody's."""
        job = self.side.failing_load(request_id, self._local.get(request_id, 0), external_tokens, block_ids)
        if job is not None:
            self._failing.append(job)

    def _bare_plan(self, interrupted: Sequence[str]) -> StepPlan:
        loads, freed = self.side.take_promised()
        failing, self._failing = self._failing, []
        ordered = {job.request_id for job in loads}
        loads += [job for job in failing if job.request_id not in ordered]
        return StepPlan(
            step=self._step, loads=tuple(loads), interrupted=frozenset(interrupted), freed=frozenset(freed)
        )

    def _finish_bare(self, request_id: str) -> tuple[bool, dict[str, Any] | None]:
        holds = request_id in self._before
        self._before.discard(request_id)
        self._end_hold()
        if request_id in self._receiving:  # the engine holds its blocks by itself
            self.side.let_go(request_id, holds=False)
            return False, None
        return self.side.let_go(request_id, holds=holds), None

    def _end_hold(self) -> None:
        """When the last request has ended that was live then, nothing here rests on what an invalidation may select."""
        if not self._before:
            self._fuse.attempt(self._governor.end)
