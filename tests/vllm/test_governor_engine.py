"""The recipe of docs/engines.md on vLLM's real scheduler, cache manager and pool: each of its rows that is ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from inference_worker.connectors.vllm.engine_hooks import govern
from inference_worker.connectors.vllm.governed import GateAnswer, UngovernedEngineError
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.tracked import Tracked
from kv_types.events import EventKind
from kv_types.validity import EngineMode
from tests.vllm.governed_scheduler import GovernedScheduler
from tests.vllm.real_scheduler import BLOCK

PROMPT = 4 * BLOCK


class EvictsOnce(Governor):
    """Mutation 33."""

    def _taint(self, request: Tracked, page: int | None) -> None:
        pass


class AppliesInGate(Governor):
    """A newer view is applied at the look-up that sees it."""

    def _answer(self) -> GateAnswer:
        answers = dict(self._answers)
        self.boundary()
        self._answers = answers
        return super()._answer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def engine(folder: Path) -> Iterator[GovernedScheduler]:
    made = GovernedScheduler(folder)
    yield made
    made.close()


def tokens(seed: int, count: int) -> list[int]:
    return [(seed * 7919 + index * 31) % 1000 + 1 for index in range(count)]


def ends(engine: GovernedScheduler, seed: int) -> tuple[int, int, int]:
    """A request's first page is purged while it runs; hits of its prompt, then again, then of all that it has computed."""
    prompt = tokens(seed, PROMPT)
    running = engine.add(prompt, 200)
    for _ in range(8):
        engine.pump()
    engine.pump(lambda: engine.select(prompt, 0))
    engine.pump()
    first, second = engine.hits([*prompt, 5]), engine.hits([*prompt, 5])
    engine.run(running)
    return first, second, engine.hits([*running.all_token_ids, 9])


def test_an_event_before_the_step_is_applied_at_its_boundary(engine: GovernedScheduler) -> None:
    prompt = tokens(1, PROMPT + 2)
    assert engine.hits(prompt) == 0
    assert engine.hits(prompt) == PROMPT
    request = engine.add(prompt)
    engine.select(prompt, 1)
    engine.run(request)
    assert engine.connector.local[request.request_id] == BLOCK
    assert engine.native.arena.row_statistics(engine.native.row)["applied_view"] == engine.native.reader.view
    assert engine.hits(prompt) == PROMPT, "it was computed anew"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_tainted_request_hashes_nothing(folder: Path, depth: int) -> None:
    engine = GovernedScheduler(folder, depth=depth)
    assert ends(engine, 2) == (0, PROMPT, PROMPT)
    engine.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_evicting_once_leaks(folder: Path, depth: int) -> None:
    """Mutation 33: without taint the rest of the request is found on a page that was computed anew."""
    engine = GovernedScheduler(folder, depth=depth, governor=EvictsOnce)
    assert ends(engine, 2)[2] > PROMPT
    engine.close()


def test_blocks_in_use_lose_their_hash_and_not_their_memory(engine: GovernedScheduler) -> None:
    prompt = tokens(3, PROMPT)
    running = engine.add(prompt, 50)
    for _ in range(4):
        engine.pump()
    blocks = engine.scheduler.kv_cache_manager.get_blocks(running.request_id).blocks[0]
    free = engine.pool.get_num_free_blocks()
    assert [block.block_hash is None for block in blocks] == [False] * 4 + [True]
    engine.select(prompt, 1)
    engine.pump()
    assert [block.block_hash is None for block in blocks] == [False, True, True, True, True]
    assert (engine.pool.get_num_free_blocks(), {block.ref_cnt for block in blocks}) == (free, {1})
    assert engine.governor.is_tainted(running.request_id)
    engine.run(running)


def test_all_blocks_of_one_hash_are_evicted(engine: GovernedScheduler) -> None:
    prompt = tokens(4, PROMPT)
    running = [
        engine.add(prompt, 3),
        engine.add(prompt, 3),
    ]  # looked up in one step: neither finds the other's
    engine.pump()
    copies = [engine.scheduler.kv_cache_manager.get_blocks(one.request_id).blocks[0][0] for one in running]
    engine.select(prompt, 0)
    engine.pump()
    assert [block.block_hash for block in copies] == [None, None]
    for request in running:
        engine.run(request)


def test_a_look_up_that_sees_a_newer_view_is_put_off(engine: GovernedScheduler) -> None:
    prompt = tokens(5, PROMPT + 1)
    engine.hits(prompt)
    boundary = engine.governor.boundary
    told: list[int] = []

    def then_an_event() -> None:
        boundary()
        if not told:
            told.append(1)
            engine.select(prompt, 1)

    engine.governor.boundary = then_an_event  # type: ignore[method-assign]
    request = engine.add(prompt)
    engine.pump()
    assert engine.governor.counts.look_ups_deferred == 1
    assert request.request_id not in engine.connector.local
    engine.run(request)
    assert engine.connector.local[request.request_id] == BLOCK


