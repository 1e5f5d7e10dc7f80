"""What the connector tells its client of how fast it computes: prompts that were computed, and nothing that says nothing."""

from __future__ import annotations

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
