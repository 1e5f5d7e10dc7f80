"""Prefill with reuse: logits and KV against a run of the model alone, over tiers, paddings and page borders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cache_l1.device_pages import DevicePages
from inference_worker.connectors.transformers import Prefill, TransformersConnector
from inference_worker.connectors.transformers_identity import GQA_MODEL_TYPES, MLA_MODEL_TYPES
from kv_types.errors import InvalidArgumentError
from kv_types.events import Selected
from kv_types.outcomes import MissReason
from kv_types.page_keys import page_keys
from kv_types.selectors import EVERYTHING
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import (
    PAGE_TOKENS,
    largest_difference,
    pad_rows,
    plain_cache,
    shared_model,
    tiny_model,
    tokens,
)

TOLERANCE = 1e-5
"""fp32: another batch shape sums in another order; measured 0 to 2e-7 on these models."""


def connect(model: Any, sidecar: FakeSidecar, **settings: Any) -> TransformersConnector:
    """One worker: a client and a connector of its own."""
    settings.setdefault("page_tokens", PAGE_TOKENS)
    return TransformersConnector(
        model,
        FakeClient(sidecar),
        l1_bytes=settings.pop("l1_bytes", 1 << 22),
        require_cacheable=True,
        **settings,
    )


def assert_right(model: Any, done: Prefill, rows: list[torch.Tensor]) -> None:
    """Logits and every row's KV equal those of the model alone on that row."""
    for index, row in enumerate(rows):
        cache, logits = plain_cache(model, row)
        assert largest_difference(done.logits[index], logits[-1]) <= TOLERANCE
        pad = done.rows.pads[index]
        for ours, theirs in zip(done.past_key_values.layers, cache.layers, strict=True):
            assert largest_difference(ours.keys[index, :, pad:], theirs.keys[0]) <= TOLERANCE
            assert largest_difference(ours.values[index, :, pad:], theirs.values[0]) <= TOLERANCE


def cache_bytes(done: Prefill, row: int, count: int) -> list[bytes]:
    """Exact bytes of the KV of a row's first `count` tokens, layer by layer."""
    pad = done.rows.pads[row]
    return [
        tensor[row, :, pad : pad + count].contiguous().view(torch.uint8).numpy().tobytes()
        for layer in done.past_key_values.layers
        for tensor in (layer.keys, layer.values)
    ]


@pytest.mark.parametrize("kind", sorted(GQA_MODEL_TYPES | MLA_MODEL_TYPES))
def test_every_supported_kind_reuses_rightly(kind: str) -> None:
    model, sidecar = shared_model(kind), FakeSidecar()
    prefix = tokens(40)
    first = connect(model, sidecar).prefill(torch.cat((prefix, tokens(9, seed=1)))[None])
    assert first.report.reused == 0
    assert first.report.pages_stored == 49 // PAGE_TOKENS

    row = torch.cat((prefix, tokens(13, seed=2)))
    second = connect(model, sidecar).prefill(row[None])
    assert second.report.rows[0].reused == 40
    assert (second.report.rows[0].pages_l1, second.report.rows[0].pages_l2) == (0, 5)
    assert_right(model, second, [row])
    assert cache_bytes(second, 0, 40) == cache_bytes(first, 0, 40), "pages must come back byte for byte"


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_l1_gives_the_same_bytes_as_l2(kind: str) -> None:
    model, sidecar = shared_model(kind), FakeSidecar()
    row = tokens(41)
    worker = connect(model, sidecar)
    first = worker.prefill(row[None])
    from_l1 = worker.prefill(row[None])
    from_l2 = connect(model, sidecar).prefill(row[None])
    assert from_l1.report.rows[0].pages_l1 == 5
    assert from_l2.report.rows[0].pages_l2 == 5
    assert cache_bytes(first, 0, 40) == cache_bytes(from_l1, 0, 40) == cache_bytes(from_l2, 0, 40)
    again = connect(model, sidecar)
    again.prefill(row[None])
    assert again.prefill(row[None]).report.rows[0].pages_l1 == 5, "what came from L2 stays in L1"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_pages_come_back_byte_for_byte(dtype: torch.dtype) -> None:
    model, sidecar = tiny_model("llama", dtype=dtype), FakeSidecar()
    row = tokens(40)
    first = connect(model, sidecar).prefill(row[None])
    second = connect(model, sidecar).prefill(row[None])
    assert second.report.reused == 39
    assert cache_bytes(second, 0, 39) == cache_bytes(first, 0, 39)


