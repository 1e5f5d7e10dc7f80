"""The measurement of codecs on a small model: lossless ones change nothing, lossy ones what they say, and rows are complete."""

from __future__ import annotations

import torch

from benchmarks.codecs import COLUMNS, PAGE_TOKENS, Subject, lines, measure_subject, subject, table
from tests.connectors.models import tiny_model, tokens

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


def test_a_computation_on_its_own_pages_is_the_same() -> None:
    """What is compared differs by what a codec lost, and by nothing else."""
    from benchmarks.codecs import _compare, _page_bytes

    of = small(torch.float32)
    assert _compare(of, _page_bytes(of)) == (0.0, 0)
