"""`stratakv bench invalidate`: how soon an invalidation has reached every tier of a fleet, and what a storm of them costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import local
from benchmarks.fence_rounds import run_rounds
from benchmarks.fleet import BenchFleet, bench_fleet
from benchmarks.showing import telling
from benchmarks.storm import run_storm
from cache_l3.address import parse_addresses
from invalidation.redis.log import RedisLog, RedisLogSettings
from kv_types.clock import BoottimeClock

NODES = 3
WORKERS_PER_NODE = 4
ROUNDS = 150
STORM_S = 30.0

BUDGETS: tuple[tuple[str, str, str, float | None], ...] = (
    ("invalidate_l1_ms_p99", "view about to be published → a worker's look-up no longer gets a page of its L1", "ms", 5.0),
    ("invalidate_l2_ms_p99", "append → first look-up on a node that no longer gets a page of L2", "ms", 20.0),
    ("invalidate_all_ms_p99", "append → last look-up on any node that still got a page", "ms", 100.0),
    ("fence_ms_p99", "a whole `invalidate --wait`, over gRPC", "ms", None),
    ("storm_match_slowdown", "1,000 records a second: look-ups that a worker loses, a share of those without", "", 0.10),
    ("storm_sidecar_cores", "1,000 records a second: what one sidecar takes of one processor", "", None),
)  # fmt: skip
"""Key, what it is, unit, and what it may be; None: told, not judged."""

app = typer.Typer()


def run(*, rounds: int, storm_s: float, tell: Callable[[str], None]) -> dict[str, float]:
    """Measure everything on a fleet of its own; a few minutes. Figures by key."""
    with bench_fleet(nodes=NODES, workers_per_node=WORKERS_PER_NODE) as fleet:
        return asyncio.run(_run(fleet, rounds=rounds, storm_s=storm_s, tell=tell))


async def _run(
    fleet: BenchFleet, *, rounds: int, storm_s: float, tell: Callable[[str], None]
) -> dict[str, float]:
    settings = RedisLogSettings(addresses=parse_addresses(fleet.server.url), fleet="default")
    log = RedisLog(settings, clock=BoottimeClock())
    try:
        latencies = await run_rounds(
            fleet, log, rounds=rounds, tell=lambda number: tell(f"invalidation {number + 1} of {2 * rounds}")
        )
        return {
            **latencies,
            **await run_storm(fleet, log, storm_s=storm_s, tell=lambda at: tell(f"storm: {at}")),
        }
    finally:
        await log.close()


def table(figures: Mapping[str, float]) -> Table:
    """The figures that have a budget or a meaning of their own, for people."""
    drawn = Table(title=f"{NODES} sidecars, {NODES * WORKERS_PER_NODE} workers, one Redis, on this machine")
    for heading in ("what", "p50", "measured", "budget", ""):
        drawn.add_column(heading, justify="left" if heading == "what" else "right")
    for key, what, unit, budget in BUDGETS:
        value, median = (
            figures[key],
            figures.get(key.replace("_p99", "_p50")) if key.endswith("_p99") else None,
        )
        drawn.add_row(
            f"{what} ({key})",
            "" if median is None else f"{median:.2f} {unit}",
            _shown(value, unit),
            "" if budget is None else _shown(budget, unit),
            "" if budget is None else "met" if value <= budget else "missed",
        )
    return drawn


def _shown(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if unit else f"{value:.1%}"


def measure(console: Console, *, rounds: int = ROUNDS, storm_s: float = STORM_S) -> dict[str, float]:
    """`run` with a line that says how far it is."""
    with telling(console, "starting a fleet") as tell:
        return run(rounds=rounds, storm_s=storm_s, tell=tell)


@app.command()
def invalidate(
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write all figures to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=5, max=10_000, help="Invalidations of each kind.")] = ROUNDS,
    storm: Annotated[float, typer.Option(min=4.0, max=3600.0, help="Seconds of storm.")] = STORM_S,
) -> None:
    """A fleet: how long each tier serves what was invalidated, what a fence takes, what a storm costs."""
    figures = measure(Console(stderr=True), rounds=rounds, storm_s=storm)
    out = Console()
    out.print(table(figures))
    for key in sorted(figures):
        out.print(f"{key} {figures[key]:.4g}", highlight=False)
    if json_path is not None:
        json_path.write_text(json.dumps({**figures, "machine": local.machine()}, indent=2) + "\n")
        out.print(f"written: {json_path}")
