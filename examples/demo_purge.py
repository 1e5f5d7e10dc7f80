"""What the demo shows of its invalidation, and the promises that it holds it to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from demo_show import LOGITS_TOLERANCE, MIB
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Purged = Mapping[str, Any]

_STEPS = {
    "before": "before",
    "after": "after the command",
    "again": "and once more",
}


def show(console: Console, purged: Purged) -> None:
    """The command, what it said, and the same prompt before and after it."""
    console.print("One process keeps running while its text is invalidated, with everything computed on it:")
    console.print("  $ stratakv invalidate --prefix-tokens prefix.json --wait --reason …", style="bold")
    for tier in purged["counted"]["told"].get("tiers", ()):
        console.print(
            f"  it selects {tier['pages']:,} pages, {tier['bytes'] / MIB:.1f} MiB, in {tier['tier']} of this node"
        )
    told = purged["command"]["told"]
    if told.get("confirmed"):
        record = told["appended"][-1]
        console.print(
            f"  record {record['revision']} of log {record['incarnation'][:8]}…, final everywhere after "
            f"{told['waited_ms']} ms: no look-up from then on gets a page of it"
        )
    console.print(_table(purged))


def _table(purged: Purged) -> Table:
    shown = Table(
        title=f"The same prompt of {purged['tokens']:,} tokens, three times",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for heading in (
        "asked",
        "tokens reused",
        "pages from L1",
        "pages from L2",
        "pages stored",
        "first token s",
    ):
        shown.add_column(heading, justify="left" if heading == "asked" else "right")
    for step, label in _STEPS.items():
        one = purged[step]
        shown.add_row(
            label, f"{one['reused']:,}", f"{one['pages_l1']:,}", f"{one['pages_l2']:,}",
            f"{one['pages_stored']:,}", f"{one['first_token_s']:.2f}",
        )  # fmt: skip
    return shown


def broken_promises(purged: Purged) -> list[str]:
    """What should have been and was not, in words; empty when all is well."""
    before, after, again = (purged[step] for step in _STEPS)
    tokens, kept = purged["tokens"], purged["kept_tokens"]
    done, counted = purged["command"], purged["counted"]
    broken = []
    if before["reused"] < 0.9 * tokens:
        broken.append(f"before the invalidation only {before['reused']} of {tokens} tokens were reused")
    if counted["exit_code"] != 0 or sum(tier["pages"] for tier in counted["told"].get("tiers", ())) == 0:
        broken.append(f"the dry run selected nothing: {counted['said'] or counted['told']}")
    if done["exit_code"] != 0 or not done["told"].get("confirmed"):
        broken.append(f"the invalidation was not confirmed (exit code {done['exit_code']}): {done['said']}")
    if after["reused"] != kept:
        broken.append(
            f"after the invalidation {after['reused']} tokens were reused, not the {kept} that were not selected"
        )
    if after["pages_stored"] == 0 or after["off"]:
        broken.append(f"after the invalidation nothing was stored anew {after['off']}")
    if again["reused"] < 0.9 * tokens:
        broken.append(f"once stored again, only {again['reused']} of {tokens} tokens were reused")
    if purged["logits_difference"] > LOGITS_TOLERANCE or not purged["same_first_token"]:
        broken.append(f"computed and reused logits differ by {purged['logits_difference']:.3g}")
    return broken
