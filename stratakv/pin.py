"""`stratakv pin`: keeps a prefix in the arena of a node for a time, whatever else wants its room."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kv_types.errors import ConfigError, LimitExceededError
from kv_types.operator_limits import PIN_CHAINS_MAX, PIN_S_MAX, PIN_S_MIN
from kv_wire.gen import admin_pb2
from sidecar.units import format_size, rough_duration
from stratakv.admin import (
    EndpointOption,
    JsonOption,
    RuntimeDirOption,
    Sidecar,
    duration,
    local_now,
    sidecar_of,
)
from stratakv.commands import AdminCommand
from stratakv.prefixes import Prefix, last_key, prefix_of
from stratakv.presentation import plain, print_json, what_is_done_stands
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
)

_VERB = "pin"
_CALL_S = 60.0
_NAME_DIGITS = 12

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def pin(
    lasting: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long it lasts, 30 days at most: 2h, 7d.")
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="What it is called; a pin of that name is replaced, as to make it last longer (default: by its last key).",
        ),
    ] = None,
    prefix_tokens: PrefixTokensOption = None,
    prefix_text: PrefixTextOption = None,
    tokenizer: TokenizerOption = None,
    special_tokens: SpecialTokensOption = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="One page of this node and all that it stands on: 64 hexadecimal digits."),
    ] = None,
    namespace: NamespaceOption = None,
    model: ModelOption = None,
    weights_version: WeightsOption = None,
    adapter: AdapterOption = None,
    tenant: TenantOption = None,
    load: Annotated[
        bool, typer.Option("--load/--no-load", help="Bring what the node lacks from L3 now.")
    ] = True,
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Keep the full pages of a prefix in this node's arena, in every namespace that matches, from eviction for want of room.

    Pages that are not there yet are kept once they come. Invalidation and a page's own time to live end a page all the same.
    """
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        lasting_s = duration(lasting, option="--for", least_s=PIN_S_MIN, most_s=PIN_S_MAX)
        prefix = prefix_of(prefix_tokens, prefix_text, tokenizer, special_tokens=special_tokens)
        if (key is None) == (prefix is None):
            raise ConfigError("name a prefix by --prefix-tokens or --prefix-text, or one page by --key")
        chosen = Fields(
            namespace=namespace, model=model, weights_version=weights_version, adapter=adapter, tenant=tenant
        )
        if prefix is not None:
            request = _by_prefix(sidecar, prefix, chosen)
        elif chosen != Fields():
            raise ConfigError("a key lies in one namespace: no other option says which")
        else:
            request = admin_pb2.PinRequest(key=parse_key(key or "", "--key"))
        request.name = name or f"pin-{_last_key(request).hex()[:_NAME_DIGITS]}"
        request.lasting_s, request.load = int(lasting_s), load
        answer = sidecar.admin.pin(request, timeout=_CALL_S)
    with what_is_done_stands(_VERB):
        if as_json:
            print_json(pin_plain(answer.pin))
        else:
            typer.echo(describe(answer.pin))


def pin_plain(told: admin_pb2.PinStatus) -> dict[str, Any]:
    """A pin as JSON types; docs/pins-and-shares.md describes every key."""
    return {
        "chains": told.chains,
        "held_bytes": told.held_bytes,
        "held_pages": told.held_pages,
        "name": told.name,
        "pages": told.pages,
        "remaining_ms": told.remaining_ms,
    }


def describe(told: admin_pb2.PinStatus) -> str:
    """A pin in a line."""
    return (
        f"pinned {plain(told.name)}: {told.held_pages} of {told.pages} pages are here ({format_size(told.held_bytes)}), for "
        f"{rough_duration(told.remaining_ms / 1000)}"
    )


def _by_prefix(sidecar: Sidecar, prefix: Prefix, chosen: Fields) -> admin_pb2.PinRequest:
    spaces = matching(chosen.selector(now=local_now()), sidecar.namespaces().by_id, source=prefix.source)
    check_filled(prefix, spaces)
    if len(spaces) > PIN_CHAINS_MAX:
        raise LimitExceededError(
            f"the prefix names a chain in each of {len(spaces)} namespaces, and one pin has {PIN_CHAINS_MAX} at most: name "
            "fewer by --model, --tenant or --weights-version"
        )
    return admin_pb2.PinRequest(
        chains=[
            admin_pb2.PinnedChain(namespace_id=space.id, keys=prefix.keys_in(space))
            for space in sorted(spaces, key=lambda space: space.id)
        ]
    )


def _last_key(request: admin_pb2.PinRequest) -> bytes:
    return request.key or last_key(request.chains[0].keys)
