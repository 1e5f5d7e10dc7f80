"""Generate with reuse: the same text as without, prompt and decoded pages kept, modes that cannot be followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from kv_types.errors import InvalidArgumentError
from kv_types.page_keys import page_keys
from tests.connectors.fakes import FakeSidecar
from tests.connectors.models import PAGE_TOKENS, pad_rows, plain_cache, shared_model, tokens
from tests.connectors.test_transformers_prefill import TOLERANCE, connect

NEW = 12


def plain(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **settings: Any) -> torch.Tensor:
    """Generate by the model alone, our oracle."""
    mask = torch.ones_like(ids) if mask is None else mask
    text: torch.Tensor = model.generate(ids, attention_mask=mask, **settings)
    return text


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "deepseek_v3"])
def test_greedy_text_is_the_same_cold_warm_and_in_another_worker(kind: str) -> None:
    model, sidecar = shared_model(kind), FakeSidecar()
    row = tokens(45)[None]
    expected = plain(model, row, max_new_tokens=NEW, do_sample=False)
    worker = connect(model, sidecar)
    for each, reused in ((worker, 0), (worker, 40), (connect(model, sidecar), 40)):
        done = each.generate(row, max_new_tokens=NEW, do_sample=False)
        assert torch.equal(done.sequences, expected)
        assert done.report.reused == reused


def test_c14_decoded_tokens_are_reusable() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    prompt = tokens(100)[None]
    settings: dict[str, Any] = {"max_new_tokens": 50, "min_new_tokens": 50, "do_sample": False}
    first = connect(model, sidecar, page_tokens=10).generate(prompt, **settings)
    assert first.sequences.shape == (1, 150)

    second_prompt = torch.cat((first.sequences, tokens(20, seed=3)[None]), dim=1)
    second = connect(model, sidecar, page_tokens=10).generate(
        second_prompt, max_new_tokens=5, do_sample=False
    )
    assert second.report.rows[0].reused >= 140
    assert torch.equal(second.sequences, plain(model, second_prompt, max_new_tokens=5, do_sample=False))


class StopFirstRow(StoppingCriteria):  # type: ignore[misc]
    """What a stop string does to one row of a batch."""

    def __init__(self, columns: int) -> None:
        self.columns = columns

    def __call__(self, input_ids: Any, scores: Any, **rest: Any) -> Any:
        ended = torch.zeros(len(input_ids), dtype=torch.bool)
        ended[0] = input_ids.shape[1] >= self.columns
        return ended


def test_filling_behind_a_row_that_a_criterion_ended_is_not_stored() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows = torch.stack([tokens(20), tokens(20, seed=1)])
    done = connect(model, sidecar).generate(
        rows,
        max_new_tokens=29,
        do_sample=False,
        eos_token_id=2,  # without one, generate lets ended rows decode on
        suppress_tokens=[2],
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([StopFirstRow(26)]),
    )
    assert not done.sequences[0, 26:].any(), "filled with pads"
    assert len(sidecar.pages) == 26 // PAGE_TOKENS + 48 // PAGE_TOKENS


def test_decoded_pages_hold_the_kv_of_a_prefill_of_the_same_tokens() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    worker = connect(model, sidecar)
    done = worker.generate(tokens(20)[None], max_new_tokens=30, min_new_tokens=30, do_sample=False)
    assert len(sidecar.pages) == 49 // PAGE_TOKENS, "the last token was never run, so its KV is nowhere"
    prefilled = FakeSidecar()
    connect(model, prefilled).prefill(done.sequences[:, :49])
    assert prefilled.pages.keys() == sidecar.pages.keys(), "decode extends the chain that prefill would make"
    for key, page in sidecar.pages.items():
        ours, theirs = (np.frombuffer(data, np.float32) for data in (page, prefilled.pages[key]))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padded_batches_say_what_each_row_says_alone(side: str) -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows = [tokens(count, seed=count) for count in (5, 37, 60)]
    ids, mask = pad_rows(rows, side)
    settings: dict[str, Any] = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    alone = [plain(model, row[None], **settings)[0, len(row) :] for row in rows]
    worker = connect(model, sidecar)
    for round_ in range(2):
        done = worker.generate(ids, mask, **settings)
        assert torch.equal(done.sequences[:, : ids.shape[1]], ids), (
            "the caller's columns come back as they were"
        )
        assert torch.equal(done.sequences[:, ids.shape[1] :], torch.stack(alone))
        assert done.report.reused > 0 if round_ else done.report.reused == 0


def test_rows_that_end_early_keep_no_pads() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows = [tokens(20, seed=1), tokens(20, seed=2)]
    free: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = plain(model, torch.stack(rows), **free)[0, 20:].tolist()
    stop = text[4]  # a token that row 0 says: now it ends there, and row 1 goes on
    ended = text.index(stop) + 1
    done = connect(model, sidecar).generate(
        torch.stack(rows), max_new_tokens=30, do_sample=False, eos_token_id=stop, pad_token_id=0
    )
    assert done.sequences[0, 20 + ended :].eq(0).all()
    namespace = connect(model, sidecar).namespace
    assert namespace is not None
    chain = done.sequences[0, : 20 + ended].numpy().astype(np.uint32)
    keys = page_keys(namespace.id, chain, page_tokens=PAGE_TOKENS)
    assert sidecar.chain(namespace.id, keys) == len(chain) // PAGE_TOKENS
    padded = done.sequences[0, : 20 + 30].numpy().astype(np.uint32)
    keys = page_keys(namespace.id, padded, page_tokens=PAGE_TOKENS)
    assert sidecar.chain(namespace.id, keys) == len(chain) // PAGE_TOKENS


def test_sampling_draws_the_same_tokens_with_and_without_reuse() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(45)[None]
    settings: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": True, "temperature": 0.9, "top_k": 20}
    torch.manual_seed(5)
    expected = plain(model, row, **settings)
    worker = connect(model, sidecar)
    worker.prefill(row)
    torch.manual_seed(5)
    done = worker.generate(row, **settings)
    assert done.report.reused == 40
    assert torch.equal(done.sequences, expected)


def test_several_sequences_a_row_are_each_kept() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows, mask = pad_rows([tokens(45), tokens(30, seed=2)], "left")
    settings: dict[str, Any] = {
        "max_new_tokens": 20,
        "min_new_tokens": 20,
        "do_sample": True,
        "num_return_sequences": 3,
    }
    torch.manual_seed(5)
    expected = plain(model, rows, mask, **settings)
    worker = connect(model, sidecar)
    worker.prefill(rows, mask)
    torch.manual_seed(5)
    done = worker.generate(rows, mask, **settings)
    assert torch.equal(done.sequences, expected)
    for sequence, length in zip(done.sequences, (45, 45, 45, 30, 30, 30), strict=True):
        turn = torch.cat((sequence[-(length + 20) :], tokens(5, seed=9)))
        report = connect(model, sidecar).prefill(turn[None]).report
        assert report.reused >= (length + 19) // PAGE_TOKENS * PAGE_TOKENS


def test_beams_reuse_and_keep_the_prompt_alone() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows, mask = pad_rows([tokens(45), tokens(30, seed=2)], "left")
    settings: dict[str, Any] = {"max_new_tokens": 10, "num_beams": 3, "do_sample": False}
    expected = plain(model, rows, mask, **settings)
    worker = connect(model, sidecar)
    cold = worker.generate(rows, mask, **settings)
    assert torch.equal(cold.sequences, expected)
    assert cold.report.pages_stored == 45 // PAGE_TOKENS + 30 // PAGE_TOKENS
    prefilled = FakeSidecar()
    connect(model, prefilled).prefill(rows, mask)
    assert {k: len(p) for k, p in prefilled.pages.items()} == {k: len(p) for k, p in sidecar.pages.items()}
    for key, page in sidecar.pages.items():
        ours, theirs = (np.frombuffer(data, np.float32) for data in (page, prefilled.pages[key]))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)
    warm = worker.generate(rows, mask, **settings)
    assert warm.report.reused > 60
    assert torch.equal(warm.sequences, expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_cache": False}, "use_cache"),
        ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
        ({"cache_implementation": "static"}, "static"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"logits_to_keep": 1}, "logits_to_keep"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_modes_that_cannot_be_followed_run_without_reuse_and_say_so(
    settings: dict[str, Any], said: str
) -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(40)[None]
    worker = connect(model, sidecar)
    worker.prefill(row)
    done = worker.generate(row, max_new_tokens=6, do_sample=False, **settings)
    assert said in done.report.off
    assert (done.report.reused, done.report.pages_stored) == (0, 0)
    assert torch.equal(done.sequences, plain(model, row, max_new_tokens=6, do_sample=False))


def test_settings_of_a_generation_config_are_seen_as_well() -> None:
    model = shared_model("llama")
    worker = connect(model, FakeSidecar())
    row = tokens(40)[None]
    off = worker.generate(row, generation_config=GenerationConfig(max_new_tokens=3, use_cache=False))
    assert "use_cache" in off.report.off
    beams = GenerationConfig(max_new_tokens=3, num_beams=2, do_sample=False)
    done = worker.generate(row, generation_config=beams)
    assert done.report.pages_stored == 5
    assert torch.equal(done.sequences, plain(model, row, generation_config=beams))


def test_lengths_mean_the_same_for_repacked_rows() -> None:
    model = shared_model("llama")
    row = tokens(20)
    ids, mask = pad_rows([row, tokens(30, seed=3)], "right")
    done = connect(model, FakeSidecar()).generate(ids, mask, max_length=36, min_length=36, do_sample=False)
    assert done.sequences.shape == (2, 36)


def test_generate_makes_its_cache_itself() -> None:
    worker = connect(shared_model("llama"), FakeSidecar())
    with pytest.raises(InvalidArgumentError, match="past_key_values"):
        worker.generate(tokens(9)[None], past_key_values=None)


def test_decoding_by_hand_goes_on_from_a_prefill() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows = [tokens(21), tokens(33, seed=2)]
    ids, mask = pad_rows(rows, "right")
    worker = connect(model, sidecar)
    worker.prefill(ids, mask)
    done = worker.prefill(ids, mask)
    assert done.report.reused > 0
    following = done.logits.argmax(-1)[:, None]
    grown = torch.cat((done.rows.attention_mask, torch.ones((2, 1), dtype=torch.int64)), dim=1)
    with torch.no_grad():
        output = model(
            input_ids=following,
            attention_mask=grown,
            position_ids=done.rows.position_ids[:, -1:] + 1,
            cache=done.past_key_values,
        )
    for index, row in enumerate(rows):
        _, logits = plain_cache(model, torch.cat((row, following[index])))
        assert float((output.logits[index, -1] - logits[-1]).abs().max()) <= TOLERANCE