@pytest.mark.parametrize("length", [31, 32, 33])
@pytest.mark.parametrize("pages_in_l1", [0, 1, 2, 3, 4])
def test_c08_every_border_with_every_number_of_pages_in_l1(length: int, pages_in_l1: int) -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(length)
    worker = connect(model, sidecar)
    if pages_in_l1:
        worker.prefill(row[None, : min(pages_in_l1 * PAGE_TOKENS, length)])
    done = worker.prefill(row[None])
    there = min(pages_in_l1, length // PAGE_TOKENS)
    assert done.report.rows[0].pages_l1 == there
    assert done.report.rows[0].reused == min(there * PAGE_TOKENS, length - 1)
    assert_right(model, done, [row])


def test_c13_a_prompt_of_whole_pages_leaves_one_token_to_compute() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(4 * PAGE_TOKENS)
    worker = connect(model, sidecar)
    cold = worker.prefill(row[None])
    warm = worker.prefill(row[None])
    assert warm.report.rows[0].reused == len(row) - 1
    assert largest_difference(cold.logits, warm.logits) <= TOLERANCE
    assert warm.past_key_values.get_seq_length() == len(row)


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "deepseek_v3"])
def test_c28_padded_rows_have_the_keys_and_kv_of_batch_size_1(kind: str, side: str) -> None:
    model = shared_model(kind)
    rows = [tokens(count, seed=count) for count in (5, 37, 128)]
    ids, mask = pad_rows(rows, side, junk=77)

    batched, single = FakeSidecar(), FakeSidecar()
    worker = connect(model, batched)
    cold = worker.prefill(ids, mask)
    assert_right(model, cold, rows)
    for row in rows:
        connect(model, single).prefill(row[None])
    assert batched.pages.keys() == single.pages.keys(), "keys must not see padding or batch"
    assert len(batched.pages) == 37 // PAGE_TOKENS + 128 // PAGE_TOKENS
    for key, page in batched.pages.items():
        ours, theirs = (np.frombuffer(data, np.float32) for data in (page, single.pages[key]))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)

    # pages that single rows stored serve a padded batch as well
    longer = [torch.cat((row, tokens(20 - index, seed=90 + index))) for index, row in enumerate(rows[1:])]
    warm = connect(model, single).prefill(*pad_rows(longer, side, junk=77))
    assert all(row.reused > 0 for row in warm.report.rows)
    assert_right(model, warm, longer)


@pytest.mark.parametrize("side", ["left", "holes"])
def test_pages_stored_behind_reused_ones_are_those_of_a_whole_prefill(side: str) -> None:
    model, grown, whole = shared_model("llama"), FakeSidecar(), FakeSidecar()
    rows = [tokens(70), tokens(45, seed=2)]
    worker = connect(model, grown)
    for length in (20, 44, 70):  # in steps, each behind what the one before has stored
        worker.prefill(*pad_rows([row[:length] for row in rows], side))
    connect(model, whole).prefill(*pad_rows(rows, side))
    assert grown.pages.keys() == whole.pages.keys()
    for key, page in grown.pages.items():
        ours, theirs = (np.frombuffer(data, np.float32) for data in (page, whole.pages[key]))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE, rtol=0)


