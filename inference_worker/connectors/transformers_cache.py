"""Between a Transformers cache, [B, H, S, D] a layer, and canonical pages of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from cache_l1.transfer_contiguous import ContiguousCopies
from cache_l2 import _native
from kv_types.namespace import KvDtype, Namespace
from kv_types.page_layout import PageLayout

_TORCH_DTYPES = {
    KvDtype.FP32: torch.float32,
    KvDtype.FP16: torch.float16,
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP8_E4M3: torch.float8_e4m3fn,
    KvDtype.FP8_E5M2: torch.float8_e5m2,
}
_ROLES = 2
"""Key and value, or latent and rope: each layer has two parts, in this order."""


@dataclass(frozen=True, slots=True)
class PagesAt:
    """Pages where they lie: rows `numbers` of uint8 [n, page_bytes] on the cache's device, L1's memory for example."""

    memory: torch.Tensor
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, slots=True)
class CachedRow:
    """What one row of a batch takes from pages: its first `tokens` tokens stand from column `column` on.

    `pages` follow one another in the row, and hold that many tokens or more.
    """

    column: int
    tokens: int
    pages: Sequence[PagesAt]


class PageCodec:
    """Copies between cache tensors and pages of one namespace: one gather or scatter a row, whatever the layers.

    Where the cache is in host memory they are the native ones.
    """

    def __init__(self, namespace: Namespace, *, device: torch.device) -> None:
        self.dtype = _TORCH_DTYPES[namespace.kv_dtype]
        self.device = device
        self._copies = ContiguousCopies(PageLayout.of(namespace), self.dtype, native=_native)
        self.page_bytes = self._copies.page_bytes
        self.page_tokens = self._copies.page_tokens
        parts = self._copies.parts
        self.layers = [tuple(parts[at : at + _ROLES]) for at in range(0, len(parts), _ROLES)]

    def mismatch(self, cache: Any) -> str | None:
        """Say how a cache that a forward pass filled differs from what the namespace promises, or None."""
        if len(cache.layers) != len(self.layers):
            return f"the cache has {len(cache.layers)} layers, the configuration {len(self.layers)}"
        for index, (layer, parts) in enumerate(zip(cache.layers, self.layers, strict=True)):
            if type(layer) is not DynamicLayer:
                return f"layer {index} of the cache is a {type(layer).__name__}"
            for name, tensor, part in zip(("keys", "values"), (layer.keys, layer.values), parts, strict=True):
                found = (tensor.shape[1], tensor.shape[3], tensor.dtype)
                if found != (part.heads, part.width, self.dtype):
                    promised = (part.heads, part.width, self.dtype)
                    return f"{name} of layer {index} have heads, width and type {found}, not {promised}"
        return None

    def scatter(self, cache: Any, pages: PagesAt, *, row: int, column: int) -> None:
        """Copy full pages of one row, from column `column` on, out of a cache: all of `pages`."""
        sources = [tensor[row] for layer in cache.layers for tensor in (layer.keys, layer.values)]
        self._copies.scatter(sources, pages.memory, pages.numbers, column=column)

    def assemble(self, rows: Sequence[CachedRow], *, columns: int, config: Any) -> DynamicCache:
        """Build the cache of a batch whose first `columns` columns are known: zeros under pads.

        The cache is a copy: growing or editing it leaves the pages as they were.
        """
        if columns == 0:
            return DynamicCache(config=config)
        tensors = [
            torch.empty((len(rows), part.heads, columns, part.width), dtype=self.dtype, device=self.device)
            for part in self._copies.parts
        ]
        for index, row in enumerate(rows):
            self._fill([tensor[index] for tensor in tensors], row)
        filled = [tuple(tensors[at : at + _ROLES]) for at in range(0, len(tensors), _ROLES)]
        return DynamicCache(ddp_cache_data=filled, config=config)

    def _fill(self, targets: Sequence[torch.Tensor], row: CachedRow) -> None:
        for target in targets:
            # Masked columns are multiplied by zero, and zero times garbage may be NaN.
            target[:, : row.column] = 0
        column, left = row.column, max(row.tokens, 0)
        for pages in row.pages:
            whole = min(left // self.page_tokens, len(pages))
            self._copies.gather(pages.memory, pages.numbers[:whole], targets, column=column)
            column, left = column + whole * self.page_tokens, left - whole * self.page_tokens
            if left and whole < len(pages):
                self._copies.copy_part_of_page(
                    pages.memory, pages.numbers[whole], targets, column=column, tokens=left
                )
                left = 0
