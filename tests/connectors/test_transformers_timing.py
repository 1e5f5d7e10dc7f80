"""What the connector tells its client of how fast it computes: prompts that were computed, and nothing that says nothing."""

from __future__ import annotations

import threading
from typing import Any

import torch

from inference_worker.connectors.transformers import TransformersConnector
from inference_worker.connectors.transformers_timing import PassTimer
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import PAGE_TOKENS, shared_model, tokens


def test_passes_over_prompts_are_measured_and_short_ones_are_not() -> None:
    client = FakeClient(FakeSidecar())
    worker = TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True
    )
    prompt = tokens(400)
    worker.prefill(prompt[None])
    assert [(count, start) for count, start, _ in client.prefills] == [(400, 0)]
    assert client.prefills[0][2] > 0.0
    worker.prefill(prompt[None])
    assert len(client.prefills) == 1, "all but the last page was reused"
    worker.prefill(torch.stack([tokens(300, seed=1), tokens(300, seed=2)]))
    assert [(count, start) for count, start, _ in client.prefills[1:]] == [(600, 0)]


def test_a_pass_behind_a_reused_prefix_is_told_with_its_place() -> None:
    client = FakeClient(FakeSidecar())
    worker = TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True
    )
    prompt = tokens(500)
    worker.prefill(prompt[None, : PAGE_TOKENS * 10])
    worker.prefill(prompt[None])
    reused = PAGE_TOKENS * 10
    assert [(count, start) for count, start, _ in client.prefills] == [(500 - reused, reused)]


def test_a_pass_that_has_not_run_tells_no_time() -> None:
    timer = PassTimer(torch.device("cpu"), tokens=1000, start=0)
    assert timer.seconds() is None
    with timer.running():
        pass
    assert timer.seconds() is not None


def test_generate_tells_of_its_first_pass_and_not_of_decoding() -> None:
    client = FakeClient(FakeSidecar())
    worker = TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True
    )
    settings: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    prompt = tokens(400)
    worker.generate(prompt[None], **settings)
    assert [(count, start) for count, start, _ in client.prefills] == [(400, 0)]
    worker.generate(prompt[None], **settings)
    assert len(client.prefills) == 1, "all but the last page was reused"
    worker.generate(torch.cat((prompt, tokens(300, seed=3)))[None], **settings)
    told = [(count, start) for count, start, _ in client.prefills[1:]]
    (count, start) = told[0]
    assert told == [(700 - start, start)]
    assert 400 - PAGE_TOKENS <= start <= 400
    assert count >= 300
    worker.generate(tokens(300, seed=4)[None], num_beams=2, max_new_tokens=2, do_sample=False)
    assert [(count, start) for count, start, _ in client.prefills[2:]] == [(600, 0)]
    assert not shared_model("llama")._forward_pre_hooks
    assert not shared_model("llama")._forward_hooks


def test_passes_of_other_threads_and_over_other_tokens_are_none_of_it() -> None:
    module, given = torch.nn.Identity(), torch.zeros((1, 300), dtype=torch.int64)
    timer = PassTimer(torch.device("cpu"), tokens=300, start=0)
    with timer.first_pass(module):
        other = threading.Thread(target=module, args=(given,))
        other.start()
        other.join()
        assert timer.seconds() is None
        module(given)
        first = timer.seconds()
        module(given)
        assert timer.seconds() == first
    assert first is not None
    shorter = PassTimer(torch.device("cpu"), tokens=301, start=0)
    with shorter.first_pass(module):
        module(given)
    assert shorter.seconds() is None