def test_rows_reuse_up_to_the_column_that_all_have() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    long, short = tokens(64), tokens(32, seed=5)
    connect(model, sidecar).prefill(torch.cat((long, tokens(3, seed=6)))[None])
    connect(model, sidecar).prefill(torch.cat((short, tokens(3, seed=7)))[None])
    rows = [torch.cat((long, tokens(6, seed=8))), torch.cat((short, tokens(10, seed=9)))]
    done = connect(model, sidecar).prefill(*pad_rows(rows, "left"))
    # row 0 is 70 wide and has 64; row 1 starts at column 28 and has 32: column 60 is the last that both have
    assert [row.reused for row in done.report.rows] == [60, 32]
    assert_right(model, done, rows)


def test_a_row_without_a_hit_makes_the_whole_batch_compute() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    known = tokens(40)
    worker = connect(model, sidecar)
    worker.prefill(known[None])
    rows = [known, tokens(40, seed=3)]
    done = worker.prefill(torch.stack(rows))
    assert [row.reused for row in done.report.rows] == [0, 0]
    assert done.report.rows[0].pages_l1 == 5
    assert_right(model, done, rows)


def test_all_logits_stand_in_the_callers_columns() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows = [tokens(21), tokens(30, seed=4)]
    ids, mask = pad_rows(rows, "holes")
    worker = connect(model, sidecar)
    done = worker.prefill(ids, mask, all_logits=True)
    assert done.column_logits is not None
    assert done.computed is not None
    assert torch.equal(done.computed, mask.bool()), "nothing was reused, so every real column has logits"
    for index, row in enumerate(rows):
        _, logits = plain_cache(model, row)
        assert largest_difference(done.column_logits[index][mask[index].bool()], logits) <= TOLERANCE

    warm = worker.prefill(ids, mask, all_logits=True)
    assert warm.column_logits is not None
    assert warm.computed is not None
    for index, row in enumerate(rows):
        assert int(warm.computed[index].sum()) == len(row) - warm.report.rows[index].reused < len(row)
        there = warm.computed[index]
        assert (
            largest_difference(warm.column_logits[index][there], done.column_logits[index][there])
            <= TOLERANCE
        )


def test_what_is_handed_out_is_a_copy() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(40)
    worker = connect(model, sidecar)
    done = worker.prefill(row[None])
    clean = cache_bytes(done, 0, 39)
    for _ in range(2):  # spoil what was computed, then what was assembled from L1
        for layer in done.past_key_values.layers:
            layer.keys.fill_(7)
            layer.values.fill_(7)
        done = worker.prefill(row[None])
        assert done.report.rows[0].pages_l1 == 5
        assert cache_bytes(done, 0, 39) == clean


def test_columns_under_pads_hold_zeros_and_not_what_memory_held() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    rows = [tokens(60), tokens(33, seed=2)]
    ids, mask = pad_rows(rows, "left")
    worker = connect(model, sidecar)
    worker.prefill(ids, mask)
    torch.use_deterministic_algorithms(True)  # new memory holds NaN, which a masked column would spread
    try:
        done = worker.prefill(ids, mask)
    finally:
        torch.use_deterministic_algorithms(False)
    assert done.report.rows[1].reused > 0
    assert_right(model, done, rows)


def test_a_wrong_page_shows_in_the_bytes_and_in_our_checks() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(40)
    first = connect(model, sidecar).prefill(row[None])
    namespace = connect(model, sidecar).namespace
    assert namespace is not None
    keys = page_keys(namespace.id, row.numpy().astype(np.uint32), page_tokens=PAGE_TOKENS)
    one, other = (namespace.id, keys[32:64]), (namespace.id, keys[64:96])
    sidecar.pages[one], sidecar.pages[other] = sidecar.pages[other], sidecar.pages[one]
    swapped = connect(model, sidecar).prefill(row[None])
    assert swapped.report.reused == 39
    assert cache_bytes(swapped, 0, 24) != cache_bytes(first, 0, 24)
    assert cache_bytes(swapped, 0, 8) == cache_bytes(first, 0, 8)
    with pytest.raises(AssertionError):
        assert_right(model, swapped, [row])


