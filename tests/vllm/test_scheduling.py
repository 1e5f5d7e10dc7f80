"""What a scheduler does to a request while it is served: chunks, preemption, asynchronous and layerwise loads, aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess
from tests.vllm.engines import Engine, Makers, all_same, connector
from tests.vllm.models import tokens
from tests.vllm.sidecars import found, settled, status

PAGE = 64


@pytest.fixture(scope="module")
def plain(made: Makers, llama: Path) -> Engine:
    return made.engine(llama, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def writer(made: Makers, llama: Path, sidecar: SidecarProcess) -> Engine:
    return made.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE))


@pytest.mark.parametrize("load_mode", ["sync", "layerwise", "async"])
def test_batches_hit_in_every_mode_of_loading(
    plain: Engine, writer: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess, load_mode: str
) -> None:
    prompts = [tokens(10 + seed, count) for seed, count in enumerate((200, 333, 31, 129, 700))]
    right = plain.generate(prompts, max_tokens=8, logprobs=4)
    writer.generate(prompts)
    settled(writer)
    reader = made_here.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE, load_mode=load_mode))
    answers = reader.generate(prompts, max_tokens=8, logprobs=4)
    assert [each.external_tokens for each in answers] == [found(len(prompt), PAGE) for prompt in prompts]
    all_same(answers, right)
    settled(reader)
    assert status(sidecar)["leases"] == 0


def test_chunked_prefill(
    plain: Engine, writer: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess
) -> None:
    prompts = [tokens(40 + seed, count) for seed, count in enumerate((700, 500, 333))]
    right = plain.generate(prompts, max_tokens=8, logprobs=4)
    chunked = made_here.engine(
        llama, max_num_batched_tokens=96, **connector(sidecar.runtime, page_tokens=PAGE)
    )
    all_same(chunked.generate(prompts, max_tokens=8, logprobs=4), right)
    settled(chunked)
    assert chunked.reset_prefix_cache()
    again = chunked.generate(prompts, max_tokens=8, logprobs=4)
    assert [each.external_tokens for each in again] == [found(len(prompt), PAGE) for prompt in prompts]
    all_same(again, right)


def test_forced_preemption(plain: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess) -> None:
    prompts = [tokens(60 + seed, 150) for seed in range(4)]
    right = plain.generate(prompts, max_tokens=80, logprobs=4)
    # 4 × 230 tokens take 32 blocks; there are 23 to use
    tight = made_here.engine(
        llama, num_gpu_blocks_override=24, max_model_len=512, **connector(sidecar.runtime, page_tokens=PAGE)
    )
    all_same(tight.generate(prompts, max_tokens=80, logprobs=4), right)
    assert tight.metric("vllm:num_preemptions") > 0
    settled(tight)
    again = tight.generate(prompts, max_tokens=80, logprobs=4)
    all_same(again, right)
    assert all(each.cached_tokens for each in again)
    settled(tight)
    assert status(sidecar)["leases"] == 0


def test_aborted_requests_leave_nothing_and_their_pages(
    plain: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess
) -> None:
    engine = made_here.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE))
    prompt = tokens(80, 3 * PAGE + 1)
    engine.hold()
    asked = engine.submit(prompt, max_tokens=500)
    engine.step(3)
    asked.abort()
    queued = engine.submit(prompt, max_tokens=500)
    queued.abort()
    engine.release()
    settled(engine)
    assert engine.reset_prefix_cache(), "no block is held any more"
    answer = engine.ask(prompt, max_tokens=4, logprobs=4)
    assert answer.external_tokens == 3 * PAGE
    all_same([answer], [plain.ask(prompt, max_tokens=4, logprobs=4)])
    assert status(sidecar)["leases"] == 0


def test_requests_that_are_aborted_while_they_load_leave_nothing(
    writer: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess
) -> None:
    prompts = [tokens(90 + seed, 700) for seed in range(3)]
    writer.generate(prompts)
    settled(writer)
    engine = made_here.engine(llama, **connector(sidecar.runtime, page_tokens=PAGE, load_mode="async"))
    engine.hold()
    asked = [engine.submit(prompt, max_tokens=50) for prompt in prompts]
    engine.step(1)
    for each in asked:
        each.abort()
    engine.release()
    settled(engine)
    assert engine.reset_prefix_cache()
    assert status(sidecar)["leases"] == 0
    assert engine.ask(prompts[0]).external_tokens == found(700, PAGE)


def test_a_multiprocess_engine(
    plain: Engine, writer: Engine, made_here: Makers, llama: Path, sidecar: SidecarProcess
) -> None:
    prompts = [tokens(110 + seed, 300) for seed in range(3)]
    right = plain.generate(prompts, max_tokens=8, logprobs=4)
    writer.generate(prompts)
    settled(writer)
    apart = made_here.engine(llama, multiprocess=True, **connector(sidecar.runtime, page_tokens=PAGE))
    answers = apart.generate(prompts, max_tokens=8, logprobs=4)
    assert [each.external_tokens for each in answers] == [found(300, PAGE)] * 3
    all_same(answers, right)
    fresh = tokens(120, 300)
    apart.ask(fresh)
    wait_until(
        lambda: writer.reset_prefix_cache() and writer.ask(fresh).external_tokens == found(300, PAGE),
        what="its saves",
    )
