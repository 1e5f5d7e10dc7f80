"""The measurement of codecs on a small model: lossless ones change nothing, lossy ones what they say, and rows are complete."""

from __future__ import annotations

import torch
import zstandard

from benchmarks.codec_choices import COLUMNS as CHOICE_COLUMNS
from benchmarks.codec_choices import framed, planes_of, scales
from benchmarks.codecs import COLUMNS, PAGE_TOKENS, Subject, lines, logits_on, measure_subject, subject, table
from cache_l3.sections import frame_parameters
from tests.connectors.models import largest_difference, tiny_model, tokens

TOKENS = 3 * PAGE_TOKENS + 8


def small(dtype: torch.dtype) -> Subject:
    return subject("tiny", tiny_model("llama", dtype=dtype, hidden_size=128), tokens(TOKENS).tolist())


def test_lossless_codecs_change_nothing_and_lossy_ones_little() -> None:
    rows = list(measure_subject(small(torch.bfloat16), rounds=1))
    by_name = {row.codec: row for row in rows}
    assert by_name["raw"].share == 1
    assert by_name["lossless planes"].share < 0.85
    for name in ("raw", "lossless planes"):
        assert (by_name[name].logit_difference, by_name[name].changed, by_name[name].worst_error) == (
            None,
            0,
            None,
        )
    lossy = [row for row in rows if row.worst_error is not None]
    assert len(lossy) == 4
    for row in lossy:
        assert row.share < 0.55
        assert row.mean_error is not None
        assert row.worst_error is not None
        assert 0 < row.mean_error <= row.worst_error < 0.05
        assert row.logit_difference is not None
        assert 0 < row.logit_difference < 1
        assert row.changed is not None
        assert 0 <= row.changed <= row.compared == TOKENS - PAGE_TOKENS
        assert row.kept_exact == 0
    assert by_name["fp8_e4m3"].share < 0.5
    assert all(len(row.cells()) == len(COLUMNS) for row in rows)
    assert len(lines(rows)) > len(rows)
    assert table(rows).row_count == len(rows)


def test_pages_are_computed_on_those_before_them_and_on_nothing_else() -> None:
    """On its own KV a text has the logits of a plain pass, and what is given instead of a page changes those behind it alone."""
    of = small(torch.float32)
    plain, whole = of.model(of.ids).logits[0].detach(), TOKENS // PAGE_TOKENS * PAGE_TOKENS
    assert largest_difference(of.logits, plain) < 1e-4
    given = [(keys[:, :, :whole].clone(), values[:, :, :whole].clone()) for keys, values in of.kv]
    for keys, _ in given:
        keys[:, :, PAGE_TOKENS : PAGE_TOKENS + 5] += 1
    changed = (logits_on(of.model, of.ids, given) != of.logits).any(dim=1)
    assert not changed[: 2 * PAGE_TOKENS].any()
    assert changed[2 * PAGE_TOKENS :].all()


def test_other_choices_are_measured_on_the_same_pages() -> None:
    of = small(torch.bfloat16)
    by_head, by_channel = scales(of, PAGE_TOKENS)
    for row in (by_head, by_channel):
        assert row.share < 0.55
        assert row.errors is not None
        assert 0 < row.errors[0] <= row.errors[1] < 0.05
        assert len(row.cells()) == len(CHOICE_COLUMNS)
    low, high = planes_of(of, PAGE_TOKENS)
    plain = zstandard.ZstdCompressor(compression_params=frame_parameters())
    sizes = [framed(planes, plain, zstandard.ZstdDecompressor())[0] for planes in (low, high)]
    assert sizes[1] < 0.6 * sizes[0], "exponents compress, mantissas do not"
