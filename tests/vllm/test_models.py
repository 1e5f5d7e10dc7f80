"""Other models through the real engine: latent attention, real weights with real text, and one that is not supported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sidecar_process import SidecarProcess
from tests.vllm import models
from tests.vllm.conftest import sidecar_with
from tests.vllm.engines import Makers, connector
from tests.vllm.models import MLA_ENGINE, tokens
from tests.vllm.sidecars import found, settled

TEXT = (
    "The library at the corner of the old market had been closed for eleven years when the two sisters found its key. "
    "It lay in a tin box under their grandmother's bed, between a train ticket to a city that had since changed its "
    "name and a photograph of a man whom neither of them knew. The elder, who was practical, wanted to hand it to the "
    "town. The younger wanted to see the books first. They went on a Tuesday, when the market was empty, and the lock "
    "turned as if it had been oiled that morning. Inside, nothing was covered in dust. "
) * 3


def test_latent_attention(made_here: Makers, mla: Path, sidecar: SidecarProcess) -> None:
    prompts = [tokens(seed, count) for seed, count in enumerate((40, 200, 333, 64, 65))]
    plain = made_here.engine(mla, block_size=16, **MLA_ENGINE)
    right = plain.generate(prompts, max_tokens=8)
    settings = connector(sidecar.runtime, page_tokens=32)
    first = made_here.engine(mla, block_size=16, **MLA_ENGINE, **settings)
    cold = first.generate(prompts, max_tokens=8)
    settled(first)
    second = made_here.engine(mla, block_size=16, **MLA_ENGINE, **settings)
    hits = second.generate(prompts, max_tokens=8)
    assert [each.external_tokens for each in hits] == [found(len(prompt), 32) for prompt in prompts]
    for answers in (cold, hits):
        assert [each.tokens for each in answers] == [each.tokens for each in right]


def test_smollm2_answers_real_text_with_hits(made_here: Makers) -> None:
    model = models.smollm2()
    arguments = {"skip_tokenizer_init": False, "max_model_len": 1024, "num_gpu_blocks_override": 64}
    questions = [
        TEXT + "\nQuestion: what lay in the tin box?\nAnswer:",
        TEXT + "\nQuestion: on what day did they go?\nAnswer:",
    ]
    with sidecar_with() as sidecar:
        plain = made_here.engine(model, **arguments, enable_prefix_caching=False)
        right = plain.generate(questions, max_tokens=16)
        plain.stop()
        settings = connector(sidecar.runtime, page_tokens=64)
        first = made_here.engine(model, **arguments, **settings)
        assert first.ask(questions[0], max_tokens=16).text == right[0].text
        settled(first)
        first.stop()
        second = made_here.engine(model, **arguments, **settings)
        for question, wanted in zip(questions, right, strict=True):
            answer = second.ask(question, max_tokens=16)
            assert answer.cached_tokens >= 256
            assert answer.text == wanted.text
        assert second.metric("vllm:stratakv_hit_tokens", tier="l2") > 0


def test_a_model_that_is_not_supported_serves_without_and_says_why(
    made_here: Makers, sidecar: SidecarProcess
) -> None:
    engine = made_here.engine(models.window_tiny(), **connector(sidecar.runtime))
    prompt = tokens(5, 200)
    cold = engine.ask(prompt, max_tokens=4)
    again = engine.ask(prompt, max_tokens=4)
    assert again.tokens == cold.tokens
    assert again.external_tokens == 0
    engine.ask(tokens(6, 5))
    assert engine.metric("vllm:stratakv_uncacheable_requests", reason="sliding_window") >= 2


@pytest.mark.slow
def test_two_ranks_agree(made_here: Makers, llama: Path, sidecar: SidecarProcess) -> None:
    prompts = [tokens(40 + seed, count) for seed, count in enumerate((200, 333, 129))]
    two = {"tensor_parallel_size": 2, "multiprocess": True}
    plain = made_here.engine(llama, **two)
    right = plain.generate(prompts, max_tokens=6)
    plain.stop()
    settings = connector(sidecar.runtime, page_tokens=64)
    first = made_here.engine(llama, **two, **settings)
    assert [each.tokens for each in first.generate(prompts, max_tokens=6)] == [each.tokens for each in right]
    first.ask(tokens(99, 5))
    first.stop()
    second = made_here.engine(llama, **two, **settings)
    hits = second.generate(prompts, max_tokens=6)
    assert [each.external_tokens for each in hits] == [found(len(prompt), 64) for prompt in prompts]
    assert [each.tokens for each in hits] == [each.tokens for each in right]
