"""`python -m benchmarks.load_or_recompute`: what weighing loading against computing costs, over bandwidths, in simulation."""

from __future__ import annotations

import itertools
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.tier_simulation import Costs, Scenario, constant, simulate, steps

_CHANGING = ((1e10, 1e7), (1e7, 1e10), (1e7, 1e9, 1e7), (1e9, 1e7, 1e9))


def scenarios(
    *, latencies_s: tuple[float, ...], page_bytes: tuple[int, ...], tokens_per_s: tuple[float, ...]
) -> list[Scenario]:
    """Every combination, of bandwidths from 10 MB/s to 10 GB/s that stay and that change."""
    bandwidths = [(rate,) for rate in (1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10)] + list(_CHANGING)
    return [
        Scenario(
            name=" then ".join(f"{rate / 1e6:,.0f}" for rate in rates) + f" MB/s, {latency_s * 1000:g} ms",
            bandwidth=constant(rates[0]) if len(rates) == 1 else steps(*rates),
            latency_s=latency_s, page_bytes=size, tokens_per_s=speed,
        )
        for rates, latency_s, size, speed in itertools.product(
            bandwidths, latencies_s, page_bytes, tokens_per_s
        )
    ]  # fmt: skip


def measure(
    seed: Annotated[int, typer.Option(help="Another one draws other prompts and other noise.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
) -> None:
    """Seconds of a thousand requests each: with our choice, when all is loaded, when nothing is; and our regret."""
    chosen = scenarios(
        latencies_s=(0.0002, 0.002, 0.01), page_bytes=(65_536, 1 << 20, 4 << 20), tokens_per_s=(1e3, 1e4, 5e4)
    )
    found = [(scenario, simulate(scenario, seed=seed)) for scenario in chosen]
    if as_json:
        typer.echo(json.dumps([_plain(scenario, costs) for scenario, costs in found], indent=1))
        return
    table = Table(title="load or recompute: seconds of a thousand requests")
    for name in ("tier", "page", "tokens/s", "ours", "always load", "never load", "regret"):
        table.add_column(name, justify="left" if name == "tier" else "right")
    for scenario, costs in found:
        table.add_row(
            scenario.name, f"{scenario.page_bytes >> 10:,} KiB", f"{scenario.tokens_per_s:,.0f}", f"{costs.chosen:,.1f}",
            f"{costs.always:,.1f}", f"{costs.never:,.1f}", f"{costs.regret:+.1%}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    worst = max(found, key=lambda one: one[1].regret)
    console.print(f"largest regret: {worst[1].regret:+.1%} ({worst[0].name})")


def _plain(scenario: Scenario, costs: Costs) -> dict[str, object]:
    return {
        "tier": scenario.name, "page_bytes": scenario.page_bytes, "tokens_per_s": scenario.tokens_per_s,
        "chosen_s": costs.chosen, "always_s": costs.always, "never_s": costs.never, "regret": costs.regret,
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(measure)
