"""Regenerates docs/benchmarks.md and its plots: one node, L1, L3, fleets, one event loop, a full arena (`make bench`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import (
    codecs,
    fleet_report,
    huge_pages,
    l1,
    l3,
    layers,
    local,
    loop_turns,
    million,
    start,
    swings,
    tenants,
    vllm,
)
from kv_types.errors import StrataError

DOCS = Path(__file__).resolve().parent.parent / "docs"
BUDGETS: tuple[tuple[str, str, str, float], ...] = (
    ("match_lease_release_us_p50", "match + lease + release of one resident page", "µs", 1.5),
    ("match_512_us_p50", "match of a 512-page prefix, all resident, keys given", "µs", 25.0),
    ("key_512_pages_ms_p50", "512 chained keys of 64 tokens", "ms", 0.6),
    ("get_1MiB_x_copy", "get of one 1 MiB page, cold", "× copy", 1.10),
    ("get_1MiB_warm_x_copy", "get of one 1 MiB page, warm destination", "× copy", 1.10),
    ("get_32x1MiB_x_copy", "get of 32 × 1 MiB, cold", "× copy", 1.03),
    ("get_32x1MiB_warm_x_copy", "get of 32 × 1 MiB, warm destination", "× copy", 1.03),
    ("put_1MiB_x_copy", "put of one 1 MiB page", "× copy", 1.35),
    ("put_32x1MiB_x_copy", "put of 32 × 1 MiB", "× copy", 1.08),
    ("grpc_get_1MiB_x_empty", "remote Get of 1 MiB over gRPC", "× empty call", 4.0),
)

RATIO_TICKS = (0.5, 1, 2, 5, 10, 20, 50)


HEAD = """# Benchmarks

Written by `make bench`; edit `benchmarks/`, not this page. Every figure is from one run of the command that its part names.
Ratios travel to other machines, microseconds do not.
"""


class Part(StrEnum):
    """Parts of the page; each can be measured anew by itself."""

    NODE = "node"
    LAYERS = "layers"
    START = "start"
    HUGE_PAGES = "huge_pages"
    L1 = "l1"
    L3 = "l3"
    CODECS = "codecs"
    FLEET = "fleet"
    REDIS = "redis"
    LOOP = "loop"
    MILLION = "million"
    SWINGS = "swings"
    TENANTS = "tenants"
    VLLM = "vllm"


def document(parts: Mapping[Part, str]) -> str:
    """The whole page as Markdown."""
    return "\n".join([HEAD, *(f"{_mark(part)}\n{parts[part].strip()}\n" for part in Part)])


def parts_of(page: str) -> dict[Part, str]:
    """The parts of a page that `document` wrote; none of one that it did not write."""
    parts = {}
    for part in Part:
        _, mark, rest = page.partition(_mark(part))
        if mark:
            parts[part] = rest.partition("<!-- part ")[0].strip()
    return parts


def _mark(part: Part) -> str:
    return f"<!-- part {part} -->"


def node_part(results: local.Results) -> str:
    """The part on one node as Markdown."""
    lines = [
        "## One node",
        "",
        "`stratakv bench local`, interleaved with plain copies. *Cold*: source and destination were not touched for 256 MiB",
        "of other copies. *Warm destination*: it was just written. A ratio is",
        "the median over rounds of ours ÷ the better of `np.copyto` and `memcpy` in the same round. The plain copies",
        "beside a get read the same pages in shared memory, through leases; those beside a put write to a shared mapping of",
        "their own. They copy page by page. Where memory lies decides much of a copy's time: runs differ by a tenth and more.",
        "",
        machine_line(results.machine),
        "",
        "| what | measured | budget | |",
        "|---|---:|---:|---|",
    ]
    for key, what, unit, budget in BUDGETS:
        value = results.keys[key]
        lines.append(
            f"| {what} (`{key}`) | {value:.2f} {unit} | {budget:g} | {'met' if value <= budget else '**missed**'} |"
        )
    keys = results.keys
    lines += [
        "",
        f"Two clients at once reach {keys['two_clients_x_one']:.2f} × the throughput of one; two plain copies reach "
        f"{keys['two_copies_x_one']:.2f} × of one.",
        "",
        "![Time of get and put against a plain copy](benchmarks-copies.png)",
        "",
        "### Get and put by size and batch",
        "",
        "| verb | pages | destination | p50 µs | p99 µs | copy p50 µs | × copy |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    lines += [_row(row) for row in results.rows]
    return "\n".join(lines)


def measured_node(console: Console, rounds: int) -> str:
    """One node, beside plain copies; draws the plot too."""
    results = local.run(rounds=rounds, console=console)
    plot(results, DOCS / "benchmarks-copies.png")
    console.print(local.table(results))
    return node_part(results)


def measured_layers(console: Console) -> str:
    """Where a call's time goes."""
    measured = layers.measure()
    console.print(layers.table(measured))
    return "\n".join([*layers.lines(measured), "", machine_line(local.machine())])


def measured_start(console: Console) -> str:
    """A start beside a bare populate."""
    load_average = os.getloadavg()[0]
    starts = start.measure(arena_bytes=4 * start.GIB, rounds=start.ROUNDS)
    console.print(start.table(starts))
    return _part(start.lines(starts), load_average)


def measured_l1(console: Console) -> str:
    """L1 beside plain copies."""
    load_average = os.getloadavg()[0]
    results = l1.measure()
    console.print(l1.table(results))
    return _part(l1.lines(results), load_average)


def measured_l3(console: Console) -> str:
    """Pages in L3, beside plain sockets."""
    pages = l3.measure(console)
    console.print(l3.table(pages))
    return _part(l3.lines(pages), pages.load_average, pages.machine)


