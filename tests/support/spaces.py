"""Namespaces of a wanted page size, fresh chains, and page bytes that nobody else has."""

from __future__ import annotations

import hashlib
import itertools
import os

from kv_types.ids import PageKey
from kv_types.limits import HEAD_DIM_MAX, PAGE_TOKENS_MAX
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Weights
from kv_types.page_layout import PageLayout

_numbers = itertools.count()


def space_of(page_bytes: int, *, model: str = "sized") -> Namespace:
    """A namespace whose pages have exactly `page_bytes` bytes: one layer of latent attention, a byte a number."""
    page_tokens = next(
        tokens
        for tokens in range(1, PAGE_TOKENS_MAX + 1)
        if page_bytes % tokens == 0 and page_bytes // tokens <= HEAD_DIM_MAX
    )
    namespace = Namespace(
        model=f"{model}-{next(_numbers)}",
        weights=Weights(version="1"),
        kv_dtype=KvDtype.FP8_E4M3,
        geometry=Geometry(
            attention=AttentionKind.MLA,
            layers_total=1,
            layer_begin=0,
            layer_end=1,
            latent_dim=page_bytes // page_tokens,
        ),
        page_tokens=page_tokens,
    )
    assert PageLayout.of(namespace).page_bytes == page_bytes
    return namespace


def fresh_chain(pages: int) -> list[PageKey]:
    """Keys that no other chain of this run has."""
    seed = os.urandom(16) + next(_numbers).to_bytes(4, "little")
    return [
        PageKey(hashlib.blake2b(seed + n.to_bytes(4, "little"), digest_size=32).digest())
        for n in range(pages)
    ]


def page_of(key: PageKey, page_bytes: int) -> memoryview:
    """The bytes that belong under a key."""
    return memoryview(hashlib.shake_128(key).digest(page_bytes))
