"""`stratakv status`: asks one sidecar over gRPC and shows the answer to a person or a program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kv_types.errors import SidecarUnreachableError, StrataError
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import cache_pb2
from kv_wire.status import from_rpc_error
from sidecar.units import format_size
from stratakv.admin import address_of, fail
from stratakv.commands import AdminCommand
from stratakv.l3_status import render_l3, render_speeds, where_l3
from stratakv.presentation import Paper, plain, print_json, table_of

_DEADLINE_S = 5.0
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3600, 60

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def status(
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="Runtime directory, unix:<directory> or host:port (default: $STRATAKV_ENDPOINT, else $STRATAKV_RUNTIME_DIR)."
        ),
    ] = None,
    runtime_dir: Annotated[Path | None, typer.Option(help="The sidecar's runtime directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    deadline: Annotated[
        float, typer.Option(min=0.01, max=3600.0, help="Seconds to wait for the answer.")
    ] = _DEADLINE_S,
) -> None:
    """Show what a sidecar holds, who is attached, and hits and misses by reason. Exits 1 when none answers."""
    try:
        answer = ask(address_of(endpoint, runtime_dir), deadline_s=deadline)
    except StrataError as error:
        fail("status", error)
    if as_json:
        print_json(as_plain(answer))
    else:
        paper = Paper()
        for part in render(answer).renderables:
            if isinstance(part, Table):
                paper.show(part)
            else:
                paper.print(part)


def ask(address: str, *, deadline_s: float) -> cache_pb2.StatusResponse:
    """Return a sidecar's status; raises SidecarUnreachableError naming the address, or another StrataError."""
    with open_channel(address) as channel:
        try:
            answer: cache_pb2.StatusResponse = CacheCalls(channel).status(
                cache_pb2.StatusRequest(), timeout=deadline_s
            )
        except grpc.RpcError as error:
            failure = from_rpc_error(error)
            if not isinstance(failure, SidecarUnreachableError):
                raise failure from error
            raise SidecarUnreachableError(
                f"no sidecar answers at {address}; start one with `stratakv serve`, or name another by --endpoint"
            ) from error
        return answer


def as_plain(answer: cache_pb2.StatusResponse) -> dict[str, Any]:
    """Return the answer as JSON types: numbers as numbers, ids in hexadecimal, every field present, null for never."""
    told: dict[str, Any] = MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _numbers(told, answer)
    if answer.log.confirmed_ms_ago < 0:  # counted from nothing, it is how long the machine has been up
        told["freshness_remaining_ms"] = None
    return told


def render(answer: cache_pb2.StatusResponse) -> Group:
    """Return the answer as tables for a terminal."""
    parts: list[Any] = [_headline(answer), *_log(answer), *render_l3(answer.l3), *_memory(answer)]
    if answer.namespaces:
        parts.append(_namespaces(answer))
    if answer.tenants:
        parts.append(_tenants(answer))
    parts += [_clients(answer), *render_speeds(answer.clients)]
    return Group(*parts)


def _numbers(into: Any, message: Any) -> None:
    """Undo the two conversions of protobuf's JSON that get in the way: 64-bit numbers as text, bytes as base64."""
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            is_text = field.message_type.fields_by_name["value"].cpp_type == field.CPPTYPE_STRING
            into[field.name] = {key: one if is_text else int(one) for key, one in sorted(value.items())}
        elif field.message_type is not None and field.is_repeated:
            for inner, part in zip(into[field.name], value, strict=True):
                _numbers(inner, part)
        elif field.message_type is not None:
            if message.HasField(field.name):
                _numbers(into[field.name], value)
            else:
                into[field.name] = None
        elif isinstance(value, bytes):
            into[field.name] = value.hex()
        elif isinstance(value, int) and not isinstance(value, bool) and field.enum_type is None:
            into[field.name] = value


def _headline(answer: cache_pb2.StatusResponse) -> Text:
    text = Text(f"stratakv {answer.version}", style="bold")
    text.append(
        f"  pid {answer.pid}, up {_since(answer.uptime_s)}, life {answer.life.hex()[:12]}  ", style="default"
    )
    fresh = answer.freshness_remaining_ms > 0
    if answer.serving and fresh:
        text.append("serving", style="green")
    else:
        text.append("draining" if not answer.serving else "stale: hits have stopped", style="red")
    for label, value in (
        ("attach ", answer.attach_path),
        ("grpc   ", ", ".join(answer.grpc_addresses)),
        ("log    ", _where(answer.log)),
        ("L3     ", where_l3(answer.l3)),
        ("metrics", f"http://{answer.metrics_address}/metrics" if answer.metrics_address else "off"),
    ):
        text.append(f"\n{label} ", style="dim")
        text.append(plain(value).plain, style="dim")
    return text


def _log(answer: cache_pb2.StatusResponse) -> list[Table | Text]:
    log = answer.log
    table = table_of(
        "invalidation log, in revisions", "phase", "applied", "tip", "acknowledged", "drained", "weights"
    )
    weights = ", ".join(f"{model} {version}" for model, version in sorted(answer.weights_versions.items()))
    table.add_row(
        plain(log.phase if log.settled else f"{log.phase}, not settled"),
        f"{log.applied:,}",
        f"{log.tip:,}",
        f"{log.acknowledged:,}",
        f"{log.drained:,}",
        plain(weights),
    )
    ago = "never" if log.confirmed_ms_ago < 0 else f"{log.confirmed_ms_ago / 1000:.1f} s ago"
    troubles = [f"{log.reason} (confirmed {ago})"] if log.reason else []
    troubles += [f"held back by {held}" for held in log.held_by]
    troubles += [f"draining held back by {held}" for held in log.draining_held_by]
    troubles += [f"{log.server} would not be joined again: {error}" for error in log.server_errors]
    warnings = [f"{log.server}: {warning}" for warning in log.server_warnings]
    return [
        table,
        *(Text(plain(trouble).plain, style="red") for trouble in troubles),
        *(Text(plain(warning).plain, style="yellow") for warning in warnings),
    ]


