"""`stratakv namespaces`: the namespaces that the fleet has used, with the ids that other verbs take."""

from __future__ import annotations

from typing import Any

import typer

from kv_types.namespace import Namespace
from stratakv.admin import EndpointOption, JsonOption, RuntimeDirOption, sidecar_of
from stratakv.commands import AdminCommand
from stratakv.presentation import Paper, plain, print_json, say, table_of

_VERB = "namespaces"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=AdminCommand)
def namespaces(
    as_json: JsonOption = False, endpoint: EndpointOption = None, runtime_dir: RuntimeDirOption = None
) -> None:
    """Show the namespaces that the fleet has used: what a prefix is applied in."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        known = sidecar.namespaces()
    found = sorted(known.by_id.values(), key=lambda one: (one.model, weights_of(one), one.tenant, one.id))
    if as_json:
        print_json({"incomplete": known.incomplete, "namespaces": [namespace_plain(one) for one in found]})
        return
    table = table_of(
        f"{len(found)} namespaces",
        "namespace",
        "model",
        "weights",
        "adapter",
        "tenant",
        "tokens a page",
        "KV",
        "stored as",
        "shard",
    )
    for one in found:
        adapter = "" if one.adapter is None else one.adapter.name
        table.add_row(
            one.id.hex(), plain(one.model), plain(weights_of(one)), plain(adapter), plain(one.tenant),
            str(one.page_tokens), str(one.kv_dtype), str(one.stored_as or ""), _shard(one),
        )  # fmt: skip
    Paper().show(table)
    if known.incomplete:
        say(_VERB, f"these are this sidecar's; the rest of the fleet's are missing: {known.incomplete}")


def namespace_plain(one: Namespace) -> dict[str, Any]:
    """A namespace as JSON types; docs/invalidation.md describes every key."""
    geometry = one.geometry
    return {
        "adapter": None if one.adapter is None else one.adapter.name,
        "heads": [geometry.head_begin, geometry.head_end],
        "id": one.id.hex(),
        "kv_dtype": str(one.kv_dtype),
        "layers": [geometry.layer_begin, geometry.layer_end],
        "model": one.model,
        "page_tokens": one.page_tokens,
        "position_offset": one.position_offset,
        "stored_as": None if one.stored_as is None else str(one.stored_as),
        "tenant": one.tenant,
        "weights_version": weights_of(one),
    }


def weights_of(one: Namespace) -> str:
    """What --weights-version takes for it: the version, or the digest in hexadecimal."""
    digest = one.weights.digest
    return digest.hex() if digest is not None else one.weights.version or ""


def _shard(one: Namespace) -> str:
    """Half-open ranges, as slices are written."""
    geometry = one.geometry
    layers = f"layers {geometry.layer_begin}:{geometry.layer_end} of {geometry.layers_total}"
    if geometry.head_end:
        layers += f", heads {geometry.head_begin}:{geometry.head_end} of {geometry.kv_heads_total}"
    return layers