@pytest.mark.parametrize(("governor", "is_tainted"), [(Governor, True), (AppliesInGate, False)])
def test_who_was_admitted_earlier_in_the_step_is_not_overlooked(
    folder: Path, governor: type[Governor], is_tainted: bool
) -> None:
    """Applied in the middle of a step, an event finds the request without a computed token, and its blocks hashed."""
    engine = GovernedScheduler(folder, governor=governor)
    prompt = tokens(6, PROMPT)
    first, second = engine.add(prompt, 50), engine.add(tokens(7, 40))
    gate, began = engine.governor.gate, engine.native.reader.view

    def before_the_second(request_id: str) -> GateAnswer:
        if request_id == second.request_id and engine.native.reader.view == began:
            engine.select(prompt, 0)
        return gate(request_id)

    engine.governor.gate = before_the_second  # type: ignore[method-assign]
    engine.pump()
    engine.pump()
    assert engine.governor.is_tainted(first.request_id) is is_tainted
    engine.run(first)
    engine.close()


def test_a_page_that_comes_later_in_the_prompt_does_not_taint(engine: GovernedScheduler) -> None:
    prompt = tokens(8, 1000)
    for other in range(3):
        engine.add(tokens(20 + other, 300), 30)
    running = engine.add(prompt, 2)
    engine.pump()
    assert 0 < running.num_computed_tokens < 900
    engine.select(prompt, 30)
    engine.pump()
    assert not engine.governor.is_tainted(running.request_id)
    engine.run(running)
    assert engine.hits(prompt) == 31 * BLOCK


@pytest.mark.parametrize("mode", [EngineMode.DROP, EngineMode.KEEP])
def test_past_freshness_nothing_is_served_and_hits_come_back_with_it(folder: Path, mode: EngineMode) -> None:
    engine = GovernedScheduler(folder, mode=mode)
    prompt = tokens(9, PROMPT + 1)
    engine.hits(prompt)
    assert engine.hits(prompt) == PROMPT
    engine.fresh_for(-1)
    assert engine.hits(prompt) == 0, "of mode keep too, unless the log knows of it"
    engine.fresh_for(10**12)
    assert engine.hits(prompt) == PROMPT
    assert engine.governor.counts.blocks_evicted == 0
    engine.close()


def test_a_preempted_request_is_looked_up_anew_and_is_tainted_no_more(engine: GovernedScheduler) -> None:
    prompt = tokens(10, PROMPT)
    running = engine.add(prompt, 60)
    for _ in range(4):
        engine.pump()
    engine.select(prompt, 0)
    engine.pump()
    assert engine.governor.is_tainted(running.request_id)
    engine.preempt(running)
    engine.pump()
    assert not engine.governor.is_tainted(running.request_id)
    engine.run(running)
    assert engine.hits([*running.all_token_ids, 9]) == len(running.all_token_ids) // BLOCK * BLOCK


def test_what_is_computed_anew_is_tainted_no_more(folder: Path) -> None:
    engine = GovernedScheduler(folder, recompute=True)
    prompt = tokens(11, PROMPT)
    running = engine.add(prompt, 100)
    for _ in range(4):
        engine.pump()
    engine.select(prompt, 2)
    engine.pump()
    assert engine.governor.is_tainted(running.request_id)
    assert running.num_computed_tokens == 2 * BLOCK
    engine.pump()
    assert not engine.governor.is_tainted(running.request_id)
    engine.run(running)
    everything = list(running.all_token_ids)
    assert len(everything) == PROMPT + 100
    engine.hits([*prompt, 5])  # pages 2 and 3 of it are found again once they are in the cache
    assert engine.hits([*everything, 9]) == len(everything) // BLOCK * BLOCK
    engine.close()


def test_everything_can_be_evicted_while_blocks_are_in_use(engine: GovernedScheduler) -> None:
    prompt = tokens(12, PROMPT)
    engine.hits(tokens(13, PROMPT))
    running = engine.add(prompt, 20)
    engine.pump()
    engine.publish(EventKind.LOG_STARTED)
    engine.pump()
    assert all(block.block_hash is None for block in engine.pool.blocks)
    assert engine.governor.is_tainted(running.request_id)
    engine.run(running)
    assert engine.governor.reset().startswith("v1+")
    assert engine.hits(prompt) == 0


def test_the_one_hold_follows_taint_and_ends_with_the_last_request(engine: GovernedScheduler) -> None:
    def oldest() -> int:
        return int(engine.native.arena.row_statistics(engine.native.row)["oldest_view"])

    prompt = tokens(14, PROMPT)
    running = engine.add(prompt, 20)
    engine.pump()
    assert oldest() == 1
    engine.select(tokens(15, PROMPT), 0)
    engine.pump()
    engine.pump()
    assert oldest() == 2, "what it holds was not selected"
    engine.select(prompt, 0)
    engine.pump()
    engine.pump()
    assert oldest() == 2, "it rests on what the third event selected"
    engine.run(running)
    assert oldest() in (0, 2**64 - 1)


def test_an_engine_that_looks_different_is_refused(engine: GovernedScheduler) -> None:
    manager = engine.scheduler.kv_cache_manager

    def other(request: Any, more: Any) -> tuple[None, int, int]:
        return None, 0, 0

    manager.get_computed_blocks = other
    with pytest.raises(UngovernedEngineError, match=r"get_computed_blocks takes \(request, more\)"):
        govern(engine.governor, manager)
    del manager.get_computed_blocks
    manager.coordinator.cache_blocks = lambda request: None
    with pytest.raises(UngovernedEngineError, match="cache_blocks"):
        govern(engine.governor, manager)
