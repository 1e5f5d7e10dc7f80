"""What the demo shows of a second node, which gets its pages through Redis, and the promises that it holds it to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import demo_show
from demo_processes import DemoError
from demo_show import LOGITS_TOLERANCE, Result
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Shared:
    """Pages that the first node has written to L3, what a worker of the second one got, and the second one's counters."""

    stored: int
    result: Result
    there: Mapping[str, Any]


def wait_stored(status: Callable[[], Mapping[str, Any]], *, deadline_s: float) -> int:
    """Wait until the first node has written its pages to L3; returns how many there are."""
    end = time.monotonic() + deadline_s
    while True:
        counters = status()["l3"]["stores"]
        if counters["stored"] and not counters["queued_pages"] and not counters["in_flight"]:
            return int(counters["stored"])
        if time.monotonic() > end:
            raise DemoError(f"pages are still on their way to L3 after {deadline_s:.0f} s: {counters}")
        time.sleep(_POLL_S)


def pages(result: Result) -> dict[str, int]:
    """Pages of the prompt by the tier that gave them."""
    return {tier: sum(row[f"pages_{tier}"] for row in result["rows"]) for tier in demo_show.TIERS}


def show(console: Console, shared: Shared) -> None:
    """The same question on another node: without the cache, and through L3."""
    result = shared.result
    console.print(
        f"Another node: a sidecar that never computed anything. The first one has written {shared.stored:,} pages to Redis; "
        "a new worker asks what the first was asked:"
    )
    shown = Table(title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("first token", "s", "tokens reused", "pages from L1", "from L2", "from L3"):
        shown.add_column(heading, justify="left" if heading == "first token" else "right")
    by_tier = pages(result)
    shown.add_row("computed", f"{demo_show.cold_s(result):.2f}", "0", "0", "0", "0")
    shown.add_row(
        "through L3",
        f"{result['warm_s']:.2f}",
        f"{demo_show.reused(result):,}",
        *(f"{by_tier[t]:,}" for t in demo_show.TIERS),
    )
    console.print(shown)
    console.print(
        f"  {demo_show.cold_s(result) / result['warm_s']:.1f} × sooner, and not one page of it was computed on this node"
    )


def broken_promises(shared: Shared) -> list[str]:
    """What should have been and was not, in words; empty when all is well."""
    result, by_tier = shared.result, pages(shared.result)
    broken = []
    if result["off"]:
        broken.append(f"on the other node reuse was off: {result['off']}")
    if demo_show.reused(result) < 0.9 * demo_show.tokens(result):
        ended = {row["ended_by"] for row in result["rows"]}
        broken.append(
            f"on the other node only {demo_show.reused(result)} of {demo_show.tokens(result)} tokens were reused "
            f"({', '.join(sorted(ended))})"
        )
    if by_tier["l1"] or by_tier["l2"] or not by_tier["l3"]:
        broken.append(
            f"the other node had nothing, so every page had to come through L3; pages came from {by_tier}"
        )
    counted = sum(int(one["l3_pages"]) for one in shared.there["namespaces"])
    if counted != by_tier["l3"]:
        broken.append(f"the other node's sidecar counts {counted} pages of L3, its worker {by_tier['l3']}")
    if result["logits_difference"] > LOGITS_TOLERANCE or not result["same_first_token"]:
        broken.append(f"through L3 the logits differ by {result['logits_difference']:.3g}")
    if result["warm_s"] >= result["cold_s"]:
        broken.append("through L3 the first token came later than without")
    return broken
