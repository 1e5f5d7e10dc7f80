"""What it costs to bring a context of L1 into a form that attention reads, and to read it, by its length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.layout_choice import Layout, LayoutCost, choose_layout
from benchmarks.timing import Scenario, interleave
from cache_l1.transfer_contiguous import ContiguousCopies
from cache_l2 import _native
from cache_l3.codecs import Planes
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Rope, Weights
from kv_types.page_layout import PageLayout

PAGE_TOKENS = 64
HEADS = 8
WIDTH = 64
LENGTHS = (256, 1024, 4096, 16_384)
STEPS = (1, 64)
"""Decoding steps over one context for which a layout is chosen."""


@dataclass(frozen=True)
class LayoutRow:
    """One layout at one length, one layer."""

    layout: str
    tokens: int
    bring_us: float
    read_us: float


class _Context:
    """One layer's keys and values of a context, in every form: random numbers, a query of one token."""

    def __init__(self, tokens: int) -> None:
        draw = torch.Generator().manual_seed(tokens)
        geometry = Geometry(
            attention=AttentionKind.GQA, layers_total=1, layer_begin=0, layer_end=1,
            kv_heads_total=HEADS, head_begin=0, head_end=HEADS, head_dim=WIDTH,
        )  # fmt: skip
        namespace = Namespace(
            model="bench-layouts", weights=Weights(version="1"), adapter=None, kv_dtype=KvDtype.BF16,
            quantisation=None, geometry=geometry, rope=Rope(kind="default", theta=1e4), page_tokens=PAGE_TOKENS,
        )  # fmt: skip
        self.copies = ContiguousCopies(PageLayout.of(namespace), torch.bfloat16, native=_native)
        self.count = tokens // PAGE_TOKENS
        numbers = torch.randn((2 * self.count, self.copies.page_bytes // 2), generator=draw)
        self.pages = numbers.to(torch.bfloat16).view(torch.uint8)
        self.narrow = numbers.to(torch.float8_e4m3fn)
        self.table = torch.randperm(2 * self.count, generator=draw)[: self.count]
        self.numbers = self.table.tolist()
        self.cache = [torch.ones((HEADS, tokens, WIDTH), dtype=torch.bfloat16) for _ in range(2)]
        self.query = torch.randn((HEADS, 1, WIDTH), generator=draw).to(torch.bfloat16)
        self.parts = [part.of(self.pages, torch.bfloat16) for part in self.copies.parts]
        codec = Planes()
        self._codec = codec
        self.packed = [codec.encode(self.pages[number].numpy().data, width=2) for number in self.numbers]
        self._room = np.empty(self.copies.page_bytes, dtype=np.uint8)

    def gather(self) -> None:
        """Pages into the engine's contiguous cache."""
        self.copies.gather(self.pages, self.numbers, self.cache)

    def expand(self) -> None:
        """fp8 pages into the engine's contiguous cache of bf16. (A scale would come on top.)"""
        half = self.narrow.shape[1] // 2
        for part, target in enumerate(self.cache):
            chosen = self.narrow[:, part * half : (part + 1) * half].index_select(0, self.table)
            pages = chosen.view(self.count, HEADS, PAGE_TOKENS, WIDTH)
            target.view(HEADS, self.count, PAGE_TOKENS, WIDTH).copy_(pages.transpose(0, 1))

    def unpack(self) -> None:
        """Planes of numbers, page by page; what got no smaller is copied."""
        for packed, number in zip(self.packed, self.numbers, strict=True):
            if packed is None:
                np.copyto(self._room, self.pages[number].numpy())
            else:
                self._codec.decode(packed, self._room.data)
        self.gather()

    def attend(self) -> torch.Tensor:
        """One token's attention over the contiguous cache."""
        return _attention(self.query, self.cache[0], self.cache[1])

    def attend_paged(self) -> torch.Tensor:
        """The same over the pages where they lie, nothing copied: page by page, one softmax over all."""
        keys, values = self.parts
        query = self.query / math.sqrt(WIDTH)
        scores = [torch.bmm(query, keys[page].transpose(1, 2)) for page in self.numbers]
        weights = torch.cat(scores, dim=-1).softmax(dim=-1, dtype=torch.float32).to(torch.bfloat16)
        out = torch.zeros_like(query)
        for at, page in enumerate(self.numbers):
            out.baddbmm_(weights[:, :, at * PAGE_TOKENS : (at + 1) * PAGE_TOKENS], values[page])
        return out

    def attend_through_index(self) -> torch.Tensor:
        """The same by an indexed copy of the pages at each step."""
        keys, values = (
            part.index_select(0, self.table).transpose(0, 1).reshape(HEADS, -1, WIDTH) for part in self.parts
        )
        return _attention(self.query, keys, values)


def _attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """As models call it, with a batch of one: torch has fast ways for that shape alone."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query[None], keys[None], values[None])[0]


def measure(*, rounds: int, lengths: Sequence[int] = LENGTHS) -> list[LayoutRow]:
    """Every layout at every length."""
    rows = []
    for tokens in lengths:
        context = _Context(tokens)
        context.gather()
        calls: dict[str, Callable[[], object]] = {
            "gather": context.gather,
            "expand": context.expand,
            "unpack": context.unpack,
            "attend": context.attend,
            "paged": context.attend_paged,
            "indexed": context.attend_through_index,
        }
        samples = interleave(
            [Scenario(name, lambda _, run=run: _discard(run())) for name, run in calls.items()],  # type: ignore[misc]
            rounds=rounds,
        )
        took = {name: 1e6 * one.p50_s for name, one in samples.items()}
        rows += [
            LayoutRow("contiguous", tokens, took["gather"], took["attend"]),
            LayoutRow("paged, page by page", tokens, 0.0, took["paged"]),
            LayoutRow("paged, indexed at each step", tokens, 0.0, took["indexed"]),
            LayoutRow("compressed, fp8", tokens, took["expand"], took["attend"]),
            LayoutRow("compressed, planes + zstd", tokens, took["unpack"], took["attend"]),
        ]
    return rows


def costs_of(rows: Sequence[LayoutRow]) -> dict[Layout, list[LayoutCost]]:
    """What `benchmarks.layout_choice.choose_layout` is fed with: the best form of each layout."""
    best: dict[Layout, dict[int, LayoutCost]] = {layout: {} for layout in Layout}
    for row in rows:
        layout = Layout(row.layout.partition(",")[0])
        cost = LayoutCost(row.tokens, row.bring_us / 1e6, row.read_us / 1e6)
        known = best[layout].get(row.tokens)
        if known is None or cost.bring_s + cost.read_s < known.bring_s + known.read_s:
            best[layout][row.tokens] = cost
    return {layout: [costs[tokens] for tokens in sorted(costs)] for layout, costs in best.items()}


def lines(rows: Sequence[LayoutRow]) -> list[str]:
    """A table, and what is chosen by it."""
    measured = costs_of(rows)
    told = [
        f"Layouts, one layer of {HEADS} heads × {WIDTH}: *bring* is paid once a request, *read* is one token's attention over",
        "the whole context, once a step. fp8 rounds, and is here for comparison only.",
        "",
        "| layout | tokens | bring, µs | read, µs |",
        "|---|---:|---:|---:|",
        *(f"| {one.layout} | {one.tokens:,} | {one.bring_us:.0f} | {one.read_us:.0f} |" for one in rows),
        "",
        "Chosen by `benchmarks/layout_choice.py` among those that are exact, by steps over the context:",
        "",
        "| tokens | " + " | ".join(f"{steps} steps" if steps > 1 else "1 step" for steps in STEPS) + " |",
        "|---:|" + "---|" * len(STEPS),
    ]
    for tokens in sorted({one.tokens for one in rows}):
        chosen = [choose_layout(tokens, steps=steps, measured=measured).value for steps in STEPS]
        told.append(f"| {tokens:,} | " + " | ".join(chosen) + " |")
    return told


def _discard(_: object) -> None:
    return None