def test_an_invalidation_reaches_l1_before_the_next_look_up() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    row = tokens(40)
    worker = connect(model, sidecar)
    worker.prefill(row[None])
    assert worker.prefill(row[None]).report.rows[0].pages_l1 == 5
    sidecar.publish(Selected(EVERYTHING))
    done = worker.prefill(row[None])
    assert (done.report.reused, done.report.rows[0].ended_by) == (0, MissReason.ABSENT)
    assert worker.prefill(row[None]).report.reused == 39, "what was computed since may be served"


def test_a_small_l1_keeps_the_front_and_l2_gives_the_rest() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    worker = connect(model, sidecar, l1_bytes=3 * 2 * 3 * 2 * 16 * PAGE_TOKENS * 4)
    row = tokens(60)
    worker.prefill(row[None])
    assert worker.statistics()["capacity_pages"] == 3
    done = worker.prefill(row[None])
    assert (done.report.rows[0].pages_l1, done.report.rows[0].pages_l2) == (3, 4)
    assert_right(model, done, [row])


@pytest.mark.parametrize(
    ("ids", "mask", "said"),
    [
        (torch.zeros(3, dtype=torch.int64), None, "shape"),
        (torch.zeros((1, 3)), None, "integer"),
        (torch.zeros((1, 0), dtype=torch.int64), None, "no token"),
        (torch.ones((2, 3), dtype=torch.int64), torch.ones((2, 2)), "attention_mask"),
        (torch.ones((2, 3), dtype=torch.int64), torch.tensor([[1, 1, 1], [0, 0, 0]]), "row 1"),
    ],
)
def test_bad_input_is_a_clear_error(ids: torch.Tensor, mask: torch.Tensor | None, said: str) -> None:
    worker = connect(shared_model("llama"), FakeSidecar())
    with pytest.raises(InvalidArgumentError, match=said):
        worker.prefill(ids, mask)


def test_a_hot_prefix_costs_no_copy_over_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    prefix = tokens(5 * PAGE_TOKENS)
    worker = connect(model, sidecar)
    cold = worker.prefill(torch.cat((prefix, tokens(3, seed=1)))[None]).report
    page_bytes = worker.statistics()["page_bytes"]
    assert cold.bytes_over_host == 5 * page_bytes, "what is new goes to L2"
    assert worker.statistics()["copied_in_pages"] == 5

    def no_copy(*_: object, **__: object) -> None:
        raise AssertionError("a page of L1 is copied by itself")

    for name in ("read", "write"):
        monkeypatch.setattr(DevicePages, name, no_copy)
    row = torch.cat((prefix, tokens(4, seed=2)))
    hot = worker.prefill(row[None])
    assert (hot.report.rows[0].pages_l1, hot.report.reused) == (5, len(prefix))
    assert hot.report.bytes_over_host == 0
    assert worker.statistics()["copied_out_pages"] == 5
    assert_right(model, hot, [row])

    longer = torch.cat((prefix, tokens(PAGE_TOKENS + 2, seed=3)))
    grown = worker.prefill(longer[None]).report
    assert (grown.rows[0].pages_l1, grown.bytes_over_host) == (5, page_bytes), "the new page alone goes to L2"
    assert_right(model, worker.prefill(longer[None]), [longer])


def test_pins_of_l1_end_with_the_call() -> None:
    model, sidecar = shared_model("llama"), FakeSidecar()
    worker = connect(model, sidecar)
    row = tokens(40)
    for _ in range(2):
        worker.prefill(row[None])
        assert worker.statistics()["pinned_pages"] == 0
    worker.generate(row[None], max_new_tokens=4, do_sample=False)
    assert worker.statistics()["pinned_pages"] == 0
