"""`stratakv pins`: what is pinned on a node, how much of it is there, and for how long."""

from __future__ import annotations

import typer

from kv_wire.gen import admin_pb2
from sidecar.units import format_size, rough_duration
from stratakv.admin import EndpointOption, JsonOption, RuntimeDirOption, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.pin import pin_plain
from stratakv.presentation import Paper, plain, print_json, table_of

_VERB = "pins"
_CALL_S = 30.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def pins(
    as_json: JsonOption = False, endpoint: EndpointOption = None, runtime_dir: RuntimeDirOption = None
) -> None:
    """Show this node's pins: pages named and held, their bytes, the time left, and how much of the quota is taken."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        answer = sidecar.admin.pins(admin_pb2.PinsRequest(), timeout=_CALL_S)
    if as_json:
        print_json(
            {
                "beyond_quota": answer.beyond_quota,
                "charged_bytes": answer.charged_bytes,
                "pins": [pin_plain(one) for one in answer.pins],
                "quota_bytes": answer.quota_bytes,
            }
        )
        return
    title = (
        f"{len(answer.pins)} pins, {format_size(answer.charged_bytes)} of a quota of "
        f"{format_size(answer.quota_bytes)} taken"
    )
    table = table_of(title, "name", "namespaces", "pages", "held", "bytes", "ends in")
    for one in answer.pins:
        table.add_row(
            plain(one.name), str(one.chains), f"{one.pages:,}", f"{one.held_pages:,}", format_size(one.held_bytes),
            rough_duration(one.remaining_ms / 1000),
        )  # fmt: skip
    paper = Paper()
    paper.show(table)
    if answer.beyond_quota:
        paper.print(
            f"{answer.beyond_quota:,} pages came under a pinned key and were not held, for want of quota",
            style="yellow",
        )
