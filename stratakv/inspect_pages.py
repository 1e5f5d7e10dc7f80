"""`stratakv inspect`: where the pages of a prompt's beginning are on this node, their headers, and why each is valid or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kv_types.clock import show_time
from kv_types.errors import ConfigError
from kv_types.ids import KEY_BYTES
from kv_types.namespace import Namespace
from kv_wire.gen import admin_pb2, cache_pb2
from sidecar.units import format_size
from stratakv.admin import EndpointOption, JsonOption, RuntimeDirOption, Sidecar, local_now, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.l3_status import render_choices, render_speeds, tells_speeds
from stratakv.prefixes import Prefix, prefix_of
from stratakv.presentation import Paper, plain, print_json, table_of
from stratakv.selection import (
    AdapterOption,
    Fields,
    ModelOption,
    NamespaceOption,
    PrefixTextOption,
    PrefixTokensOption,
    SpecialTokensOption,
    TenantOption,
    TokenizerOption,
    WeightsOption,
    check_filled,
    matching,
    parse_key,
    show_name,
)

_VERB = "inspect"
_CALL_S = 30.0
_ROWS_SHOWN = 40

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def inspect(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="One page: 64 hexadecimal digits.")
    ] = None,
    prefix_tokens: PrefixTokensOption = None,
    prefix_text: PrefixTextOption = None,
    tokenizer: TokenizerOption = None,
    special_tokens: SpecialTokensOption = None,
    namespace: NamespaceOption = None,
    model: ModelOption = None,
    weights_version: WeightsOption = None,
    adapter: AdapterOption = None,
    tenant: TenantOption = None,
    tiers: Annotated[
        bool,
        typer.Option(
            "--tiers",
            help="Instead of pages: how fast L3 is taken to be, what was loaded by that or left to be computed, and how fast "
            "workers copy out of L2 and compute.",
        ),
    ] = False,
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Show one page, or the pages of a prefix in every namespace that matches: where they are and why they are valid or not."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        if tiers:
            _show_tiers(
                sidecar,
                is_alone=key is None and prefix_tokens is None and prefix_text is None,
                as_json=as_json,
            )
            return
        prefix = prefix_of(prefix_tokens, prefix_text, tokenizer, special_tokens=special_tokens)
        if (key is None) == (prefix is None):
            raise ConfigError("name one page by its key, or a prefix by --prefix-tokens or --prefix-text")
        chosen = Fields(
            namespace=namespace, model=model, weights_version=weights_version, adapter=adapter, tenant=tenant
        )
        found = (
            list(_chains(sidecar, prefix, chosen))
            if prefix is not None
            else [_one(sidecar, parse_key(key or "", "KEY"), chosen)]
        )
    if as_json:
        print_json(
            {
                "chains": [_plain(space, parts) for space, parts in found],
                "prefix_tokens": None if prefix is None else len(prefix.tokens),
            }
        )
        return
    if prefix is not None:
        typer.echo(f"a prefix of {len(prefix.tokens)} tokens")
    for space, parts in found:
        _print(space, parts)


def _show_tiers(sidecar: Sidecar, *, is_alone: bool, as_json: bool) -> None:
    if not is_alone:
        raise ConfigError("--tiers tells of tiers, not of pages: name no page and no prefix with it")
    status = sidecar.status()
    l3 = status.l3
    if as_json:
        workers = [_plain_speeds(client) for client in status.clients if tells_speeds(client)]
        print_json(
            {"l3": {"why_off": l3.why_off or None, **dict(sorted(l3.choices.items()))}, "workers": workers}
        )
        return
    if l3.why_off:
        typer.echo(f"L3 is off: {l3.why_off}")
    else:
        Paper().print(render_choices(l3))
    for table in render_speeds(status.clients):
        Paper().print(table)


def _plain_speeds(client: cache_pb2.ClientStatus) -> dict[str, object]:
    """Null for what is unknown."""
    knows_copies = client.copy_bytes_per_s > 0
    return {
        "row": client.row, "name": client.name,
        "prefill_tokens_per_s": client.prefill_tokens_per_s or None,
        "copy_latency_s": client.copy_latency_s if knows_copies else None,
        "copy_bytes_per_s": client.copy_bytes_per_s or None,
    }  # fmt: skip


Inspected = tuple[Namespace | None, list[admin_pb2.InspectResponse]]


def _one(sidecar: Sidecar, key: bytes, chosen: Fields) -> Inspected:
    """One page by its key; of the options only --namespace says something about it."""
    if chosen != Fields(namespace=chosen.namespace):
        raise ConfigError("a key lies in one namespace: --namespace alone goes with it")
    space = b"" if chosen.namespace is None else parse_key(chosen.namespace, "--namespace")
    request = admin_pb2.InspectRequest(keys=key, namespace_id=space)
    return None, [sidecar.admin.inspect(request, timeout=_CALL_S)]


def _chains(sidecar: Sidecar, prefix: Prefix, chosen: Fields) -> Iterator[Inspected]:
    spaces = matching(chosen.selector(now=local_now()), sidecar.namespaces().by_id, source=prefix.source)
    check_filled(prefix, spaces)
    for space in spaces:
        yield space, list(_parts(sidecar, prefix.keys_in(space), space))


def _parts(sidecar: Sidecar, keys: bytes, space: Namespace) -> Iterator[admin_pb2.InspectResponse]:
    start = 0
    while start < len(keys) // KEY_BYTES:
        request = admin_pb2.InspectRequest(keys=keys, namespace_id=space.id, start=start)
        answer = sidecar.admin.inspect(request, timeout=_CALL_S)
        yield answer
        start += len(answer.pages)


def _plain(space: Namespace | None, parts: list[admin_pb2.InspectResponse]) -> dict[str, Any]:
    """One chain as JSON types; docs/invalidation.md describes every key."""
    position = parts[-1].position
    return {
        "namespace": None if space is None else space.id.hex(),
        "pages": [_page_plain(page) for part in parts for page in part.pages],
        "position": (
            {"incarnation": position.incarnation.hex(), "revision": position.revision}
            if parts[-1].HasField("position")
            else None
        ),
    }


def _page_plain(page: admin_pb2.PageStatus) -> dict[str, Any]:
    told: dict[str, Any] = {
        "key": page.key.hex(), "resident": page.resident, "servable": page.servable, "why": page.why, "header": None,
    }  # fmt: skip
    if page.resident:
        told["header"] = {
            "computed_from_ms": page.computed_from_ms or None,
            "computed_until_ms": page.computed_until_ms or None,
            "expires_in_ms": None if page.expires_in_ms < 0 else page.expires_in_ms,
            "last_access_ms_ago": None if page.last_access_ms_ago < 0 else page.last_access_ms_ago,
            "leases": page.leases,
            "lineage_known": page.lineage_known,
            "namespace": page.namespace_id.hex(),
            "parent": page.parent.hex() or None,
            "payload_bytes": page.payload_bytes,
            "producer": show_name(page.producer) if page.producer_known else None,
            "stamp": {"incarnation": page.stamp.incarnation.hex(), "revision": page.stamp.revision},
            "tags": [show_name(tag) for tag in page.tags] if page.tags_known else None,
        }
    return told


def _print(space: Namespace | None, parts: list[admin_pb2.InspectResponse]) -> None:
    pages = [page for part in parts for page in part.pages]
    servable = sum(page.servable for page in pages)
    console = Paper()
    if space is not None:
        console.print(
            f"namespace {space.id.hex()}, model {plain(space.model)}: {servable} of {len(pages)} pages would be served",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    console.show(_table(pages[:_ROWS_SHOWN]))
    if len(pages) > _ROWS_SHOWN:
        console.print(f"… and {len(pages) - _ROWS_SHOWN} more; --json shows all", style="dim")


def _table(pages: list[admin_pb2.PageStatus]) -> Table:
    table = table_of(
        "", "#", "key", "where", "stamp", "producer", "tags", "computed", "size", "leases", "expires", "why"
    )
    for index, page in enumerate(pages):
        style = "" if page.servable else "red"
        table.add_row(str(index), page.key.hex()[:16], *_cells(page), Text(page.why), style=style)
    return table


def _cells(page: admin_pb2.PageStatus) -> tuple[str | Text, ...]:
    if not page.resident:
        return ("not here", *[""] * 7)
    tags = ", ".join(map(show_name, page.tags)) if page.tags_known else "any"
    computed = show_time(page.computed_until_ms) if page.computed_until_ms else "unknown"
    return (
        "L2",
        str(page.stamp.revision),
        plain(show_name(page.producer) if page.producer_known else "any"),
        plain(tags),
        computed if page.lineage_known else f"{computed}, lineage unknown",
        format_size(page.payload_bytes),
        str(page.leases),
        "never" if page.expires_in_ms < 0 else f"{page.expires_in_ms / 1000:.0f} s",
    )
