"""Between a Transformers cache, [B, H, S, D] a layer, and canonical pages of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from kv_types.namespace import KvDtype, Namespace
from kv_types.page_layout import PageLayout

_TORCH_DTYPES = {
    KvDtype.FP32: torch.float32,
    KvDtype.FP16: torch.float16,
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP8_E4M3: torch.float8_e4m3fn,
    KvDtype.FP8_E5M2: torch.float8_e5m2,
}


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of a page: byte range [begin, end), and its shape there, [heads, page_tokens, width]."""

    begin: int
    end: int
    shape: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CachedRow:
    """What one row of a batch takes from pages: its first `tokens` tokens stand from column `column` on.

    `pages` is uint8 [n, page_bytes] with n · page_tokens ≥ tokens.
    """

    column: int
    tokens: int
    pages: torch.Tensor


class PageCodec:
    """Copies between cache tensors and pages of one namespace. Pages are uint8 [n, page_bytes], contiguous."""

    def __init__(self, namespace: Namespace, *, device: torch.device) -> None:
        layout = PageLayout.of(namespace)
        self.page_bytes = layout.page_bytes
        self.page_tokens = namespace.page_tokens
        self.dtype = _TORCH_DTYPES[namespace.kv_dtype]
        self.device = device
        parts = [self._part(part.offset, part.shape) for part in layout.parts()]
        roles = 2  # key and value, or latent and rope: each layer has two parts, in this order
        self.layers = [(parts[at], parts[at + 1]) for at in range(0, len(parts), roles)]

    def _part(self, offset: int, shape: tuple[int, ...]) -> _Part:
        heads, tokens, width = shape if len(shape) == 3 else (1, *shape)
        return _Part(offset, offset + heads * tokens * width * self.dtype.itemsize, (heads, tokens, width))

    def mismatch(self, cache: Any) -> str | None:
        """Say how a cache that a forward pass filled differs from what the namespace promises, or None."""
        if len(cache.layers) != len(self.layers):
            return f"the cache has {len(cache.layers)} layers, the configuration {len(self.layers)}"
        for index, (layer, parts) in enumerate(zip(cache.layers, self.layers, strict=True)):
            if type(layer) is not DynamicLayer:
                return f"layer {index} of the cache is a {type(layer).__name__}"
            for name, tensor, part in zip(("keys", "values"), (layer.keys, layer.values), parts, strict=True):
                found = (tensor.shape[1], tensor.shape[3], tensor.dtype)
                if found != (part.shape[0], part.shape[2], self.dtype):
                    promised = (part.shape[0], part.shape[2], self.dtype)
                    return f"{name} of layer {index} have heads, width and type {found}, not {promised}"
        return None

    def gather(self, cache: Any, *, row: int, column: int, pages: int) -> torch.Tensor:
        """Copy `pages` full pages of one row, from column `column` on, out of a cache: uint8 [pages,
        page_bytes].

        The result is on the cache's device and shares no memory with it.
        """
        taken = torch.empty((pages, self.page_bytes), dtype=torch.uint8, device=self.device)
        end = column + pages * self.page_tokens
        for layer, parts in zip(cache.layers, self.layers, strict=True):
            for tensor, part in zip((layer.keys, layer.values), parts, strict=True):
                heads, tokens, width = part.shape
                source = tensor[row, :, column:end].reshape(heads, pages, tokens, width)
                self._view(taken, part).copy_(source.transpose(0, 1))
        return taken

    def assemble(self, rows: Sequence[CachedRow], *, columns: int, config: Any) -> DynamicCache:
        """Build the cache of a batch whose first `columns` columns are known: zeros under pads.

        The cache is a copy: growing or editing it leaves the pages as they were.
        """
        if columns == 0:
            return DynamicCache(config=config)
        filled = [
            tuple(self._fill(rows, part=parts[which], columns=columns) for which in (0, 1))
            for parts in self.layers
        ]
        return DynamicCache(ddp_cache_data=filled, config=config)

    def _fill(self, rows: Sequence[CachedRow], *, part: _Part, columns: int) -> torch.Tensor:
        heads, tokens, width = part.shape
        out = torch.empty((len(rows), heads, columns, width), dtype=self.dtype, device=self.device)
        for index, row in enumerate(rows):
            # Masked columns are multiplied by zero, and zero times garbage may be NaN.
            out[index, :, : row.column] = 0
            if row.tokens <= 0:
                continue
            whole, rest = divmod(row.tokens, tokens)
            source = self._view(row.pages, part)
            end = row.column + whole * tokens
            out[index, :, row.column : end].view(heads, whole, tokens, width).copy_(
                source[:whole].transpose(0, 1)
            )
            if rest:
                out[index, :, end : end + rest] = source[whole, :, :rest]
        return out

    def _view(self, pages: torch.Tensor, part: _Part) -> torch.Tensor:
        """[n, heads, page_tokens, width] of the cache's dtype, sharing memory with `pages`."""
        return pages[:, part.begin : part.end].view(self.dtype).view(len(pages), *part.shape)
