"""`stratakv unpin`: ends pins before their time; their pages stay until something else needs the room."""

from __future__ import annotations

from typing import Annotated

import typer

from kv_wire.gen import admin_pb2
from stratakv.admin import EndpointOption, JsonOption, RuntimeDirOption, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.presentation import plain, print_json, what_is_done_stands

_VERB = "unpin"
_CALL_S = 30.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def unpin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `stratakv pins` shows it.")],
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """End a pin of this node. Its pages are not dropped: from now on they may be evicted as others are."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        sidecar.admin.unpin(admin_pb2.UnpinRequest(name=name), timeout=_CALL_S)
    with what_is_done_stands(_VERB):
        if as_json:
            print_json({"unpinned": name})
        else:
            typer.echo(f"unpinned {plain(name)}")