def measured_codecs(console: Console) -> str:
    """Codecs on KV of real models."""
    load_average = os.getloadavg()[0]
    rows = codecs.measure(console)
    console.print(codecs.table(rows))
    return _part(codecs.lines(rows), load_average)


def measured_fleet(console: Console) -> str:
    """A fleet and its fences."""
    return "\n".join([*fleet_report.measure(console), "", machine_line(local.machine())])


def measured_redis(console: Console) -> str:
    """What a log costs its Redis."""
    return "\n".join([*fleet_report.measure_redis(console), "", machine_line(local.machine())])


def measured_loop(console: Console) -> str:
    """The longest turns of a sidecar's loop."""
    load_average = os.getloadavg()[0]
    figures = asyncio.run(loop_turns.measure(rounds=loop_turns.ROUNDS))
    console.print(loop_turns.table(figures))
    return _part(loop_turns.lines(figures), load_average)


def measured_million(console: Console) -> str:
    """A sidecar with a million pages."""
    load_average = os.getloadavg()[0]
    figures = million.measure(pages=million.PAGES, rounds=million.ROUNDS)
    console.print(million.table(figures))
    return _part(million.lines(figures), load_average)


def measured_swings(console: Console) -> str:
    """Segments beside the ideal split."""
    del console
    return "\n".join(swings.lines())


def measured_tenants(console: Console) -> str:
    """A share beside a scan."""
    del console
    return "\n".join(tenants.lines())


def measured_vllm(console: Console) -> str | None:
    """Real vLLM engines; None where there is no vLLM, which is told."""
    try:
        results = vllm.measure(console)
    except vllm.VllmMissingError as error:
        console.print(f"vLLM is not measured: {error}")
        return None
    console.print(vllm.table(results.keys))
    return _part(vllm.lines(results), results.load_average, results.machine)


def _part(told: list[str], load_average: float, machine: Mapping[str, Any] | None = None) -> str:
    circumstances = fleet_report.circumstances(load_average)
    return "\n".join([*told, "", circumstances, "", machine_line(machine or local.machine())])


def measured_huge_pages(console: Console) -> str | None:
    """Huge pages beside small ones; None where too few are set apart, which is told."""
    load_average = os.getloadavg()[0]
    try:
        figures = huge_pages.measure(rounds=huge_pages.ROUNDS)
    except StrataError as error:
        console.print(f"huge pages are not measured: {error}")
        return None
    console.print(huge_pages.table(figures))
    return _part(huge_pages.lines(figures), load_average)


def machine_line(machine: Mapping[str, Any]) -> str:
    """Where a part was measured."""
    return f"Machine: {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}."


def _row(row: dict[str, Any]) -> str:
    times = f"{row['p50_us']:.0f} | {row['p99_us']:.0f} | {row['copy_p50_us']:.0f} | {row['x_copy']:.2f}"
    return f"| {row['verb']} | {row['pages']} × {row['size']} | {row['destination']} | {times} |"


def plot(results: local.Results, path: Path) -> None:
    """Ratios to a plain copy by page size, one panel a batch size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(local.BATCHES), figsize=(12, 4), sharey=True, constrained_layout=True
    )
    kinds = (("get", "cold", "o-"), ("get", "warm", "s--"), ("put", "cold", "^-"))
    for panel, pages in zip(panels, local.BATCHES, strict=True):
        for verb, destination, style in kinds:
            rows = [
                r
                for r in results.rows
                if (r["verb"], r["destination"], r["pages"]) == (verb, destination, pages)
            ]
            panel.plot(
                [r["size"] for r in rows], [r["x_copy"] for r in rows], style, label=f"{verb}, {destination}"
            )
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_title(f"{pages} page{'s' if pages > 1 else ''} a call")
        panel.set_xlabel("page size")
        panel.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[0].set_yticks(RATIO_TICKS, labels=[f"{tick:g}" for tick in RATIO_TICKS])
    panels[0].minorticks_off()
    panels[0].set_ylabel("time ÷ plain copy of the same run (log scale)")
    panels[0].legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


MEASURED: Mapping[Part, Callable[[Console], str | None]] = {
    Part.LAYERS: measured_layers,
    Part.START: measured_start,
    Part.HUGE_PAGES: measured_huge_pages,
    Part.L1: measured_l1,
    Part.L3: measured_l3,
    Part.CODECS: measured_codecs,
    Part.FLEET: measured_fleet,
    Part.REDIS: measured_redis,
    Part.LOOP: measured_loop,
    Part.MILLION: measured_million,
    Part.SWINGS: measured_swings,
    Part.TENANTS: measured_tenants,
    Part.VLLM: measured_vllm,
}
"""How each part but the first is measured; None: it can't be here, and the old one stays."""


def main(
    rounds: int = 120,
    only: Annotated[Part | None, typer.Option(help="Measure this part anew and keep the others.")] = None,
) -> None:
    """Measure, then write docs/benchmarks.md and docs/benchmarks-copies.png."""
    console = Console(stderr=True)
    page = DOCS / "benchmarks.md"
    parts = parts_of(page.read_text())
    wanted = list(Part) if only is None else [only]
    missing = set(Part) - set(parts) - set(wanted)
    if missing:
        raise typer.BadParameter(f"{page} has no part {', '.join(sorted(missing))} to keep: measure all")
    for part in wanted:
        told = measured_node(console, rounds) if part is Part.NODE else MEASURED[part](console)
        parts[part] = told or parts[part]
    page.write_text(document(parts))
    console.print(f"written: {page}")


if __name__ == "__main__":
    typer.run(main)
