"""The measurement of L1 moves what it says it moves, reads the same numbers in every layout, and tells what was missed."""

from __future__ import annotations

import pytest
import torch

from benchmarks import l1, l1_layouts
from benchmarks.layout_choice import Layout
from kv_types.namespace import AttentionKind, Geometry

SMALL = Geometry(
    attention=AttentionKind.GQA, layers_total=2, layer_begin=0, layer_end=2,
    kv_heads_total=2, head_begin=0, head_end=2, head_dim=32,
)  # fmt: skip


def test_everything_is_measured_on_one_small_geometry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l1, "GEOMETRIES", {"small": SMALL})
    monkeypatch.setattr(l1_layouts, "LENGTHS", (64, 128))
    threads = torch.get_num_threads()
    results = l1.measure(rounds=3, operations=20_000, pages=4)
    assert torch.get_num_threads() == threads
    assert [row.what for row in results.gathers][:2] == ["copy", "memcpy"]
    assert all(row.p50_ms > 0 and row.x_copy > 0 for row in results.gathers)
    assert results.churn is not None
    assert results.churn.leaked_pages == 0
    told = "\n".join(l1.lines(results))
    assert told.count("**missed**") + told.count("| met |") == 2
    assert set(l1.keys_of(results)) == {"GatherRow", "HitRow", "LayoutRow", "Churn"}


def test_what_was_missed_is_told() -> None:
    rows = [l1.GatherRow("g", "gather, pages adjacent", 1.0, 1.0, ratio) for ratio in (1.2, 1.3)]
    told = "\n".join(l1.lines(l1.Results(gathers=rows)))
    assert (told.count("| met |"), told.count("**missed**")) == (1, 1)


def test_every_layout_reads_the_same_context() -> None:
    context = l1_layouts._Context(256)
    context.gather()
    gathered = [one.clone() for one in context.cache]
    wanted = context.attend()
    torch.testing.assert_close(context.attend_paged(), wanted, atol=0.02, rtol=0.02)
    torch.testing.assert_close(context.attend_through_index(), wanted, atol=0.02, rtol=0.02)
    for fill, most in ((context.unpack, 0.0), (context.expand, 0.3)):
        for one in context.cache:
            one.zero_()
        fill()
        for ours, theirs in zip(context.cache, gathered, strict=True):
            if not most:
                assert torch.equal(ours, theirs)
            torch.testing.assert_close(ours, theirs, atol=most, rtol=0.07)


def test_the_better_form_of_a_layout_is_what_is_chosen_from() -> None:
    rows = [
        l1_layouts.LayoutRow("contiguous", 64, 5.0, 1.0),
        l1_layouts.LayoutRow("paged, page by page", 64, 0.0, 4.0),
        l1_layouts.LayoutRow("paged, indexed at each step", 64, 0.0, 3.0),
    ]
    costs = l1_layouts.costs_of(rows)
    assert costs[Layout.PAGED][0].read_s == pytest.approx(3e-6)
    told = "\n".join(l1_layouts.lines(rows))
    assert "| 64 | paged | contiguous |" in told
