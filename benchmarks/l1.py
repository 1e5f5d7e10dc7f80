"""`stratakv bench l1`: L1's gathers beside plain copies, hits of L1 beside those of L2, layouts, and a pool's churn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import l1_churn, l1_layouts
from benchmarks.copies import memcpy
from benchmarks.daemon import attached_client, own_sidecar
from benchmarks.local import MIB, expect_hit
from benchmarks.timing import Samples, Scenario, interleave, ratio_p50
from benchmarks.workload import pages_of
from cache_l1.transfer_contiguous import ContiguousCopies
from cache_l2 import _native
from inference_worker.client import Client, RegisteredNamespace
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Rope, Weights
from kv_types.outcomes import Stored
from kv_types.page_keys import page_keys
from kv_types.page_layout import PageLayout

PAGES = 64
PAGE_TOKENS = 64
ROUNDS = 30
OPERATIONS = 10_000_000
GATHER_BUDGET = 1 / 0.8
"""A gather takes at most so many times a plain copy: 80 % of its speed."""

GEOMETRIES: dict[str, Geometry] = {
    "30 layers × 3 heads × 64 (SmolLM2-135M)": Geometry(
        attention=AttentionKind.GQA, layers_total=30, layer_begin=0, layer_end=30,
        kv_heads_total=3, head_begin=0, head_end=3, head_dim=64,
    ),
    "16 layers × 8 heads × 128 (half of an 8B model)": Geometry(
        attention=AttentionKind.GQA, layers_total=32, layer_begin=0, layer_end=16,
        kv_heads_total=8, head_begin=0, head_end=8, head_dim=128,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class GatherRow:
    """One way to move PAGES pages of one geometry; `x_copy` is its time ÷ the better plain copy's of the same round."""

    geometry: str
    what: str
    megabytes: float
    p50_ms: float
    x_copy: float


@dataclass(frozen=True)
class HitRow:
    """A hot prefix of PAGES pages, from the look-up to the engine's cache."""

    geometry: str
    l1_ms: float
    l2_ms: float
    copy_ms: float
    l2_less_l1_x_copy: float


@dataclass
class Results:
    """All that was measured."""

    gathers: list[GatherRow] = field(default_factory=list)
    hits: list[HitRow] = field(default_factory=list)
    layouts: list[l1_layouts.LayoutRow] = field(default_factory=list)
    churn: l1_churn.Churn | None = None


