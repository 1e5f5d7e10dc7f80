"""The governor where names are not known, the weights change, views run away, or nothing can be held; and the index's bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from inference_worker.connectors.vllm import block_index
from inference_worker.connectors.vllm.block_index import BlockIndex
from inference_worker.connectors.vllm.governed import BoardReading, GateAnswer
from inference_worker.connectors.vllm.running_weights import EngineWeights
from inference_worker.connectors.vllm.selection import Selection
from inference_worker.weights import Announced
from kv_types.engine_limits import ENGINE_DEFERRALS_MAX
from kv_types.selectors import Selector
from kv_types.validity import EngineMode
from tests.connectors.vllm.governed_engine import Engine
from tests.connectors.vllm.governed_names import key_of, names


class Board:
    def __init__(self) -> None:
        self.reading: BoardReading | None = BoardReading(0, "")

    def read(self) -> BoardReading | None:
        return self.reading


def governed(mode: EngineMode = EngineMode.DROP, setup: Callable[[Engine], None] = lambda _: None) -> Engine:
    return Engine(names(), mode=mode, setup=setup)


def hits(engine: Engine, request_id: str, prompt: list[int], tenant: str = "") -> int:
    request = engine.add(request_id, tenant, prompt)
    for _ in range(20):
        if request.is_finished:
            return engine.hits[request_id]
        engine.step()
    raise AssertionError("it never ended")


def may_store(engine: Engine) -> bool:
    return engine.governor.stamp is not None


def moved(weights: EngineWeights) -> bool:
    return weights.has_moved


def trouble(weights: EngineWeights) -> str:
    return weights.trouble


def test_without_names_any_event_takes_all() -> None:
    def unnamed(engine: Engine) -> None:
        engine.governor._index = None

    engine = governed(setup=unnamed)
    hits(engine, "a", [0, 0, 0])
    assert hits(engine, "b", [0, 0, 0]) == 1
    engine.was_overrun = True  # nothing is exact here
    engine.select(Selector(key=key_of("blue", (1, 1))))
    assert hits(engine, "c", [0, 0, 0]) == 0


def test_a_set_version_is_seen_at_the_next_look_up_and_drops_all() -> None:
    board = Board()
    engine = governed(
        setup=lambda engine: engine.governor.learn(EngineWeights("v1", board=board), blocks_per_page=1)
    )
    engine.was_overrun = True
    hits(engine, "a", [0, 0, 0])
    running = engine.add("r", "", [1, 1, 1], [1] * 8)
    engine.step()
    engine.inject = lambda point: (
        setattr(board, "reading", BoardReading(1, "v2")) if point == "before look-up" else None
    )
    waiting = engine.add("b", "", [0, 0, 0])
    engine.step()
    assert engine.governor.is_deferred("b")
    engine.inject = lambda _: None
    engine.step()
    assert (engine.hits["b"], engine.governor.weights_version) == (0, "v2")
    assert engine.governor.is_tainted(running.request_id)
    assert not waiting.is_finished


def test_while_ranks_disagree_nothing_is_served_or_stored() -> None:
    board = Board()
    engine = governed(
        setup=lambda engine: engine.governor.learn(EngineWeights("v1", board=board), blocks_per_page=1)
    )
    engine.was_overrun = True
    hits(engine, "a", [0, 0, 0])
    board.reading = None
    assert hits(engine, "b", [0, 0, 0]) == 0
    assert not may_store(engine)
    board.reading = BoardReading(1, "v2")
    assert hits(engine, "c", [0, 0, 0]) == 0
    assert may_store(engine)
    assert hits(engine, "d", [0, 0, 0]) == 1


def test_numbers_of_reports_count_where_no_board_can_be_read() -> None:
    weights = EngineWeights("v1", random=bytes)
    weights.watch((0, 0))
    assert not moved(weights)
    weights.watch((1, 0))
    assert moved(weights)
    assert weights.settle(has_news=False)
    assert weights.version == "v1+" + "00" * 8
    assert not moved(weights)


def test_boards_that_say_less_than_ranks_have_told_are_not_theirs() -> None:
    weights = EngineWeights("v1", board=Board(), random=bytes)
    weights.watch((0, 0))
    assert not moved(weights)
    weights.watch((1, 1))
    assert moved(weights)
    assert weights.settle(has_news=False)
    assert weights.version == "v1+" + "00" * 8
    assert not trouble(weights)


def test_announcements_are_followed() -> None:
    announced: list[Announced | None] = [None]
    weights = EngineWeights("v1", announced=lambda: announced[0])
    assert trouble(weights)
    announced[0] = Announced("v1", 0, 1)
    assert not weights.settle(has_news=False)
    assert not trouble(weights)
    announced[0] = Announced("v2", 1, 1)
    assert weights.settle(has_news=True)
    assert weights.version == "v2"


def test_reset_gives_a_private_version_and_drops_all() -> None:
    engine = governed()
    hits(engine, "a", [0, 0, 0])
    engine.was_overrun = True
    assert engine.governor.reset() == engine.governor.weights_version == "v1+" + "00" * 8
    assert engine.governor.gate("nobody") is GateAnswer.EMPTY
    assert hits(engine, "b", [0, 0, 0]) == 0


def test_a_storm_of_events_starves_nobody() -> None:
    engine = governed()
    hits(engine, "a", [0, 0, 0])
    engine.inject = lambda point: (
        engine.select(Selector(tenant="blue")) if point == "after boundary" else None
    )
    engine.add("b", "", [0, 0, 0])
    for _ in range(ENGINE_DEFERRALS_MAX):
        engine.step()
        assert engine.governor.is_deferred("b")
    engine.step()
    assert engine.hits["b"] == 0


def test_keep_serves_past_freshness_only_when_it_is_granted() -> None:
    engine = governed(EngineMode.KEEP)
    hits(engine, "a", [0, 0, 0])
    engine.cut_off()
    assert hits(engine, "b", [0, 0, 0]) == 0
    engine.header.keep_granted = True
    assert hits(engine, "c", [0, 0, 0]) == 1
    engine.header.die()
    assert hits(engine, "d", [0, 0, 0]) == 1, "the log still names it to every fence"
    engine.restart_sidecar()
    assert hits(engine, "e", [0, 0, 0]) == 0


def test_an_engine_without_a_sidecar_serves_as_it_would_alone() -> None:
    engine = governed()
    engine.header.is_there, engine.header.never_attached = False, True
    hits(engine, "a", [0, 0, 0])
    assert hits(engine, "b", [0, 0, 0]) == 1
    assert not may_store(engine)
    engine.restart_sidecar()
    assert hits(engine, "c", [0, 0, 0]) == 0


def test_where_no_view_can_be_held_nothing_is_reused() -> None:
    engine = governed()
    hits(engine, "a", [0, 0, 0])
    engine.header.may_hold = False
    assert hits(engine, "b", [0, 0, 0]) == 0


def test_the_index_forgets_what_the_pool_has_lost() -> None:
    cached: set[bytes] = set()
    index = BlockIndex(blocks_per_page=1, is_cached=cached.__contains__)
    for chain in range(200):
        hashes = [f"{chain}/{block}".encode() for block in range(10)]
        cached.clear()
        cached.update(hashes)
        index.note(names()[""], hashes, (b"", b""), start=0, end=10)
        assert len(index) <= 40


def test_more_than_the_index_holds_is_taken_by_any_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "ENGINE_BLOCKS_INDEXED_MAX", 15)
    index = BlockIndex(blocks_per_page=1, is_cached=lambda _: True)
    event = Selection()
    event.add(Selector(tenant="nobody"))
    hashes = [bytes([block]) for block in range(20)]
    index.note(names()[""], hashes, (b"", b""), start=0, end=10)
    assert index.take(event) == set()
    index.note(names()[""], hashes, (b"", b""), start=10, end=20)
    assert index.take(event) is None
    assert index.take(event) == set()
