"""The eviction policy that learns: hits beside LRU on made-up traces, and what a decision costs.

`python -m benchmarks.policy [--pages 1000000]`. The requests are the same each time; only times differ.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.request_traces import KINDS, SECOND_NS, Request, made_up
from kv_policy._native import PrefixPolicy, replay

SHARES = (0.01, 0.02, 0.05, 0.10, 0.20, 0.50)
REQUESTS = 4_000
CHAIN_BLOCKS = 20
NEW_BLOCKS = 4

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
"""Times in ns, offsets and blocks, as `replay` takes them."""


def arrays(requests: list[Request]) -> Arrays:
    """Requests as `replay` takes them."""
    offsets = np.zeros(len(requests) + 1, np.uint64)
    np.cumsum([len(blocks) for _, blocks in requests], out=offsets[1:])
    flat = np.array([block for _, blocks in requests for block in blocks], np.uint64)
    return np.array([now for now, _ in requests], np.int64), offsets, flat


def ratios(kind: str, seed: int, share: float) -> tuple[float, float]:
    """(prefix-hit ratio of the policy that learns, of LRU) in a cache of a share of the distinct blocks."""
    trace = arrays(made_up(kind, seed, REQUESTS))
    capacity = max(1, int(len(np.unique(trace[2])) * share))
    learned, lru = (replay(*trace, capacity_blocks=capacity, policy=policy) for policy in ("learned", "lru"))
    return learned[1] / learned[0], lru[1] / lru[0]


def large(pages: int, turnovers: float) -> Arrays:
    """Chains that grow by turns, enough to fill `pages` and to evict them all some times."""
    draw = np.random.default_rng(7)
    sessions = pages // CHAIN_BLOCKS
    requests = int(pages / NEW_BLOCKS * (1 + turnovers))
    session = draw.integers(0, sessions * 2, requests)
    turn = np.zeros(requests, np.int64)
    order = np.argsort(session, kind="stable")
    first = np.r_[True, np.diff(session[order]) != 0]
    starts = np.flatnonzero(first)
    turn[order] = np.arange(requests) - np.repeat(starts, np.diff(np.r_[starts, requests]))
    lengths = ((turn % (CHAIN_BLOCKS // NEW_BLOCKS)) + 1) * NEW_BLOCKS
    life = turn // (CHAIN_BLOCKS // NEW_BLOCKS)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.uint64)
    base = (session * 1_000 + life) * CHAIN_BLOCKS
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1].astype(np.int64), lengths)
    blocks = (np.repeat(base, lengths) + within).astype(np.uint64)
    return np.arange(requests, dtype=np.int64) * (SECOND_NS // 500), offsets, blocks


def cost(pages: int) -> dict[str, float]:
    """What the policy takes of time and memory at so many pages.

    A decision is to choose a victim and to remove it; all is that, the look-ups and the insertions, as each request brings new
    pages in a full cache. Both include what the reading of the clock takes, some tenths of a µs a request by processor time.
    """
    told: dict[str, float] = {}
    trace = large(pages, 1.5)
    for policy in ("learned", "lru"):
        for clock in ("processor", "wall"):
            requested, _, evicted, spent_ns, longest_ns, choice_ns = replay(
                *trace, capacity_blocks=pages, policy=policy, processor_time=clock == "processor"
            )
            told[f"{policy}_decision_{clock}_us_per_evicted_page"] = choice_ns / max(1, evicted) / 1e3
            told[f"{policy}_all_{clock}_us_per_evicted_page"] = spent_ns / max(1, evicted) / 1e3
            told[f"{policy}_all_{clock}_us_per_requested_page"] = spent_ns / requested / 1e3
            told[f"{policy}_longest_request_{clock}_us"] = longest_ns / 1e3
    full = PrefixPolicy(pages=pages)
    for chain in range(pages // CHAIN_BLOCKS):
        first = chain * CHAIN_BLOCKS
        full.insert(
            range(first, first + CHAIN_BLOCKS), None, range(first + 1, first + CHAIN_BLOCKS + 1), chain
        )
    told["bytes_per_page"] = full.bytes() / pages
    return told


def main(
    pages: Annotated[int, typer.Option(help="Pages of the cache whose decisions are timed.")] = 1_000_000,
    seeds: Annotated[int, typer.Option(help="Made-up traces of each kind.")] = 2,
) -> None:
    """Print both."""
    console = Console()
    table = Table("prefix hits, % (LRU)", *(f"{share:.0%}" for share in SHARES))
    for kind in KINDS:
        for seed in range(1, seeds + 1):
            cells = [ratios(kind, seed, share) for share in SHARES]
            table.add_row(f"{kind}, {seed}", *(f"{100 * ours:.1f} ({100 * lru:.1f})" for ours, lru in cells))
    console.print(table)
    for name, value in cost(pages).items():
        console.print(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    typer.run(main)