class _Bench:
    """Pages of one geometry, an engine's contiguous cache, and two plain buffers of the same bytes."""

    def __init__(self, geometry: Geometry, *, pages: int) -> None:
        self.namespace = namespace_of(geometry)
        self.copies = ContiguousCopies(PageLayout.of(self.namespace), torch.bfloat16, native=_native)
        self.plain_torch = ContiguousCopies(PageLayout.of(self.namespace), torch.bfloat16)
        self.pages = pages
        size = self.copies.page_bytes
        self.megabytes = pages * size / 1e6
        self.memory = _random_bytes(2 * pages, size)
        self.cache = [
            torch.ones((one.heads, pages * PAGE_TOKENS, one.width), dtype=torch.bfloat16)
            for one in self.copies.parts
        ]
        self.plain = [np.ones(pages * size, dtype=np.uint8) for _ in range(2)]
        self.adjacent = list(range(pages // 2, pages // 2 + pages))
        self.scattered = np.random.default_rng(3).permutation(2 * pages)[:pages].tolist()

    def copy(self) -> None:
        """All bytes at once, as numpy does it."""
        np.copyto(self.plain[0], self.plain[1])

    def memcpy(self) -> None:
        """All bytes at once, as the C library does it."""
        memcpy(self.plain[0], self.plain[1])

    def copy_by_page(self) -> None:
        """Page by page, by the copy that the tiers use, measured to be the best here for adjacent bytes."""
        size = self.copies.page_bytes
        for to, page in zip(pages_of(self.plain[0], size), pages_of(self.plain[1], size), strict=True):
            _native.copy_bytes(to, page)


def namespace_of(geometry: Geometry) -> Namespace:
    """One of bf16 pages."""
    return Namespace(
        model="bench-l1", weights=Weights(version="1"), adapter=None, kv_dtype=KvDtype.BF16, quantisation=None,
        geometry=geometry, rope=Rope(kind="default", theta=10_000.0), page_tokens=PAGE_TOKENS,
    )  # fmt: skip


def _random_bytes(rows: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).integers(0, 256, (rows, size), dtype=np.uint8))


def measure_gathers(name: str, bench: _Bench, *, rounds: int) -> list[GatherRow]:
    """Gather and scatter, by the native copies and by torch's, beside plain copies of the same bytes."""
    ways = {
        "adjacent pages, by the tiers' copy": bench.copy_by_page,
        "gather, pages adjacent": lambda: bench.copies.gather(bench.memory, bench.adjacent, bench.cache),
        "gather, pages scattered": lambda: bench.copies.gather(bench.memory, bench.scattered, bench.cache),
        "scatter, pages scattered": lambda: bench.copies.scatter(bench.cache, bench.memory, bench.scattered),
        "gather by torch, scattered": lambda: bench.plain_torch.gather(
            bench.memory, bench.scattered, bench.cache
        ),
        "scatter by torch, scattered": lambda: bench.plain_torch.scatter(
            bench.cache, bench.memory, bench.scattered
        ),
    }
    samples = interleave(
        [
            Scenario("copy", lambda _: bench.copy()),
            Scenario("memcpy", lambda _: bench.memcpy()),
            *(Scenario(what, lambda _, run=run: run()) for what, run in ways.items()),  # type: ignore[misc]
        ],
        rounds=rounds,
    )
    yardsticks = samples["copy"], samples["memcpy"]
    return [
        GatherRow(
            name, what, bench.megabytes, 1e3 * samples[what].p50_s, ratio_p50(samples[what], *yardsticks)
        )
        for what in samples
    ]


def measure_hits(name: str, bench: _Bench, client: Client, *, rounds: int) -> HitRow:
    """The prefix comes from L1 by a gather; from L2 by a get into a buffer of the worker's, and a gather from there."""
    namespace = client.register(bench.namespace)
    tokens = np.arange(bench.pages * PAGE_TOKENS, dtype=np.uint32)
    keys = page_keys(bench.namespace.id, tokens, page_tokens=PAGE_TOKENS)
    _store(client, namespace, keys, bench)
    room = torch.zeros((bench.pages, bench.copies.page_bytes), dtype=torch.uint8)
    buffers = pages_of(room.numpy().reshape(-1), bench.copies.page_bytes)

    def from_l2(_: int) -> None:
        expect_hit(client.get(namespace, keys, buffers), bench.pages)
        bench.copies.gather(room, range(bench.pages), bench.cache)

    samples: dict[str, Samples] = interleave(
        [
            Scenario("copy", lambda _: bench.copy()),
            Scenario("memcpy", lambda _: bench.memcpy()),
            Scenario("l1", lambda _: bench.copies.gather(bench.memory, bench.scattered, bench.cache)),
            Scenario("l2", from_l2),
        ],
        rounds=rounds,
    )
    copy = min(samples["copy"], samples["memcpy"], key=lambda one: one.p50_s)
    gains = np.asarray(samples["l2"].seconds) - np.asarray(samples["l1"].seconds)
    return HitRow(
        geometry=name,
        l1_ms=1e3 * samples["l1"].p50_s,
        l2_ms=1e3 * samples["l2"].p50_s,
        copy_ms=1e3 * copy.p50_s,
        l2_less_l1_x_copy=float(np.median(gains / np.asarray(copy.seconds))),
    )


def _store(client: Client, namespace: RegisteredNamespace, keys: bytes, bench: _Bench) -> None:
    with client.begin(namespace) as request:
        outcomes = request.put(keys, [bench.memory[page].numpy() for page in bench.scattered])
    if not all(isinstance(outcome, Stored) for outcome in outcomes):
        raise RuntimeError(f"filling the arena failed: {outcomes[:3]}")


def measure(*, rounds: int = ROUNDS, operations: int = OPERATIONS, pages: int = PAGES) -> Results:
    """All of it, on one thread, with a sidecar of its own."""
    results = Results()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a native copy is one thread's work, and so is the plain one beside it
    try:
        for name, geometry in GEOMETRIES.items():
            bench = _Bench(geometry, pages=pages)
            arena_bytes = max(256 * MIB, 2 * pages * bench.copies.page_bytes)
            # the sidecar has measured which copy is the best here, and whoever attaches uses it
            with own_sidecar(arena_bytes=arena_bytes) as runtime, attached_client(runtime) as client:
                results.gathers += measure_gathers(name, bench, rounds=rounds)
                results.hits.append(measure_hits(name, bench, client, rounds=rounds))
        results.layouts = l1_layouts.measure(rounds=max(3, rounds // 3))
    finally:
        torch.set_num_threads(threads)
    results.churn = l1_churn.churn(operations)
    return results


def lines(results: Results) -> list[str]:
    """The part of docs/benchmarks.md."""
    told = [
        "## L1",
        "",
        f"`stratakv bench l1`, one thread, {PAGES} pages of {PAGE_TOKENS} tokens in bf16, interleaved with plain copies of",
        "the same bytes, at once, by `np.copyto` and `memcpy`. *× copy*: the median over rounds of its time ÷ the better one's;",
        f"a gather may take {GATHER_BUDGET:g} (80 % of a copy's speed). Pages lie *adjacent* in L1 or *scattered*.",
        "",
        "| geometry | what | MB | p50 ms | × copy | |",
        "|---|---|---:|---:|---:|---|",
    ]
    told += [
        f"| {one.geometry} | {one.what} | {one.megabytes:.0f} | {one.p50_ms:.1f} | {one.x_copy:.2f} | {_verdict(one)} |"
        for one in results.gathers
    ]
    told += [
        "",
        "A hot prefix of as many pages, from the look-up until it stands in the engine's cache. *L2 less L1*: what L1 spares, in",
        "plain copies of the same bytes.",
        "",
        "| geometry | from L1, ms | from L2, ms | a copy, ms | L2 less L1, × copy |",
        "|---|---:|---:|---:|---:|",
    ]
    told += [
        f"| {one.geometry} | {one.l1_ms:.1f} | {one.l2_ms:.1f} | {one.copy_ms:.1f} | {one.l2_less_l1_x_copy:.2f} |"
        for one in results.hits
    ]
    told += ["", *l1_layouts.lines(results.layouts)]
    if results.churn is not None:
        told += ["", *churn_lines(results.churn)]
    return told


def _verdict(row: GatherRow) -> str:
    if not row.what.startswith("gather, "):
        return ""
    return "met" if row.x_copy <= GATHER_BUDGET else "**missed**"


def churn_lines(run: l1_churn.Churn) -> list[str]:
    """What a pool looks like while requests come and go."""
    shown = [run.windows[at] for at in (0, len(run.windows) // 2, -1)]
    return [
        f"{run.operations:,} pages taken, shared and given back by requests over a pool of {l1_churn.CAPACITY:,}: "
        f"{run.leaked_pages} pages leaked, {run.references_lost} references lost, {run.tail_copies:,} shared tails copied.",
        "*Wasted*: places in tails that hold no token. *Not adjacent*: pages that don't lie behind the one before them in their",
        "table; that costs a gather nothing, as the rows above show, and wastes nothing.",
        "",
        "| pages so far | tables | occupied | shared | references to a page that was there | wasted | not adjacent |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {one.operations:,} | {one.tables} | {one.occupancy:.1%} | {one.sharing:.1%} | {one.reuse:.1%} | "
            f"{one.internal:.2%} | {one.external:.1%} |"
            for one in shown
        ),
    ]


def table(results: Results) -> Table:
    """Gathers for a person."""
    drawn = Table(title=f"{PAGES} pages between L1 and an engine's cache")
    for heading in ("geometry", "what", "MB", "p50 ms", "× copy"):
        drawn.add_column(heading, justify="left" if heading in {"geometry", "what"} else "right")
    for one in results.gathers:
        drawn.add_row(
            one.geometry, one.what, f"{one.megabytes:.0f}", f"{one.p50_ms:.1f}", f"{one.x_copy:.2f}"
        )
    return drawn


def keys_of(results: Results) -> dict[str, Any]:
    """Everything, for machines."""
    rows: Sequence[Any] = (*results.gathers, *results.hits, *results.layouts)
    kept: dict[str, Any] = {}
    for row in rows:
        kept.setdefault(type(row).__name__, []).append(asdict(row))
    if results.churn is not None:
        kept["Churn"] = asdict(results.churn)
    return kept


def main(
    rounds: Annotated[int, typer.Option(min=3, max=1000, help="Rounds of each scenario.")] = ROUNDS,
    operations: Annotated[
        int, typer.Option(min=1000, help="Pages that the pool's churn takes and gives back.")
    ] = OPERATIONS,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
) -> None:
    """L1: gathers, hits, layouts by context length, and a pool under churn."""
    results = measure(rounds=rounds, operations=operations)
    console = Console()
    console.print(table(results))
    console.print("\n".join(lines(results)), markup=False, highlight=False)
    if json_path is not None:
        json_path.write_text(json.dumps(keys_of(results), indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
