"""The harness itself, with engines that have no connector: answers repeat, hits are counted, ends are seen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.polling import wait_until
from tests.vllm.engines import Engine, EngineError, Makers, all_same, makers, same
from tests.vllm.models import MLA_ENGINE, tokens

LENGTHS = (40, 200, 333, 31)


@pytest.fixture(scope="module")
def engine(made: Makers, llama: Path) -> Engine:
    return made.engine(llama)


def test_a_cold_run_repeats_and_a_local_hit_equals_it(engine: Engine) -> None:
    prompts = [tokens(seed, count) for seed, count in enumerate(LENGTHS)]
    cold = engine.generate(prompts, max_tokens=12, logprobs=4)
    assert [each.cached_tokens for each in cold] == [0] * len(LENGTHS)
    hits = engine.generate(prompts, max_tokens=12, logprobs=4)
    assert [each.local_tokens for each in hits] == [(count - 1) // 32 * 32 for count in LENGTHS]
    assert all(each.external_tokens == 0 for each in hits)
    all_same(hits, cold)

    assert engine.reset_prefix_cache()
    again = engine.generate(prompts, max_tokens=12, logprobs=4)
    assert [each.cached_tokens for each in again] == [0] * len(LENGTHS)
    all_same(again, cold)


def test_the_model_heeds_its_context(engine: Engine) -> None:
    """Else wrong KV would show nowhere."""
    prompt = tokens(50, 120)
    told = engine.ask(prompt, max_tokens=12, logprobs=4)
    other = engine.ask([prompt[0] ^ 1, *prompt[1:]], max_tokens=12, logprobs=4)
    assert len(set(told.tokens)) > 4
    with pytest.raises(AssertionError):
        same(told, other)


def test_steps_can_be_counted_and_requests_aborted(engine: Engine) -> None:
    engine.hold()
    asked, aborted = (
        engine.submit(tokens(60, 40), max_tokens=3),
        engine.submit(tokens(61, 40), max_tokens=500),
    )
    assert engine.step(2) == 2
    assert not asked.is_done
    assert engine.step(1) == 1
    assert len(asked.answer().tokens) == 3
    aborted.abort()
    engine.release()
    engine.wait_idle()
    assert not aborted.is_done


def test_metrics_count_local_hits(engine: Engine) -> None:
    prompt = tokens(70, 100)
    engine.ask(prompt)
    before = engine.metric("vllm:prefix_cache_hits")
    engine.ask(prompt)
    assert engine.metric("vllm:prefix_cache_hits") - before == 96


def test_what_an_engine_refuses_is_said(engine: Engine) -> None:
    with pytest.raises(EngineError, match="5000"):
        engine.ask(tokens(80, 5000))
    with pytest.raises(EngineError, match="no_such_method"):
        engine.collective_rpc("no_such_method")


def test_an_engine_that_cannot_be_made_says_why(made_here: Makers, llama: Path) -> None:
    engine = made_here.engine(llama, block_size=33)
    with pytest.raises(EngineError, match="block_size"):
        engine.wait_ready()


def test_a_killed_engine_leaves_nothing_and_fails_its_requests(made_here: Makers, llama: Path) -> None:
    engine = made_here.engine(llama, multiprocess=True)
    processes = [engine.pid, *engine.child_pids]
    assert len(processes) > 1
    asked = engine.submit(tokens(1, 50), max_tokens=1500)
    engine.kill()
    with pytest.raises(EngineError, match="ended with"):
        asked.answer()
    wait_until(lambda: not any(_runs(pid) for pid in processes), what="the end of all its processes")


def test_engines_end_with_whoever_started_them(made_here: Makers, llama: Path) -> None:
    engine = made_here.engine(llama, multiprocess=True)
    processes = [engine.pid, *engine.child_pids]
    engine._socket.shutdown(2)  # what the kernel does when the test process dies
    wait_until(lambda: not any(_runs(pid) for pid in processes), what="the end of all its processes")
    assert engine.process.wait() == -signal.SIGKILL


def test_a_forked_engine_answers_as_one_that_was_started_as_a_program(engine: Engine, llama: Path) -> None:
    prompts = [tokens(90 + seed, count) for seed, count in enumerate(LENGTHS)]
    with makers() as apart:
        started = apart.engine(llama)
        all_same(
            engine.generate(prompts, max_tokens=8, logprobs=4),
            started.generate(prompts, max_tokens=8, logprobs=4),
        )
        started.stop()
        assert started.process.returncode == 0


def test_latent_attention_repeats(made_here: Makers, mla: Path) -> None:
    engine = made_here.engine(mla, block_size=16, **MLA_ENGINE)
    prompts = [tokens(seed, count) for seed, count in enumerate(LENGTHS)]
    cold = engine.generate(prompts, max_tokens=8, logprobs=4)
    all_same(engine.generate(prompts, max_tokens=8, logprobs=4), cold)


def test_a_server_answers_and_ends(made_here: Makers, llama: Path) -> None:
    flags = (
        "--skip-tokenizer-init",
        "--max-model-len",
        "1024",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        "128",
    )
    server = made_here.server(llama, *flags).wait_ready()
    prompt = tokens(5, 200)
    cold = server.complete(prompt, return_token_ids=True)
    hit = server.complete(prompt, return_token_ids=True)
    assert cold.usage["prompt_tokens"] == 200
    assert hit.usage["prompt_tokens_details"]["cached_tokens"] == 192
    assert server.metric("vllm:prefix_cache_hits") == 192
    group = [each.pid for each in psutil.process_iter() if _group(each.pid) == server.process.pid]
    assert len(group) > 2
    server.stop()
    wait_until(lambda: not any(_runs(pid) for pid in group), what="the end of all its processes")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1
