"""Namespaces, chains and stamped pages for the client's tests: bytes that tell the key they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Weights
from kv_types.outcomes import Stored
from kv_types.page_keys import page_keys

PAGE_TOKENS = 4


def namespace(model: str = "tiny", *, layers: int = 1, head_dim: int = 64, **changes: Any) -> Namespace:
    """A namespace whose pages have layers × 1024 bytes at head_dim 64 and fp16."""
    fields: dict[str, Any] = {
        "model": model,
        "weights": Weights(version="1"),
        "kv_dtype": KvDtype.FP16,
        "geometry": Geometry(
            attention=AttentionKind.GQA,
            layers_total=layers,
            layer_begin=0,
            layer_end=layers,
            kv_heads_total=1,
            head_begin=0,
            head_end=1,
            head_dim=head_dim,
        ),
        "page_tokens": PAGE_TOKENS,
    }
    return Namespace(**{**fields, **changes})


def engine_namespace(model: str = "engine") -> Namespace:
    """A namespace of an engine's own layout, whose page size is free."""
    return namespace(model, layout="engine-x86-avx512")


def chain(identity: Namespace, pages: int, *, seed: int = 0) -> bytes:
    """Packed keys of a chain of random tokens; a longer one of the same seed begins with a shorter one."""
    tokens = np.random.default_rng(seed).integers(0, 50_000, 4096 * PAGE_TOKENS, dtype=np.uint32)
    return page_keys(identity.id, tokens[: pages * PAGE_TOKENS], page_tokens=PAGE_TOKENS)


def page_under(key: bytes, page_bytes: int) -> bytes:
    """The bytes that belong under a key; any mix of two pages, or a shift, differs from all of them."""
    stamp = hashlib.shake_128(key).digest(min(page_bytes, 4096))
    return (stamp * (page_bytes // len(stamp) + 1))[:page_bytes]


def keys_of(packed: bytes) -> list[bytes]:
    """The single keys."""
    return [packed[at : at + 32] for at in range(0, len(packed), 32)]


def pages_under(packed: bytes, page_bytes: int) -> list[bytes]:
    """One stamped page a key."""
    return [page_under(key, page_bytes) for key in keys_of(packed)]


def room_for(packed: bytes, page_bytes: int) -> list[bytearray]:
    """Destinations, one a key."""
    return [bytearray(page_bytes) for _ in keys_of(packed)]


def all_stored(outcomes: Sequence[object]) -> bool:
    """Whether each page of a put was stored."""
    return bool(outcomes) and all(isinstance(one, Stored) for one in outcomes)
