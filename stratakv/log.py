"""`stratakv log`: shows the records of the invalidation log, and goes on as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import grpc
import typer
from rich.text import Text

from kv_types.clock import show_time
from kv_types.errors import SidecarUnreachableError
from kv_types.events import Selected
from kv_types.ids import Stamp
from kv_types.limits import LOG_FOLLOW_S_MAX, LOG_REVISION_MAX
from kv_wire.admin_conversions import record_from_wire
from kv_wire.gen import admin_pb2
from kv_wire.status import from_rpc_error
from stratakv.admin import EndpointOption, RuntimeDirOption, Sidecar, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.presentation import Paper, plain, say
from stratakv.selection import selector_plain

_VERB = "log"
_READ_S = 60.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def log(
    after: Annotated[int, typer.Option(min=0, max=LOG_REVISION_MAX, help="Begin behind this revision.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as records come, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Show what was invalidated: the kept records of the log, oldest first, with who asked for each and why."""
    console = Paper()
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        try:
            for message in _records(sidecar, after, follow=follow):
                if as_json:
                    typer.echo(json.dumps(record_plain(message), sort_keys=True))
                else:
                    console.print(_line(message), soft_wrap=True)
        except KeyboardInterrupt:
            if not follow:
                raise


def record_plain(message: admin_pb2.LogRecord) -> dict[str, Any]:
    """One record as JSON types; docs/invalidation.md describes every key. Raises ProtocolError."""
    stamp, event = record_from_wire(message)
    told: dict[str, Any] = {
        "appended_wall_ms": message.appended_wall_ms,
        "author": message.author,
        "incarnation": stamp.incarnation.hex(),
        "reason": message.reason,
        "revision": stamp.revision,
    }
    if isinstance(event, Selected):
        return {**told, "kind": "invalidation", "selector": selector_plain(event.selector)}
    return {**told, "kind": "weights", "model": event.model, "version": event.version}


def _records(sidecar: Sidecar, after: int, *, follow: bool) -> Iterator[admin_pb2.LogRecord]:
    """Yield records; a call that followed for as long as one may, or whose sidecar went away, is made again."""
    if follow:
        sidecar.status()  # nobody is waited for who was never there
    position: Stamp | None = None
    while True:
        request = admin_pb2.ReadLogRequest(
            after_revision=after if position is None else position.revision,
            after_incarnation=b"" if position is None else position.incarnation,
            follow=follow,
        )
        try:
            for message in sidecar.admin.read_log(
                request, timeout=LOG_FOLLOW_S_MAX + _READ_S if follow else _READ_S
            ):
                position, _ = record_from_wire(message)
                yield message
        except grpc.RpcError as error:
            if not follow or not _is_away(error):
                raise
            say(_VERB, f"{from_rpc_error(error)}; waiting for the sidecar")
            grpc.channel_ready_future(sidecar.channel).result()
        else:
            if not follow:
                return


def _is_away(error: grpc.RpcError) -> bool:
    return isinstance(from_rpc_error(error), SidecarUnreachableError)


def _line(message: admin_pb2.LogRecord) -> Text:
    stamp, event = record_from_wire(message)
    text = Text(f"{stamp.revision:>8}  {show_time(message.appended_wall_ms)}  ")
    if isinstance(event, Selected):
        text.append("invalidated ", style="bold").append(plain(event.selector.describe()))
    else:
        text.append("weights ", style="bold").append(plain(f"of {event.model} are now {event.version}"))
    if message.author:
        text.append("  by ", style="dim").append(plain(message.author))
    if message.reason:
        text.append("  because: ", style="dim").append(plain(message.reason))
    return text
