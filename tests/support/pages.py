"""Namespaces, keys and stamped page bytes for tests: small, and wrong bytes are recognisable."""

from __future__ import annotations

import hashlib
import os

from kv_types.ids import KEY_BYTES, NamespaceId, PageKey
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Weights
from kv_types.page_layout import PageLayout

PAGE_UNIT_BYTES = 4096


def namespace_of(model: str = "tiny", *, units: int = 1, tenant: str = "") -> Namespace:
    """A namespace whose pages have `units` × 4096 bytes."""
    return Namespace(
        model=model,
        weights=Weights(version="1"),
        kv_dtype=KvDtype.FP16,
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=units, layer_begin=0, layer_end=units,
            kv_heads_total=1, head_begin=0, head_end=1, head_dim=64,
        ),
        page_tokens=16,
        tenant=tenant,
    )  # fmt: skip


def page_bytes_of(namespace: Namespace) -> int:
    """Payload bytes of the namespace's pages."""
    return PageLayout.of(namespace).page_bytes


def chain(pages: int, *, root: bytes | None = None) -> list[PageKey]:
    """Fresh keys of a chain; `root` makes it repeatable."""
    seed = root if root is not None else os.urandom(KEY_BYTES)
    keys = []
    for _ in range(pages):
        seed = hashlib.blake2b(seed, digest_size=KEY_BYTES).digest()
        keys.append(PageKey(seed))
    return keys


def packed(keys: list[PageKey]) -> bytes:
    """Keys as the arena takes them."""
    return b"".join(keys)


def page_of(key: bytes, page_bytes: int) -> bytes:
    """The bytes that belong under a key: every 32 of them tell the key and where they stand."""
    lines = (
        hashlib.blake2b(key + at.to_bytes(8, "little"), digest_size=KEY_BYTES).digest()
        for at in range(-(-page_bytes // KEY_BYTES))
    )
    return b"".join(lines)[:page_bytes]


def pages_of(keys: list[PageKey], page_bytes: int) -> list[memoryview]:
    """One source a key."""
    return [memoryview(page_of(key, page_bytes)) for key in keys]


def buffers(count: int, page_bytes: int) -> list[memoryview]:
    """Writable destinations."""
    return [memoryview(bytearray(page_bytes)) for _ in range(count)]


def foreign_namespace() -> NamespaceId:
    """An id that nobody registered."""
    return NamespaceId(os.urandom(KEY_BYTES))
