"""Scale groups: which numbers of a page share a scale when it is stored with one byte a number, derived from its layout.

In the canonical layout fp8 has one scale for a layer's keys, or values, of one head (fp8 numbers carry an exponent each, so
that finer groups gain nothing that could be measured). int8 has one for each channel of a head's keys, which differ by
channel, and one for each token of its values. What an engine's own layout has in common with any other is that numbers next
to each other belong together: there, as many as a head (in MLA, a token) has are a group, in the engine's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kv_types.errors import InvalidArgumentError
from kv_types.namespace import CANONICAL_LAYOUT, AttentionKind, KvDtype, Namespace, StoredAs
from kv_types.page_layout import PageLayout, PagePart, PartRole, check_page_bytes


@dataclass(frozen=True, slots=True)
class ScaledArray:
    """Rows of numbers in a page, `offset` bytes from its start.

    Every `rows_a_scale` rows have one scale, or with `by_column` one for each of their columns.
    """

    offset: int
    rows: int
    columns: int
    rows_a_scale: int
    by_column: bool = False


_ROUNDING = {KvDtype.BF16: 2.0**-8, KvDtype.FP16: 2.0**-11, KvDtype.FP32: 2.0**-24}
"""How far a number may be from what its type holds of it, by its size."""
_INT8_STEP = (1 + 2.0**-7) / 254
"""Half a step by the largest number: scales are rounded up to 8 bits."""


def error_bound(stored_as: StoredAs, kv_dtype: KvDtype) -> float:
    """How far a number may come back from what it was, by the largest magnitude in its scale group.

    It holds where that is above 2⁻⁹³ (int8) or 2⁻¹¹⁷ (fp8); smaller numbers may become 0.
    Where fp16's own steps are coarser, below 2⁻¹⁴, int8 adds half of one, 2⁻²⁵. e4m3 has three digits behind the first
    and powers of two for scales, so that nothing is rounded once more.
    """
    if stored_as is StoredAs.FP8_E4M3:
        return 2.0**-4
    return _INT8_STEP + _ROUNDING[kv_dtype]


def scaled_arrays(namespace: Namespace, page_bytes: int) -> tuple[ScaledArray, ...]:
    """Arrays of a lossy namespace's pages, in order, with all of their numbers.

    Raises InvalidArgumentError where pages may not be stored lossily, and where the size says that a page holds
    something else than the numbers of its geometry, so that it can't be told where they are.
    """
    if namespace.stored_as is None:
        raise InvalidArgumentError(
            "this namespace names no codec that loses anything: its pages stay as they are"
        )
    if namespace.layout == CANONICAL_LAYOUT:
        check_page_bytes(namespace, page_bytes)
        by_token = namespace.stored_as is StoredAs.INT8
        return tuple(_of_part(part, by_token=by_token) for part in PageLayout.of(namespace).parts())
    return tuple(_of_engine(namespace, page_bytes))


def check_stored_as(namespace: Namespace, page_bytes: int) -> None:
    """Raise InvalidArgumentError where a namespace's pages can't be stored as it says; most of them say nothing."""
    if namespace.stored_as is not None:
        scaled_arrays(namespace, page_bytes)


def _of_part(part: PagePart, *, by_token: bool) -> ScaledArray:
    *outer, tokens, columns = part.shape
    rows = math.prod(outer) * tokens
    by_column = by_token and part.role in (PartRole.KEY, PartRole.ROPE)
    whole_head = by_column or not by_token
    return ScaledArray(part.offset, rows, columns, tokens if whole_head else 1, by_column)


def _of_engine(namespace: Namespace, page_bytes: int) -> Iterator[ScaledArray]:
    geometry = namespace.geometry
    if geometry.attention is AttentionKind.MLA:
        columns, rows = geometry.latent_dim + geometry.rope_dim, namespace.page_tokens
    else:
        columns = math.gcd(geometry.head_dim, geometry.value_head_dim)
        rows = (
            geometry.heads * namespace.page_tokens * (geometry.head_dim + geometry.value_head_dim) // columns
        )
    layer_bytes = rows * columns * namespace.kv_dtype.item_bytes
    if layer_bytes * geometry.layers != page_bytes:
        raise InvalidArgumentError(
            f"pages of {page_bytes} bytes can't be stored as {namespace.stored_as}: the numbers of their geometry take "
            f"{layer_bytes * geometry.layers}, and layout {namespace.layout!r} does not tell what else is there; leave "
            "stored_as None"
        )
    for layer in range(geometry.layers):
        yield ScaledArray(layer * layer_bytes, rows, columns, rows_a_scale=1)
