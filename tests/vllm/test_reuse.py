"""Reuse through the real engine: what one engine computed another finds, and both answer as one without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sidecar_process import SidecarProcess
from tests.vllm.engines import Engine, Makers, all_same, connector, same
from tests.vllm.models import tokens
from tests.vllm.sidecars import settled, status

PAGE = 64
BLOCK = 32
LENGTHS = (40, 200, 333, 31, 128, 129, 127)


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    """An engine that has no connector: what is right."""
    return made.engine(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def first(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE))


@pytest.fixture(scope="module")
def second(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE))


def found(tokens_asked: int) -> int:
    """Tokens of a prompt that can be found in whole pages: one is left to compute."""
    return (tokens_asked - 1) // PAGE * PAGE


def test_cold_local_and_connector_hits_equal_a_run_without_cache(
    plain: Engine, first: Engine, second: Engine
) -> None:
    prompts = [tokens(seed, count) for seed, count in enumerate(LENGTHS)]
    right = plain.generate(prompts, max_tokens=12, logprobs=4)
    cold = first.generate(prompts, max_tokens=12, logprobs=4)
    assert [each.cached_tokens for each in cold] == [0] * len(LENGTHS)
    all_same(cold, right)
    settled(first)
    local = first.generate(prompts, max_tokens=12, logprobs=4)
    assert [each.local_tokens for each in local] == [(count - 1) // BLOCK * BLOCK for count in LENGTHS]
    all_same(local, right)
    elsewhere = second.generate(prompts, max_tokens=12, logprobs=4)
    assert [each.external_tokens for each in elsewhere] == [found(count) for count in LENGTHS]
    assert all(each.local_tokens == 0 for each in elsewhere)
    all_same(elsewhere, right)


@pytest.mark.parametrize("end", [3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 1])
def test_c08_c13_hits_that_begin_in_the_engines_cache_go_on_in_ours(
    plain: Engine, first: Engine, second: Engine, end: int
) -> None:
    prompt = tokens(1000 + end, end)
    right = plain.ask(prompt, max_tokens=4, logprobs=4)
    same(first.ask(prompt, max_tokens=4, logprobs=4), right)
    settled(first)
    for local in range(end // BLOCK + 1):
        settled(second)
        assert second.reset_prefix_cache()
        if local:
            second.ask(prompt[: local * BLOCK + 1])
            settled(second)
        answer = second.ask(prompt, max_tokens=4, logprobs=4)
        local_tokens = min(local, (end - 1) // BLOCK) * BLOCK
        assert answer.local_tokens == local_tokens
        assert answer.external_tokens == max(0, found(end) - local_tokens)
        same(answer, right)


def test_c14_generated_tokens_are_found_in_the_next_turn(
    plain: Engine, first: Engine, second: Engine
) -> None:
    turn = tokens(2000, 100)
    answer = first.ask(turn, max_tokens=50)
    settled(first)
    longer = [*turn, *answer.tokens, *tokens(2001, 20)]
    right = plain.ask(longer, max_tokens=4, logprobs=4)
    there = second.ask(longer, max_tokens=4, logprobs=4)
    assert there.external_tokens == 149 // PAGE * PAGE
    same(there, right)


def test_who_asks_for_the_logprobs_of_its_prompt_takes_no_hits(
    plain: Engine, first: Engine, second: Engine
) -> None:
    prompt = tokens(3000, 3 * PAGE + 1)
    first.ask(prompt)
    settled(first)
    answer = second.ask(prompt, max_tokens=2, logprobs=2, prompt_logprobs=1)
    assert (answer.local_tokens, answer.external_tokens) == (0, 0)
    right = plain.ask(prompt, max_tokens=2, logprobs=2, prompt_logprobs=1)
    same(answer, right)
    for mine, theirs in zip(answer.prompt_logprobs[1:], right.prompt_logprobs[1:], strict=True):
        assert mine is not None
        assert theirs is not None
        assert mine == pytest.approx(theirs, abs=1e-4)


def test_c37_a_salt_is_a_tenant_and_shares_nothing(first: Engine, second: Engine) -> None:
    prompt = tokens(4000, 3 * PAGE + 1)
    first.ask(prompt, cache_salt="one")
    settled(first)
    for salt, external in (("two", 0), (None, 0), ("one", 3 * PAGE)):
        settled(second)
        assert second.reset_prefix_cache()
        assert second.ask(prompt, cache_salt=salt).external_tokens == external, salt


def test_a_known_page_is_not_copied_again(first: Engine, second: Engine) -> None:
    prompt = tokens(5000, 3 * PAGE + 1)
    first.ask(prompt)
    settled(first)
    before = second.metric("vllm:stratakv_saved_bytes")
    second.ask(prompt)
    second.ask(prompt)
    settled(second)
    assert second.metric("vllm:stratakv_saved_bytes") == before


def test_hits_are_told_by_metrics_and_by_request(first: Engine, second: Engine) -> None:
    prompt = tokens(6000, 2 * PAGE + 1)
    first.ask(prompt)
    settled(first)
    before = second.metric("vllm:stratakv_hit_tokens", tier="l2")
    asked = {"kv_transfer_params": {"stratakv": {"report": True}}}
    answer = second.ask(prompt, extra_args=asked)
    assert answer.kv_transfer_params is not None
    told = answer.kv_transfer_params["stratakv"]
    assert (told["engine_tokens"], told["l2_tokens"], told["l3_tokens"]) == (0, 2 * PAGE, 0)
    second.ask(tokens(6001, 5))  # a step that brings the statistics of the one before
    assert second.metric("vllm:stratakv_hit_tokens", tier="l2") - before == 2 * PAGE
    assert second.metric("vllm:external_prefix_cache_hits") >= 2 * PAGE


def test_c29_the_sidecars_account_of_the_engines_pages_is_exact(
    first: Engine, second: Engine, sidecar: SidecarProcess
) -> None:
    before = status(sidecar)
    prompt = tokens(7000, 4 * PAGE + 1)
    first.ask(prompt)  # 4 missed
    settled(first)
    first.ask(prompt)  # 4 of its own
    second.ask(prompt)  # 4 of ours
    now = status(sidecar)
    grown = {name: now[name] - before[name] for name in ("requested_pages", "l1_pages", "l2_pages")}
    assert grown == {"requested_pages": 12, "l1_pages": 4, "l2_pages": 4}


def test_the_engine_tells_how_fast_it_computes_prompts(first: Engine) -> None:
    for seed in range(6):
        first.generate([tokens(900 + seed, 700)], max_tokens=2)
    told = first.inside("tests.vllm.faults:connector_counts")
    assert told["prefill_tokens_per_s"] > 0.0
