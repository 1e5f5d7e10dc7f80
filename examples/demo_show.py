"""What the demo shows at the end: a table, the answers, the promises it checked, and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

MIB = 1024 * 1024
TIERS = ("l1", "l2", "l3")
LOGITS_TOLERANCE = 1e-3
"""fp32 sums in another order differ in their last bits; a wrong page differs by whole units."""

Result = Mapping[str, Any]


def tokens(result: Result) -> int:
    """Real prompt tokens of all rows."""
    return sum(row["tokens"] for row in result["rows"])


def reused(result: Result) -> int:
    """Prompt tokens of all rows that were not computed."""
    return sum(row["reused"] for row in result["rows"])


def cold_s(result: Result) -> float:
    """Seconds to the first token without reuse. The first worker found an empty cache, so its own run is
    that.
    """
    return float(result["warm_s"] if result["cold_s"] is None else result["cold_s"])


def table(results: Sequence[Result]) -> Table:
    """One line a worker process; fits 80 columns."""
    shown = Table(
        title="Four worker processes of one node, one after another",
        caption="cold: the same prompt without the cache, in the same process; MiB from and to L2",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    headings = ("worker", "prompt\ntokens", "reused", "from", "cold\ns", "cached\ns", "times\nsooner")
    for heading in (*headings, "MiB\nread", "MiB\nput", "logits\ndiffer"):
        left = heading in {"worker", "from"}
        shown.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for result in results:
        shown.add_row(*_cells(result))
    return shown


def _cells(result: Result) -> list[str]:
    tiers = [tier.upper() for tier in TIERS if any(row[f"pages_{tier}"] for row in result["rows"])]
    compared = result["cold_s"] is not None
    return [
        f"{result['number']} {result['name']}",
        f"{tokens(result):,}",
        f"{reused(result):,}",
        "+".join(tiers) or "–",
        f"{cold_s(result):.2f}",
        f"{result['warm_s']:.2f}" if compared else "–",
        f"{cold_s(result) / result['warm_s']:.1f} ×" if compared else "–",
        f"{result['bytes_from_l2'] / MIB:.1f}",
        f"{result['bytes_stored'] / MIB:.1f}",
        f"{result['logits_difference']:.0e}" if compared else "–",
    ]


def show_answers(console: Console, results: Sequence[Result], questions: Sequence[Sequence[str]]) -> None:
    """Question and answer of each row."""
    for result, asked in zip(results, questions, strict=True):
        lines = []
        for question, answer in zip(asked, result["answers"], strict=True):
            lines.append(f"[bold]{question}[/bold]\n{' '.join(answer.split())}")
        console.print(Panel("\n\n".join(lines), title=_label(result), title_align="left", border_style="dim"))


def broken_promises(results: Sequence[Result]) -> list[str]:
    """What should have been and was not, in words; empty when all is well."""
    first, *others = results
    broken = []
    if first["pages_stored"] == 0:
        broken.append(f"the first worker stored nothing (refused: {first['refused']}, off: {first['off']!r})")
    for result in others:
        name = _label(result)
        if result["off"]:
            broken.append(f"{name}: reuse was off: {result['off']}")
        if reused(result) < 0.9 * tokens(result):
            ended = {row["ended_by"] for row in result["rows"]}
            broken.append(
                f"{name}: only {reused(result)} of {tokens(result)} tokens reused ({', '.join(ended)})"
            )
        if result["logits_difference"] > LOGITS_TOLERANCE:
            broken.append(
                f"{name}: logits with and without reuse differ by {result['logits_difference']:.3g}"
            )
        if not result["same_first_token"]:
            broken.append(f"{name}: the first token differs with and without reuse")
        if result["warm_s"] >= result["cold_s"]:
            broken.append(f"{name}: reuse made the first token later")
    if reused(others[-1]) <= tokens(first):
        broken.append("the conversation reused no page of the first worker's answer")
    return broken


def plot(results: Sequence[Result], path: Path) -> None:
    """Write a PNG: seconds to the first token, cold and through the cache, and where the prompts' tokens
    came from.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12.5, 4.6), width_ratios=(1.25, 1), constrained_layout=True
    )
    figure.suptitle(
        "One prefill, five processes on two nodes: SmolLM2-135M on CPU, KV pages through shared memory and Redis",
        fontsize=12.5,
        fontweight="bold",
    )
    _plot_times(left, results)
    _plot_tokens(right, results)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _labels(results: Sequence[Result]) -> list[str]:
    return [_label(result).replace(": ", "\n") for result in results]


def _label(result: Result) -> str:
    return f"worker {result['number']}: {result['name']}"


def _plot_times(axes: Any, results: Sequence[Result]) -> None:
    cold = [cold_s(result) for result in results]
    warm = [result["warm_s"] for result in results]
    rows = range(len(results))
    axes.barh([row - 0.19 for row in rows], cold, height=0.36, color="#b9bec6", label="without the cache")
    axes.barh([row + 0.19 for row in rows], warm, height=0.36, color="#1f6f8b", label="through the cache")
    end = max(cold)
    for row, (slow, fast, result) in enumerate(zip(cold, warm, results, strict=True)):
        axes.text(slow + 0.01 * end, row - 0.19, f"{slow:.2f} s", va="center", fontsize=9, color="#555b66")
        paid = result["cold_s"] is None
        note = "pays the prefill" if paid else f"{fast:.2f} s   ({slow / fast:.1f}× sooner)"
        axes.text(fast + 0.01 * end, row + 0.19, note, va="center", fontsize=9, color="#12485b")
    axes.set_xlim(0, end * 1.22)
    axes.set_yticks(list(rows), _labels(results))
    axes.invert_yaxis()
    axes.set_xlabel("time to first token, in seconds (less is better)")
    axes.set_title("Time to first token", loc="left", fontsize=11)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    _plain(axes, "x")


def _plot_tokens(axes: Any, results: Sequence[Result]) -> None:
    rows = range(len(results))
    kept = [reused(result) for result in results]
    computed = [tokens(result) - reused(result) for result in results]
    axes.barh(rows, kept, height=0.55, color="#1f6f8b", label="reused")
    axes.barh(rows, computed, height=0.55, left=kept, color="#e0a458", label="computed")
    end = max(tokens(result) for result in results)
    for row, result in enumerate(results):
        share = f"{reused(result):,} of {tokens(result):,}"
        axes.text(tokens(result) + 0.015 * end, row, share, va="center", fontsize=9, color="#333840")
    axes.set_xlim(0, end * 1.32)
    axes.set_yticks(list(rows), [""] * len(results))
    axes.invert_yaxis()
    axes.set_xlabel("prompt tokens")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Where the prompt's KV came from", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    _plain(axes, "x")


def _plain(axes: Any, grid: str) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis=grid, color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
