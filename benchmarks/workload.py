"""What the measurements move: a namespace with pages of a wanted size, random chains, and cold buffers."""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, Rope, Weights
from kv_types.page_keys import page_keys

PAGE_TOKENS = 64
LAYER_BYTES = 2 * PAGE_TOKENS * 64 * 2
"""Key and value of one layer: one head of 64 fp16 numbers a token."""

STRIDE = 7
"""Batches between two that are used one after the other."""

PARTS = 6
"""Into which a ring is cut: what runs in one round works in parts of its own, or it would find what another one left."""


def pages_of(batch: Bytes, page_bytes: int) -> list[Bytes]:
    """A batch, uint8 [n × page_bytes], as views of its n pages."""
    return list(batch.reshape(-1, page_bytes))


def place(number: int, part: int, count: int) -> int:
    """Where round `number` works in a ring of `count` batches; part 0 to PARTS - 1."""
    return (number * STRIDE + count * part // PARTS) % count


Bytes = npt.NDArray[np.uint8]


def namespace_of(page_bytes: int) -> Namespace:
    """A namespace whose pages have exactly `page_bytes` (a multiple of 16 KiB)."""
    layers, rest = divmod(page_bytes, LAYER_BYTES)
    if rest or not layers:
        raise ValueError(f"page_bytes must be a multiple of {LAYER_BYTES}; got {page_bytes}")
    return Namespace(
        model=f"bench-{page_bytes}",
        weights=Weights(digest=hashlib.blake2b(b"bench", digest_size=32).digest()),
        adapter=None,
        kv_dtype=KvDtype.FP16,
        quantisation=None,
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=layers, layer_begin=0, layer_end=layers,
            kv_heads_total=1, head_begin=0, head_end=1, head_dim=64,
        ),
        rope=Rope(kind="default", theta=10_000.0),
        page_tokens=PAGE_TOKENS,
    )  # fmt: skip


@dataclass
class Chains:
    """Fresh random chains, reproducible from a seed."""

    namespace: Namespace
    seed: int = 7

    def __post_init__(self) -> None:
        """Start the generator."""
        self._random = np.random.default_rng(self.seed)

    def draw(self, pages: int) -> bytes:
        """The packed keys of a chain that nobody has seen before."""
        tokens = self._random.integers(0, 150_000, pages * PAGE_TOKENS, dtype=np.uint32)
        return page_keys(self.namespace.id, tokens, page_tokens=PAGE_TOKENS)


class ColdBuffers:
    """A ring of prefaulted batches, larger than the last-level cache, so that each use finds cold memory.

    `shared`: memory of the kind that the arena's pages lie in (a shared mapping, small pages unless the machine says
    otherwise) instead of numpy's own.
    """

    def __init__(self, *, batch_bytes: int, ring_bytes: int, shared: bool = False) -> None:
        self.count = max(2, ring_bytes // batch_bytes)
        if shared:
            mapping = mmap.mmap(-1, self.count * batch_bytes)
            memory = np.frombuffer(mapping, dtype=np.uint8).reshape(self.count, batch_bytes)
            memory[:] = 1
        else:
            memory = np.ones((self.count, batch_bytes), dtype=np.uint8)
        self._memory: Bytes = memory

    def batch(self, number: int) -> Bytes:
        """The batch of round `number`: uint8 [batch_bytes]."""
        row: Bytes = self._memory[number % self.count]
        return row