def _where(log: cache_pb2.LogStatus) -> str:
    """Where the log is, in a line."""
    place = log.address or "in this sidecar's memory"
    why = f": {log.why_local}" if log.why_local else ""
    used = f", on {log.server} now" if log.server not in ("", log.address) else ""
    return f"{place} ({log.kind}{why}){used}, fleet {log.fleet}"


def _memory(answer: cache_pb2.StatusResponse) -> list[Table | Text]:
    arena, memory = answer.arena, answer.memory
    headings = (
        "arena",
        "resident",
        "leased",
        "reserved",
        "pages",
        "pinned",
        "evicted",
        "came back",
        "eviction policy",
        "expired",
        "huge pages",
        "NUMA",
    )
    table = table_of("memory", *headings)
    table.add_row(
        format_size(answer.arena_bytes),
        format_size(arena.get("resident_bytes", 0)),
        format_size(arena.get("leased_bytes", 0)),
        format_size(arena.get("reserved_bytes", 0)),
        f"{arena.get('entries_visible', 0):,}",
        _pinned(answer.pins),
        f"{arena.get('evictions_capacity', 0) + arena.get('evictions_segment', 0):,}",
        f"{arena.get('policy_returns', 0):,}",
        _policy(arena),
        f"{arena.get('evictions_ttl', 0):,}",
        _huge_pages(memory),
        plain(memory.placement),
    )
    notes = [note for note in (memory.huge_pages_note, memory.placement_note) if note]
    # What was asked for and not got is worth a colour; that the machine offers no transparent ones is not.
    style = "dim" if memory.huge_pages_asked == "transparent" and not memory.placement_note else "yellow"
    return [table, *(Text(plain(note).plain, style=style) for note in notes)]


def _policy(arena: Mapping[str, int]) -> str:
    if not arena.get("policy_learned"):
        return "lru"
    return f"learned, {arena.get('policy_requests', 0):,} look-ups"


def _huge_pages(memory: cache_pb2.MemoryStatus) -> str:
    if not memory.mapped_bytes or memory.huge_pages in ("", "none"):
        return memory.huge_pages
    share = 100 * memory.huge_page_bytes // memory.mapped_bytes
    return f"{memory.huge_pages}, {share} %"


def _namespaces(answer: cache_pb2.StatusResponse) -> Table:
    table = table_of(
        "namespaces, in pages", "model", "id", "page", "resident", "requested", "L1", "L2", "L3", "missed"
    )
    for space in answer.namespaces:
        missed = ", ".join(f"{reason} {pages:,}" for reason, pages in sorted(space.missed_pages.items()))
        table.add_row(
            plain(space.model),
            space.namespace_id.hex()[:12],
            f"{space.page_tokens} tokens, {format_size(space.page_bytes)}",
            f"{space.resident_pages:,} ({format_size(space.resident_bytes)})",
            f"{space.requested_pages:,}",
            f"{space.l1_pages:,}",
            f"{space.l2_pages:,}",
            f"{space.l3_pages:,}",
            missed or "0",
        )
    return table


def _tenants(answer: cache_pb2.StatusResponse) -> Table:
    table = table_of("tenants", "tenant", "share", "used", "evicted for itself", "for others", "of others")
    for one in answer.tenants:
        table.add_row(
            plain(one.tenant) if one.tenant else "everybody else",
            format_size(one.share_bytes) if one.tenant else "what is left",
            format_size(one.used_bytes),
            f"{one.evictions_own:,}",
            f"{one.evictions_suffered:,}",
            f"{one.evictions_caused:,}",
        )
    return table


def _pinned(pins: Mapping[str, int]) -> str:
    if not pins.get("pins"):
        return "nothing"
    many = "" if pins["pins"] == 1 else "s"
    return f"{pins['pins']:,} pin{many}, {pins['held_pages']:,} pages ({format_size(pins['held_bytes'])})"


def _clients(answer: cache_pb2.StatusResponse) -> Table:
    headings = ("row", "pid", "name", "state", "leases", "leased", "reservations", "oldest request")
    table = table_of("clients", *headings)
    for client in answer.clients:
        table.add_row(
            str(client.row),
            str(client.pid),
            plain(client.name),
            client.state,
            f"{client.leases:,}",
            format_size(client.leased_bytes),
            f"{client.reservations:,}",
            f"view {client.oldest_view:,} of {answer.view:,}" if client.oldest_view else "",
        )
    return table


def _since(uptime_s: float) -> str:
    seconds = int(uptime_s)
    if seconds >= _DAY_S:
        return f"{seconds // _DAY_S}d {seconds % _DAY_S // _HOUR_S}h"
    if seconds >= _HOUR_S:
        return f"{seconds // _HOUR_S}h {seconds % _HOUR_S // _MINUTE_S}m"
    return f"{seconds // _MINUTE_S}m {seconds % _MINUTE_S}s" if seconds >= _MINUTE_S else f"{uptime_s:.1f}s"
