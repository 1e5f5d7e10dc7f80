"""Namespaces of a few tenants on two ranks, and the keys of all chains over two tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from kv_types.computation import AttentionKind, Geometry, KvDtype, Rope, Weights
from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from tests.connectors.vllm.governed_blocks import BLOCK, keys_of

TENANTS = ("", "blue")


@cache
def names(blocks_per_page: int = 1, ranks: int = 2) -> dict[str, tuple[Namespace, ...]]:
    """Tenant → one namespace a rank."""
    base = Namespace(
        model="toy",
        weights=Weights(version="v1"),
        kv_dtype=KvDtype.FP32,
        geometry=Geometry(
            attention=AttentionKind.GQA,
            layers_total=1,
            layer_begin=0,
            layer_end=1,
            kv_heads_total=2,
            head_begin=0,
            head_end=2 // ranks,
            head_dim=8,
        ),
        rope=Rope(kind="default", theta=10_000.0),
        page_tokens=BLOCK * blocks_per_page,
    )
    shards = [
        replace(
            base,
            geometry=replace(base.geometry, head_begin=rank * 2 // ranks, head_end=(rank + 1) * 2 // ranks),
        )
        for rank in range(ranks)
    ]
    return {tenant: tuple(replace(shard, tenant=tenant) for shard in shards) for tenant in TENANTS}


def key_of(tenant: str, tokens: tuple[int, ...], *, blocks_per_page: int = 1, rank: int = 0) -> PageKey:
    """Key of the page that ends with these tokens."""
    return keys_of(names(blocks_per_page)[tenant][rank], tokens, BLOCK * blocks_per_page)[-1]
