"""Namespaces and chains of the simulation: few, small, and the same in every seed, so that they are made once."""

from __future__ import annotations

import functools
from hashlib import blake2b

from kv_types.ids import PageKey
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Weights

Path = tuple[int, ...]
"""A chain by the branch taken at each page."""


@functools.cache
def namespace(model: str, version: str, tenant: str) -> Namespace:
    """A namespace in the simulation's own page layout."""
    return Namespace(
        model=model,
        weights=Weights(version=version),
        kv_dtype=KvDtype.FP16,
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=1, layer_begin=0, layer_end=1, kv_heads_total=1, head_begin=0,
            head_end=1, head_dim=8,
        ),
        page_tokens=16,
        layout="simulated",
        tenant=tenant,
    )  # fmt: skip


@functools.cache
def chain(space: Namespace, path: Path) -> tuple[PageKey, ...]:
    """Keys from the root to the page at the end of a path."""
    if not path:
        return ()
    above = chain(space, path[:-1])
    parent = above[-1] if above else space.id
    return (*above, PageKey(blake2b(parent + bytes(path[-1:]), digest_size=32).digest()))


@functools.cache
def packed(space: Namespace, path: Path) -> bytes:
    """The same, n × 32 bytes."""
    return b"".join(chain(space, path))
