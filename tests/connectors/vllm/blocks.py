"""KV tensors as engines register them, filled with random bytes, and what a page of their blocks is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from inference_worker.connectors.vllm.block_layout import BlockLayout

BLOCKS = 12
LAYERS = 3
KINDS = ("cpu", "mla", "halves", "interleaved", "heads_first", "cross_layer")


def _tensors(kind: str, blocks: int) -> list[torch.Tensor]:
    if kind == "cpu":  # keys and values of a head side by side
        return [torch.zeros(blocks, 2, 8, 16) for _ in range(LAYERS)]
    if kind == "mla":
        return [torch.zeros(blocks, 1, 16, 24, dtype=torch.bfloat16) for _ in range(LAYERS)]
    if kind == "halves":
        return [torch.zeros(2, blocks, 8, 2, 4, dtype=torch.float16) for _ in range(LAYERS)]
    if kind == "interleaved":
        return [torch.zeros(blocks, 2, 8, 2, 4, dtype=torch.float16) for _ in range(LAYERS)]
    if kind == "heads_first":  # tokens and heads change places in memory
        return [torch.zeros(blocks, 2, 2, 8, 4, dtype=torch.float16).transpose(2, 3) for _ in range(LAYERS)]
    whole = torch.zeros(blocks, LAYERS, 2, 8, 2, 4, dtype=torch.int8)
    return [whole[:, layer] for layer in range(LAYERS)]


def filled(kind: str, *, blocks: int = BLOCKS, seed: int = 1) -> dict[str, torch.Tensor]:
    """Tensors of random bytes."""
    draw = torch.Generator().manual_seed(seed)
    caches = {f"l{layer}": tensor for layer, tensor in enumerate(_tensors(kind, blocks))}
    for tensor in caches.values():
        values = torch.randint(-100, 100, tensor.shape, generator=draw)
        tensor.copy_(values.to(tensor.dtype))
    return caches


def layout_of(
    kind: str, caches: Mapping[str, torch.Tensor], *, blocks: int = BLOCKS, **changes: Any
) -> BlockLayout:
    """The layout, which must be understood."""
    terms = {"block_tokens": 8, "attention_name": "tests", "isa": "avx512", "layer_order": list(caches)}
    found = BlockLayout.of(caches, num_blocks=blocks, **{**terms, **changes})
    assert isinstance(found, BlockLayout), found
    return found


def page_of(
    kind: str, caches: Mapping[str, torch.Tensor], block_ids: Sequence[int], *, layers: int | None = None
) -> bytes:
    """The bytes of a page, taken by indexing: layer by layer, run by run, block by block."""
    parts = []
    for tensor in list(caches.values())[:layers]:
        if kind == "halves":
            parts += [tensor[half, block] for half in range(2) for block in block_ids]
        elif kind == "heads_first":
            parts += [tensor[block].transpose(1, 2) for block in block_ids]
        else:
            parts += [tensor[block] for block in block_ids]
    return b"".join(bytes(part.contiguous().view(torch.uint8).numpy().tobytes()) for part in parts)
