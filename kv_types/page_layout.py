"""PageLayout: where the keys, values, latents and scales of each layer stand inside a page.

Canonical order: layers ascending; in a layer keys then values, each [kv_heads, page_tokens, head_dim], or for
MLA latent [page_tokens, latent_dim] then rope [page_tokens, rope_dim]; the fp32 scales of a part follow it.
Every part starts at a multiple of its item size, a page ends at one of the largest; bytes between are zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.limits import PAGE_BYTES_MAX
from kv_types.namespace import CANONICAL_LAYOUT, AttentionKind, KvDtype, Namespace, QuantisationScheme


class PartRole(StrEnum):
    """What the numbers of a part are."""

    KEY = "key"
    VALUE = "value"
    LATENT = "latent"
    ROPE = "rope"
    KEY_SCALE = "key_scale"
    VALUE_SCALE = "value_scale"
    LATENT_SCALE = "latent_scale"
    ROPE_SCALE = "rope_scale"


_SCALE_OF = {
    PartRole.KEY: PartRole.KEY_SCALE,
    PartRole.VALUE: PartRole.VALUE_SCALE,
    PartRole.LATENT: PartRole.LATENT_SCALE,
    PartRole.ROPE: PartRole.ROPE_SCALE,
}


@dataclass(frozen=True, slots=True)
class PagePart:
    """One array inside a page: row-major, `offset` bytes from the page's start."""

    layer: int
    role: PartRole
    offset: int
    shape: tuple[int, ...]
    dtype: KvDtype

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.item_bytes


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The parts of a page and its size. `page_bytes` counts alignment bytes at the end as well."""

    page_tokens: int
    page_bytes: int
    _parts: tuple[PagePart, ...]

    @classmethod
    def of(cls, namespace: Namespace) -> PageLayout:
        """Layout of a namespace's pages (the same object for equal namespaces).

        Raises InvalidArgumentError when the namespace names a layout other than the canonical one, and
        LimitExceededError when a page would be larger than PAGE_BYTES_MAX.
        """
        if namespace.layout != CANONICAL_LAYOUT:
            raise InvalidArgumentError(
                f"layout {namespace.layout!r} is an engine's own; only {CANONICAL_LAYOUT!r} is described here"
            )
        return _layout_of(namespace)

    def parts(self) -> tuple[PagePart, ...]:
        """Every part, in the order of their offsets."""
        return self._parts

    def part(self, layer: int, role: PartRole) -> PagePart:
        """One part by model layer (counted over the whole model) and role; raises InvalidArgumentError."""
        for part in self._parts:
            if part.layer == layer and part.role == role:
                return part
        raise InvalidArgumentError(f"a page of this layout has no {role} of layer {layer}")


def check_page_bytes(namespace: Namespace, page_bytes: int) -> None:
    """Check a page size that somebody states for a namespace.

    The canonical layout has one size; an engine's own layout may pad, so that only the limit is checked.
    Raises InvalidArgumentError, LimitExceededError.
    """
    if not 1 <= page_bytes <= PAGE_BYTES_MAX:
        raise LimitExceededError(f"a page of {page_bytes} bytes; it must have 1 to {PAGE_BYTES_MAX}")
    if namespace.layout != CANONICAL_LAYOUT:
        return
    wanted = PageLayout.of(namespace).page_bytes
    if page_bytes != wanted:
        raise InvalidArgumentError(
            f"a page of {page_bytes} bytes; the geometry of model {namespace.model!r} gives {wanted}"
        )


@lru_cache(maxsize=256)
def _layout_of(namespace: Namespace) -> PageLayout:
    _check_size(namespace)
    scales_inside = (
        namespace.quantisation is not None
        and namespace.quantisation.scheme is QuantisationScheme.PER_HEAD_PAGE
    )
    parts: list[PagePart] = []
    end = 0

    def append(layer: int, role: PartRole, shape: tuple[int, ...], dtype: KvDtype) -> None:
        nonlocal end
        part = PagePart(layer, role, _align(end, dtype.item_bytes), shape, dtype)
        parts.append(part)
        end = part.offset + part.size_bytes

    for layer in range(namespace.geometry.layer_begin, namespace.geometry.layer_end):
        for role, shape in _arrays(namespace):
            append(layer, role, shape, namespace.kv_dtype)
            if scales_inside:
                heads = shape[0] if namespace.geometry.attention is AttentionKind.GQA else 1
                append(layer, _SCALE_OF[role], (heads,), KvDtype.FP32)
    page_bytes = _align(end, max(part.dtype.item_bytes for part in parts))
    if page_bytes > PAGE_BYTES_MAX:
        raise _too_large(namespace, page_bytes)
    return PageLayout(namespace.page_tokens, page_bytes, tuple(parts))


def _arrays(namespace: Namespace) -> list[tuple[PartRole, tuple[int, ...]]]:
    geometry, tokens = namespace.geometry, namespace.page_tokens
    if geometry.attention is AttentionKind.GQA:
        return [
            (PartRole.KEY, (geometry.heads, tokens, geometry.head_dim)),
            (PartRole.VALUE, (geometry.heads, tokens, geometry.value_head_dim)),
        ]
    arrays: list[tuple[PartRole, tuple[int, ...]]] = [(PartRole.LATENT, (tokens, geometry.latent_dim))]
    if geometry.rope_dim:
        arrays.append((PartRole.ROPE, (tokens, geometry.rope_dim)))
    return arrays


def _check_size(namespace: Namespace) -> None:
    # before any list is built: a geometry from outside may name thousands of layers
    numbers = namespace.geometry.layers * sum(math.prod(shape) for _, shape in _arrays(namespace))
    size = numbers * namespace.kv_dtype.item_bytes
    if size > PAGE_BYTES_MAX:
        raise _too_large(namespace, size)


def _too_large(namespace: Namespace, size: int) -> LimitExceededError:
    return LimitExceededError(
        f"a page of {namespace.page_tokens} tokens of model {namespace.model!r} takes {size} bytes; at most "
        f"{PAGE_BYTES_MAX} are allowed: use fewer page_tokens or a narrower shard"
    )


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
