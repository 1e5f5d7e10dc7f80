"""`stratakv replicas`: how many replicas of the log's Redis must answer before anything counts as confirmed."""

from __future__ import annotations

from typing import Annotated

import typer

from kv_types.limits import REPLICAS_MAX
from kv_wire.gen import admin_pb2
from stratakv.admin import EndpointOption, JsonOption, RuntimeDirOption, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.presentation import print_json, what_is_done_stands

_VERB = "replicas set"
_CALL_S = 10.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _replicas() -> None:
    """Replicas of the invalidation log."""


@app.command("set", cls=AdminCommand)
def set_replicas(
    replicas: Annotated[
        int, typer.Argument(metavar="K", min=0, max=REPLICAS_MAX, help="Replicas that must answer.")
    ],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Even if fewer are in sync now, so that hits and fences stop until they are."
        ),
    ] = False,
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Set the number of configured replicas. Lower it when one is lost for good, before that hits and fences stop."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        request = admin_pb2.SetReplicasRequest(replicas=replicas, force=force)
        sidecar.admin.set_replicas(request, timeout=_CALL_S)
    with what_is_done_stands(_VERB):
        if as_json:
            print_json({"replicas": replicas})
        else:
            typer.echo(f"renewals and fences need {replicas} replicas from now on")
