"""`stratakv members`: who is in the fleet, how far each has followed the log, and whom to take off the list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kv_types.errors import ConfigError
from kv_wire.admin_conversions import ID_BYTES
from kv_wire.gen import admin_pb2
from stratakv.admin import (
    UNCONFIRMED,
    EndpointOption,
    JsonOption,
    RuntimeDirOption,
    Sidecar,
    member_plain,
    member_table,
    sidecar_of,
)
from stratakv.commands import AdminCommand
from stratakv.presentation import Paper, print_json, say, what_is_done_stands

_VERB = "members"
_READ_S = 10.0
_FORGET_S = 150.0
"""Whom no fence has given up is watched for the waiting time of the longest lease first."""
_RENEWS, _UNKNOWN = "renews", "unknown"
_WHY = {
    _RENEWS: "it renews, so that it lives; end its processes first",
    _UNKNOWN: "no member of the fleet has this id; see `stratakv members`",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def members(
    forget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Take off a member none of whose processes is left; may be repeated."
        ),
    ] = None,
    forget_gone: Annotated[
        bool, typer.Option("--forget-gone", help="Take off all that were given up for gone.")
    ] = False,
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Show the fleet. Forgetting a member promises that none of its processes is left: drained waits for it until then.

    Exits 3 where one that was named stayed.
    """
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        ids = list(dict.fromkeys(_member_id(text) for text in forget or ()))
        if ids or forget_gone:
            _forget(sidecar, ids, all_gone=forget_gone, as_json=as_json)
            return
        parts = _fleet(sidecar)
    if as_json:
        print_json(_plain(parts))
    else:
        _print(parts)


def _forget(sidecar: Sidecar, ids: list[bytes], *, all_gone: bool, as_json: bool) -> None:
    listed = {member.id for part in _fleet(sidecar) for member in part.members}
    request = admin_pb2.ForgetMembersRequest(ids=ids, all_gone=all_gone)
    answer = sidecar.admin.forget_members(request, timeout=_FORGET_S)
    stayed = [member for member in ids if member not in answer.forgotten]
    forgotten = [member.hex() for member in answer.forgotten]
    reasons = {member.hex(): _RENEWS if member in listed else _UNKNOWN for member in stayed}
    with what_is_done_stands(_VERB):
        if as_json:
            print_json({"forgotten": forgotten, "reasons": reasons, "stayed": list(reasons)})
        else:
            _print_forgotten(forgotten, reasons)
    if stayed:
        raise typer.Exit(UNCONFIRMED)


def _print_forgotten(forgotten: Sequence[str], stayed: Mapping[str, str]) -> None:
    for member in forgotten:
        typer.echo(f"forgot {member}")
    for member, why in stayed.items():
        say(_VERB, f"{member} was not forgotten: {_WHY[why]}")
    if not forgotten and not stayed:
        typer.echo("nobody was given up for gone")


def _fleet(sidecar: Sidecar) -> list[admin_pb2.MembersResponse]:
    return list(sidecar.admin.members(admin_pb2.MembersRequest(), timeout=_READ_S))


def _plain(parts: list[admin_pb2.MembersResponse]) -> dict[str, Any]:
    """The fleet as JSON types; docs/invalidation.md describes every key."""
    head = parts[0]
    return {
        "confirmed": head.confirmed,
        "fleet": head.fleet,
        "members": [member_plain(member) for part in parts for member in part.members],
        "replicas": head.replicas,
        "settled": head.settled,
        "sizes": dict(sorted(head.sizes.items())),
        "tip": {"incarnation": head.tip.incarnation.hex(), "revision": head.tip.revision},
    }


def _print(parts: list[admin_pb2.MembersResponse]) -> None:
    head = parts[0]
    console = Paper()
    console.print(
        f"fleet {head.fleet!r}, log {head.tip.incarnation.hex()} at revision {head.tip.revision}, "
        f"{head.replicas} configured replicas",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    if not head.confirmed:
        console.print("replication is not confirmed: nothing is served, no fence is reached", style="red")
    if not head.settled:
        console.print("the log's incarnation is young: fences wait until it has settled", style="yellow")
    found = [member for part in parts for member in part.members]
    console.show(member_table(f"{len(found)} members", found))


def _member_id(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != ID_BYTES or len(text) != 2 * ID_BYTES:
        raise ConfigError(
            f"--forget takes {2 * ID_BYTES} hexadecimal digits, all of a member's id; got {text!r}"
        )
    return value
