"""Copies between pages and blocks on an accelerator: through pinned memory and a stream of their own, layer by layer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch

from cache_l2._native import copy_bytes
from inference_worker.buffers import PageSource
from inference_worker.connectors.vllm.block_copies import (
    LayerRuns,
    LayerSpans,
    blocks_per_page,
    checked_ids,
)
from inference_worker.connectors.vllm.plan import IN_PLACE
from kv_types.engine_limits import STAGING_BYTES_MAX
from kv_types.errors import BufferMismatchError


class DeviceBlocks:
    """Blocks that the processor can't reach. Thread-safe; each call is over when the bytes are in place.

    It begins when all is done that the engine's stream was given before: that of the thread that made this, or that called
    `follow_engine` last. Engines change their stream after they have registered their blocks, once they capture graphs.
    """

    def __init__(
        self,
        layers: Sequence[LayerRuns],
        physical: Sequence[torch.Tensor],
        *,
        num_blocks: int,
        device: torch.device,
    ) -> None:
        """`physical`: each layer's blocks as bytes, [blocks, runs…, bytes of a run]."""
        self._spans = LayerSpans(layers)
        self._physical = physical
        self._num_blocks = num_blocks
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._engine: Any = None
        self.follow_engine()
        make_stream: Any = torch.cuda.Stream
        self._stream: Any = make_stream(device=device) if self._is_cuda else None
        self._lock = threading.Lock()
        self._staging: torch.Tensor | None = None

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self._spans.bytes_per_block

    def follow_engine(self) -> None:
        """The engine's stream is the one that the calling thread has now."""
        if self._is_cuda:
            self._engine = torch.cuda.current_stream(self._device)

    def scatter(
        self, page_views: Sequence[memoryview], block_ids: Sequence[int], *, layers: range | None = None
    ) -> None:
        """Copy pages into blocks."""
        blocks = blocks_per_page(block_ids, len(page_views))
        begin, end = self._spans.of(layers, blocks_per_page=blocks)
        self._check(page_views, blocks)
        chosen = range(len(self._physical)) if layers is None else layers
        for first, pages in self._batches(len(page_views), end - begin):
            with self._staged(pages, end - begin) as staging:
                for page in range(pages):
                    copy_bytes(staging[page].numpy(), page_views[first + page][begin:end])
                with self._on_stream():
                    ids = self._ids(block_ids[first * blocks : (first + pages) * blocks], may_skip=True)
                    wanted = ids != IN_PLACE
                    moved = staging.to(self._device, non_blocking=True)
                    for layer, part_of_page in self._parts(moved, chosen, blocks, begin):
                        target = self._physical[layer]
                        rows = part_of_page.reshape(len(ids), *target.shape[1:])
                        target.index_copy_(0, ids[wanted], rows[wanted])

    def gather(self, block_ids: Sequence[int], page_views: Sequence[memoryview]) -> None:
        """Copy blocks into pages."""
        blocks = blocks_per_page(block_ids, len(page_views))
        _, end = self._spans.of(None, blocks_per_page=blocks)
        self._check(page_views, blocks)
        for first, pages in self._batches(len(page_views), end):
            with self._staged(pages, end) as staging:
                with self._on_stream():
                    ids = self._ids(block_ids[first * blocks : (first + pages) * blocks])
                    moved = torch.empty((pages, end), dtype=torch.uint8, device=self._device)
                    for layer, part_of_page in self._parts(moved, range(len(self._physical)), blocks, 0):
                        taken = self._physical[layer].index_select(0, ids)
                        part_of_page.copy_(taken.reshape(part_of_page.shape))
                    staging.copy_(moved, non_blocking=True)
                for page in range(pages):
                    copy_bytes(page_views[first + page], staging[page].numpy())

    def sources(self, block_ids: Sequence[int], *, pages: int) -> list[PageSource]:
        """A copy of the blocks."""
        blocks = blocks_per_page(block_ids, pages)
        views: list[memoryview] = [memoryview(bytearray(blocks * self.bytes_per_block)) for _ in range(pages)]
        self.gather(block_ids, views)
        return [*views]

    def _parts(
        self, pages: torch.Tensor, layers: range, blocks: int, begin: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Each layer with its part of the pages, as [pages, blocks of a page, runs, bytes of a run]."""
        for layer in layers:
            at, end = self._spans.of(range(layer, layer + 1), blocks_per_page=blocks)
            runs = prod(self._physical[layer].shape[1:-1])
            part = pages[:, at - begin : end - begin]
            yield layer, part.view(len(pages), runs, blocks, -1).transpose(1, 2)

    def _check(self, page_views: Sequence[memoryview], blocks: int) -> None:
        for view in page_views:
            if view.nbytes != blocks * self.bytes_per_block:
                raise BufferMismatchError(
                    f"a page of {blocks} blocks has {blocks * self.bytes_per_block} bytes; the buffer {view.nbytes}"
                )

    def _ids(self, block_ids: Sequence[int], *, may_skip: bool = False) -> torch.Tensor:
        return torch.from_numpy(checked_ids(block_ids, self._num_blocks, may_skip=may_skip)).to(self._device)

    @staticmethod
    def _batches(pages: int, page_bytes: int) -> Iterator[tuple[int, int]]:
        """(first page, pages) of which the staging memory holds all at once."""
        most = max(1, STAGING_BYTES_MAX // max(1, page_bytes))
        for first in range(0, pages, most):
            yield first, min(most, pages - first)

    @contextmanager
    def _staged(self, pages: int, page_bytes: int) -> Iterator[torch.Tensor]:
        """Pinned memory for these pages, whose copies are over when the block is left."""
        with self._lock:
            if self._staging is None or self._staging.numel() < pages * page_bytes:
                self._staging = torch.empty(pages * page_bytes, dtype=torch.uint8, pin_memory=self._is_cuda)
            yield self._staging[: pages * page_bytes].view(pages, page_bytes)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Behind what the engine's stream was given, on a stream of our own, and over when the block is left."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(self._engine)
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()
