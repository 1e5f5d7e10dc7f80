"""What the administrative verbs share: options, the connection to a sidecar, and what its failures mean as exit codes."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import grpc
import typer
from rich.table import Table

from inference_worker.endpoint import parse_endpoint
from kv_types.errors import ConfigError, InvalidArgumentError, SidecarUnreachableError, StrataError
from kv_types.ids import NamespaceId
from kv_types.namespace import Namespace
from kv_wire.admin_calls import AdminCalls
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import admin_pb2, cache_pb2
from kv_wire.status import ERROR_KEY, from_rpc_error
from sidecar.units import format_duration, parse_duration
from stratakv.presentation import plain, say

UNREACHABLE = 1
USAGE = 2
UNCONFIRMED = 3
"""Exit codes beside 0: nothing was appended; the command was wrong; the promise is not, or not known to be, reached."""

_CALL_S = 10.0

EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        help="Runtime directory or unix:<directory> (default: $STRATAKV_ENDPOINT, else $STRATAKV_RUNTIME_DIR).",
    ),
]
RuntimeDirOption = Annotated[
    Path | None, typer.Option("--runtime-dir", help="The sidecar's runtime directory.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Recorded in the log, with who and when.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class FleetNamespaces:
    """The fleet's namespaces by id, why some are missing (empty: none is), and of which incarnation of the log they are."""

    by_id: dict[NamespaceId, Namespace]
    incomplete: str = ""
    incarnation: bytes = b""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The calls of one sidecar, and where it is."""

    address: str
    channel: grpc.Channel
    admin: AdminCalls
    cache: CacheCalls

    def namespaces(self) -> FleetNamespaces:
        """Ask for the fleet's namespaces. Raises grpc.RpcError, ProtocolError."""
        found: dict[NamespaceId, Namespace] = {}
        incomplete, incarnation = "", b""
        for part in self.admin.namespaces(admin_pb2.NamespacesRequest(), timeout=_CALL_S):
            incomplete, incarnation = part.incomplete, part.position.incarnation
            for canonical in part.canonical:
                namespace = Namespace.from_canonical(canonical)
                found[namespace.id] = namespace
        return FleetNamespaces(found, incomplete, incarnation)

    def status(self) -> cache_pb2.StatusResponse:
        """What the sidecar says of itself. Raises grpc.RpcError."""
        answer: cache_pb2.StatusResponse = self.cache.status(cache_pb2.StatusRequest(), timeout=_CALL_S)
        return answer


@contextlib.contextmanager
def sidecar_of(verb: str, endpoint: str | None, runtime_dir: Path | None) -> Iterator[Sidecar]:
    """Open a sidecar for one verb. Failures of its body that are ours, or of calls, end the command with their exit code.

    A body whose failed call may have changed something says so itself, before this sees it.
    """
    try:
        address = address_of(endpoint, runtime_dir)
        with open_channel(address) as channel:
            yield Sidecar(address, channel, AdminCalls(channel), CacheCalls(channel))
    except grpc.RpcError as error:
        fail(verb, _named(from_rpc_error(error), address))
    except StrataError as error:
        fail(verb, error)
    except UnicodeEncodeError as error:  # from building a request: what is printed is escaped
        fail(verb, ConfigError(f"{error.object[:80]!r} is no UTF-8 text, and this must be some"))


def address_of(endpoint: str | None, runtime_dir: Path | None) -> str:
    """What gRPC dials for --endpoint, --runtime-dir or neither. Raises ConfigError."""
    if endpoint is not None and runtime_dir is not None:
        raise ConfigError("give --endpoint or --runtime-dir, not both")
    return parse_endpoint(endpoint if runtime_dir is None else runtime_dir, os.environ).grpc_target


def is_refusal(error: grpc.RpcError) -> bool:
    """Whether the sidecar itself refused a call before it changed anything; else nobody knows what became of it."""
    call: object = error
    trailing = call.trailing_metadata() if isinstance(call, grpc.Call) else None
    return any(key == ERROR_KEY for key, _ in trailing or ())


def exit_code(error: StrataError) -> int:
    """The exit code of an error that changed nothing."""
    return USAGE if isinstance(error, InvalidArgumentError | ConfigError) else UNREACHABLE


def fail(verb: str, error: StrataError) -> NoReturn:
    """Say what was wrong, and end."""
    say(verb, str(error))
    raise typer.Exit(exit_code(error))


def author() -> str:
    """Who gives this command: user@host, as the operating system has it."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id that has no name here
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def local_now() -> datetime:
    """The time, with this machine's zone."""
    return datetime.now().astimezone()


def duration(text: str, *, option: str, least_s: float, most_s: float) -> float:
    """Seconds of "30s" or "2m". Raises ConfigError."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
    if not least_s <= seconds <= most_s:
        raise ConfigError(f"{option} is {format_duration(least_s)} to {format_duration(most_s)}; got {text}")
    return seconds


def member_plain(member: admin_pb2.MemberStatus) -> dict[str, Any]:
    """One member as JSON types; its note as what it holds, or as text where it holds no JSON object."""
    return {
        "id": member.id.hex(),
        "is_self": member.is_self,
        "gone": member.gone,
        "renewal": member.renewal,
        "acknowledged": member.acknowledged,
        "drained": member.drained,
        "note": _note(member.note),
    }


def member_table(title: str, members: list[admin_pb2.MemberStatus]) -> Table:
    """Members as a table for a terminal; ids stay whole, for they are what other commands take."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("member", no_wrap=True)
    for heading in ("process", "acknowledged", "drained", "renewal", "held back by"):
        table.add_column(heading, overflow="fold")
    for member in members:
        note = _note(member.note)
        told: Mapping[str, Any] = note if isinstance(note, dict) else {}
        held = told.get("held_back_by")
        table.add_row(
            member.id.hex(),
            plain(_process(told, member)),
            str(member.acknowledged),
            str(member.drained),
            str(member.renewal),
            plain(", ".join(map(str, held)) if isinstance(held, list) else ""),
            style="red" if member.gone else None,
        )
    return table


def _process(told: Mapping[str, Any], member: admin_pb2.MemberStatus) -> str:
    where = f"{told.get('host') or 'unknown host'} pid {told.get('pid') or '?'}"
    if member.is_self:
        return f"{where}, this sidecar"
    return f"{where}, gone" if member.gone else where


def is_interactive() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty()


def _note(text: str) -> Any:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return told if isinstance(told, dict) else text


def _named(error: StrataError, address: str) -> StrataError:
    if not isinstance(error, SidecarUnreachableError):
        return error
    return SidecarUnreachableError(
        f"no sidecar answers at {address} ({error}); start one with `stratakv serve`, or name another by --runtime-dir"
    )
