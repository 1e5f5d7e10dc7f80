"""Adapters that the engine's own cache can't tell apart, though they are of different content."""

from __future__ import annotations

import pytest

from inference_worker.connectors.vllm import adapter_contents
from inference_worker.connectors.vllm.adapter_contents import AdapterContents, EngineAdapter
from tests.connectors.vllm.governed_engine import Engine, EngineRequest
from tests.connectors.vllm.test_governor import governed

NAME = ("tuned", "/adapters/tuned")
ONE, TWO = EngineAdapter(NAME, b"1"), EngineAdapter(NAME, b"2")
PROMPT = [0, 0, 0]


def add(
    engine: Engine, request_id: str, adapter: EngineAdapter, output: list[int] | None = None
) -> EngineRequest:
    request = engine.add(request_id, "", PROMPT, output or [0])
    request.adapter = adapter
    return request


def ended(engine: Engine, request: EngineRequest) -> int:
    for _ in range(20):
        if request.is_finished:
            return engine.hits[request.request_id]
        engine.step()
    raise AssertionError("it never ended")


def test_another_content_finds_nothing_and_takes_the_name_over() -> None:
    engine = governed()
    engine.was_overrun = True  # this evicts what no event selects
    ended(engine, add(engine, "a", ONE))
    assert ended(engine, add(engine, "b", ONE)) == 1
    assert ended(engine, add(engine, "c", TWO)) == 0
    assert ended(engine, add(engine, "d", TWO)) == 1
    assert ended(engine, add(engine, "e", ONE)) == 0


def test_while_the_former_content_runs_the_other_one_neither_takes_nor_gives() -> None:
    engine = governed()
    engine.was_overrun = True
    running = add(engine, "a", ONE, [1] * 12)
    engine.step()
    other = add(engine, "b", TWO, [2] * 12)
    engine.step()
    engine.step()
    assert engine.hits["b"] == 0
    assert engine.governor.is_tainted("b")
    assert not engine.governor.is_tainted("a")
    assert not running.is_finished
    assert not other.is_finished
    assert ended(engine, add(engine, "c", ONE)) == 1, "what the former has computed is found by its like"


def test_contents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_contents, "ADAPTERS_REMEMBERED_MAX", 2)
    contents = AdapterContents()
    adapters = [EngineAdapter((str(number), ""), b"1") for number in range(3)]
    assert [contents.is_other(each) for each in adapters] == [False, False, True]
    contents.replace(adapters[2])
    assert not any(contents.is_other(each) for each in adapters[1:])
