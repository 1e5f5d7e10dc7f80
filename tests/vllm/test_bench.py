"""`stratakv bench vllm` with real engines, on a tiny model: every figure comes of what it says."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks import vllm
from benchmarks.own_engine import Engine
from benchmarks.vllm_models import LLAMA_TINY
from tests.vllm.nursery import Nursery


def test_a_round_of_the_benchmark_has_all_its_figures(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "LLAMA_184M", LLAMA_TINY)
    monkeypatch.setattr(vllm, "PROMPT_TOKENS", 1024)
    monkeypatch.setattr(vllm, "Engine", partial(Engine, spawn=nursery.spawn))
    told: list[str] = []
    results = vllm.run(rounds=2, tell=told.append)
    keys = results.keys
    assert {key for key, *_ in (*vllm.BUDGETS, *vllm.TOLD)} == set(keys)
    assert all(value > 0 for key, value in keys.items() if key != "connector_minus_local_ms")
    assert len(results.samples["connector_s"]) == 2 * vllm.HITS
    assert told[-1] == "round 2 of 2"
