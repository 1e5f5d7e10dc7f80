"""Figures of real engines: judged in the right direction, made of hits that were hits, and said to be impossible without vLLM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import cli, report, vllm
from benchmarks.own_engine import Answer

ANSWER = Answer(
    tokens=(5,), text="", logprobs=(), prompt_logprobs=(), finish_reason="length", prompt_tokens=4096, cached_tokens=0,
    local_tokens=0, external_tokens=0, kv_transfer_params=None, first_token_s=10.0, whole_s=10.0,
)  # fmt: skip


class ScriptedEngine:
    """Answers as an engine whose caches work: by what it and its neighbours have computed."""

    def __init__(self, shared: set[tuple[int, ...]] | None, *, hit_s: float) -> None:
        self._shared = shared
        self._own: set[tuple[int, ...]] = set()
        self._hit_s = hit_s
        self._hook_s = 0.0

    def ask(self, prompt: list[int]) -> Answer:
        key = tuple(prompt)
        is_own, is_shared = key in self._own, self._shared is not None and key in self._shared
        self._own.add(key)
        if is_own or is_shared:
            took_s = 0.4 if is_own else self._hit_s
            return replace(
                ANSWER, cached_tokens=3968, external_tokens=0 if is_own else 3968, first_token_s=took_s
            )
        if self._shared is not None:
            self._shared.add(key)
            self._hook_s += 0.2
        return ANSWER

    def wait_idle(self) -> None:
        pass

    def reset_prefix_cache(self) -> bool:
        self._own.clear()
        return True

    def metric(self, name: str) -> float:
        assert name == "vllm:stratakv_hook_seconds"
        return self._hook_s


def measured(*, hit_s: float = 0.5, rounds: int = 3) -> vllm.Results:
    shared: set[tuple[int, ...]] = set()
    made: list[Any] = [ScriptedEngine(of, hit_s=hit_s) for of in (shared, shared, None)]
    engines = vllm.Engines((made[0], made[1]), made[2])
    results = vllm.Results()
    engines.warm_up()
    for number in range(rounds):
        engines.round(number, results)
    return results


def test_figures_come_of_the_rounds() -> None:
    results = measured()
    assert results.keys == pytest.approx({
        "ttft_cold_ms": 10_000, "ttft_plain_cold_ms": 10_000, "ttft_connector_hit_ms": 500, "ttft_local_hit_ms": 400,
        "connector_over_local": 1.25, "connector_minus_local_ms": 100, "cold_over_hit": 20, "cold_over_plain": 1,
        "save_hook_pct": 2,
    })  # fmt: skip
    told = {key: vllm.is_met(key, results.keys[key]) for key, *_ in vllm.BUDGETS}
    assert told == {"connector_over_local": False, "cold_over_hit": True, "save_hook_pct": True}
    page = "\n".join(vllm.lines(results))
    assert page.count("**missed**") == 1
    assert all(f"`{key}`" in page for key in results.keys)
    assert vllm.table(results.keys).row_count == len(results.keys)


def test_a_hit_that_was_none_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "reset_prefix_cache", lambda _: True)  # drops nothing
    with pytest.raises(RuntimeError, match="was to have 3968 cached tokens, 3968 of them"):
        measured(rounds=2)


def test_without_vllm_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm, "has_vllm", lambda: False)
    told = CliRunner().invoke(cli.app, ["vllm", "--json", str(tmp_path / "j")])
    assert told.exit_code == 2
    assert "vLLM is not installed" in told.stderr
    assert not (tmp_path / "j").exists()
    assert report.measured_vllm(Console(quiet=True)) is None, "the page keeps what it has"


def test_it_writes_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm, "run", lambda **_: measured())
    told = CliRunner().invoke(cli.app, ["vllm", "--json", str(tmp_path / "j")])
    assert told.exit_code == 0, told.output
    written = json.loads((tmp_path / "j").read_text())
    assert written["cold_over_hit"] == pytest.approx(20)
    assert len(written["samples"]["connector_s"]) == 3 * vllm.HITS
