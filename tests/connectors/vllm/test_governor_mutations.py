"""Each of these ways to get R18 wrong is caught by the state machine: they live here, as patches, not in the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from inference_worker.connectors.vllm.block_index import BlockIndex
from inference_worker.connectors.vllm.governed import GateAnswer
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.hold import RequestHold
from inference_worker.connectors.vllm.tracked import Tracked
from kv_types.ids import LifeId
from kv_types.validity import EngineMode
from tests.connectors.vllm.governed_engine import Engine
from tests.connectors.vllm.governed_machine import GovernedEngine


class EvictsOnce(Governor):
    """Mutation 33: running requests go on to hash what they compute."""

    def _taint(self, request: Tracked, page: int | None) -> None:
        pass


class TaintsWithoutGate(Governor):
    """Every look-up is served, whatever the header says."""

    def _answer(self) -> GateAnswer:
        return GateAnswer.SERVE


class AppliesInGate(Governor):
    """A newer view is applied where it is seen, in the middle of a step."""

    def _answer(self) -> GateAnswer:
        if self._header.stamped_view() is not None:
            answers = dict(self._answers)
            self.boundary()
            self._answers = answers
        return super()._answer()


class StampsAtLookUp(Governor):
    """The stamp is that of the header at the look-up, not of what was applied."""

    def _answer(self) -> GateAnswer:
        answer = super()._answer()
        found = self._header.stamped_view()
        self._stamp = None if found is None else found[1]
        return answer


class KeepsClaims(Governor):
    """A claim past the sidecar's freshness is not given up after the look-up."""

    def looked_up(self) -> None:
        self._claims = False


class ServesStale(Governor):
    """Freshness is not asked for."""

    def _answer(self) -> GateAnswer:
        answer = super()._answer()
        return GateAnswer.SERVE if answer is GateAnswer.EMPTY else answer


class IgnoresAwaited(Governor):
    """Pages whose tokens are not there yet when their key is selected are overlooked."""

    def _taint(self, request: Tracked, page: int | None) -> None:
        request._awaited.clear()
        super()._taint(request, page)


class RaisesEarly(RequestHold):
    """Steps in flight don't hold."""

    def step_begun(self, step: int) -> None:
        pass


class HoldsAtApplied(RequestHold):
    """Tainted requests don't hold."""

    _governor: Governor

    def move(self, life: LifeId, view: int | None) -> None:
        super().move(life, None if view is None else self._governor.view)


class WithoutClosure(BlockIndex):
    """What stands on a selected page stays."""

    def _take_closure(self, first: Any, taken: set[bytes]) -> None:
        if first.child is None:
            super()._take_closure(first, taken)
        else:
            taken.add(first.hash)


class WithoutTails(BlockIndex):
    """Blocks of pages that are not full stay when an unknown page is selected."""

    def note(self, *arguments: Any, **named: Any) -> None:
        super().note(*arguments, **named)
        for space in self._spaces.values():
            space.tails.clear()


def _index(kind: type[BlockIndex]) -> Callable[[Engine], None]:
    def setup(engine: Engine) -> None:
        step = engine.page_tokens // 2
        engine.governor._index = kind(blocks_per_page=step, is_cached=engine.pool.has)

    return setup


def _hold(kind: type[RequestHold]) -> Callable[[Engine], None]:
    def setup(engine: Engine) -> None:
        engine.governor._hold = kind(engine.header)
        engine.governor._hold._governor = engine.governor  # type: ignore[attr-defined]

    return setup


def _nothing(engine: Engine) -> None:
    pass


_DEEP = {"depth": 2, "blocks_per_page": 1}
_TAILS = {"blocks_per_page": 2, "depth": 1}
_KEEP = {"mode": EngineMode.KEEP, "granted": True, "blocks_per_page": 1}
_DROP = {"mode": EngineMode.DROP, "blocks_per_page": 1, "depth": 1}

MUTANTS: Sequence[tuple[str, type[Governor], Callable[[Engine], None], dict[str, Any], str]] = (
    ("evicts once", EvictsOnce, _nothing, _DROP, "stayed|served|tainted"),
    ("taints without gate", TaintsWithoutGate, _nothing, _DROP, "served"),
    ("applies in the gate", AppliesInGate, _nothing, _DROP, "stayed|served|tainted"),
    ("stamps at the look-up", StampsAtLookUp, _nothing, _DROP, "stamp"),
    ("keeps claims", KeepsClaims, _nothing, _KEEP, "claim"),
    ("serves stale", ServesStale, _nothing, _DROP, "served"),
    ("ignores awaited keys", IgnoresAwaited, _nothing, _DEEP, "stayed|served|tainted"),
    (
        "hold without steps in flight",
        Governor,
        _hold(RaisesEarly),
        _DEEP,
        "raised early|holds `drained` back",
    ),
    ("hold without tainted requests", Governor, _hold(HoldsAtApplied), _DROP, "raised early"),
    ("index without closure", Governor, _index(WithoutClosure), _DROP, "stayed|served"),
    ("index without tails", Governor, _index(WithoutTails), _TAILS, "stayed|served"),
)


@pytest.mark.parametrize(
    ("governor", "setup", "fixed", "told"),
    [m[1:] for m in MUTANTS],
    ids=[m[0].replace(" ", "-") for m in MUTANTS],
)
def test_mutation_is_caught(
    governor: type[Governor], setup: Callable[[Engine], None], fixed: dict[str, Any], told: str
) -> None:
    machine = type(
        "Mutant", (GovernedEngine,), {"governor": governor, "setup": staticmethod(setup), "fixed": fixed}
    )
    with pytest.raises(AssertionError, match=told):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=3000,
                stateful_step_count=25,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
