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
from kv_types.selectors import Selector
from kv_types.validity import EngineMode
from tests.connectors.vllm.governed_engine import Engine, EngineRequest
from tests.connectors.vllm.governed_machine import GovernedEngine
from tests.connectors.vllm.governed_names import key_of, names


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

MUTANTS: Sequence[tuple[str, type[Governor], Callable[[Engine], None], dict[str, Any], bool]] = (
    ("evicts once", EvictsOnce, _nothing, _DROP, True),
    ("stamps at the look-up", StampsAtLookUp, _nothing, _DROP, True),
    ("keeps claims", KeepsClaims, _nothing, _KEEP, False),
    ("serves stale", ServesStale, _nothing, _DROP, False),
    ("hold without steps in flight", Governor, _hold(RaisesEarly), _DEEP, True),
    ("hold without tainted requests", Governor, _hold(HoldsAtApplied), _DROP, True),
    ("index without closure", Governor, _index(WithoutClosure), _DROP, True),
    ("index without tails", Governor, _index(WithoutTails), _TAILS, True),
)


@pytest.mark.parametrize(
    ("governor", "setup", "fixed", "is_calm"),
    [m[1:] for m in MUTANTS],
    ids=[m[0].replace(" ", "-") for m in MUTANTS],
)
def test_mutation_is_caught(
    governor: type[Governor], setup: Callable[[Engine], None], fixed: dict[str, Any], is_calm: bool
) -> None:
    """By whichever promise it breaks first: the machine without a mutation breaks none."""
    patched = {"governor": governor, "setup": staticmethod(setup), "fixed": fixed, "is_calm": is_calm}
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            type("Mutant", (GovernedEngine,), patched),
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


def _selected_before_the_second_look_up(
    governor: type[Governor], first: list[int], second: list[int]
) -> None:
    """Two requests are looked up in one step; between the two a page that both begin with is selected."""
    engine = Engine(names(), mode=EngineMode.DROP, governor=governor)
    for request_id, prompt in (("a", first), ("b", second)):
        engine.add(request_id, "", prompt, [1] * 6)
    looked_up: list[str] = []

    def inject(point: str) -> None:
        looked_up.append(point)
        if looked_up.count("before look-up") == 2 and point == "before look-up":
            engine.select(Selector(key=key_of("", (0, 0))))

    engine.inject = inject
    for _ in range(3):
        engine.step()


def _selected_while_its_tokens_come(governor: type[Governor]) -> None:
    """A page is selected whose first token is computed and whose second one is being sampled."""
    engine = Engine(names(), mode=EngineMode.DROP, depth=2, governor=governor)
    request = engine.add("a", "", [0], [0, 1, 1, 1])
    engine.step()
    engine.select(Selector(key=key_of("", (0, 0))))
    for _ in range(3):
        engine.step()
    assert engine.governor.is_tainted(request.request_id)


def _served_after_the_fence(governor: type[Governor]) -> None:
    engine = Engine(names(), mode=EngineMode.DROP, governor=governor)
    engine.end(_after(engine, engine.add("a", "", [0, 0, 0])))
    engine.add("b", "", [0, 0, 1])
    engine.inject = lambda point: (
        engine.select(Selector(key=key_of("", (0, 0))))
        if point == "after boundary" and len(engine.records) == 0
        else None
    )
    engine.step()


def _after(engine: Engine, request: EngineRequest) -> EngineRequest:
    engine.step()
    return request


@pytest.mark.parametrize(
    ("scenario", "mutant"),
    [
        (_served_after_the_fence, TaintsWithoutGate),
        (lambda governor: _selected_before_the_second_look_up(governor, [0, 0, 0], [1, 0, 1]), AppliesInGate),
        (_selected_while_its_tokens_come, IgnoresAwaited),
    ],
    ids=["taints-without-gate", "applies-in-the-gate", "ignores-awaited-keys"],
)
def test_scenario_catches(scenario: Callable[[type[Governor]], None], mutant: type[Governor]) -> None:
    scenario(Governor)
    with pytest.raises(AssertionError):
        scenario(mutant)
