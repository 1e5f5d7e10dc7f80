"""Copies between pages and the engine's blocks in host memory: straight, without the GIL while bytes move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cache_l2._native import ScatteredPage, gather_pages, scatter_pages, scattered_pages
from inference_worker.buffers import PageSource
from inference_worker.connectors.vllm.plan import IN_PLACE
from kv_types.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """Where the blocks of one layer lie, in bytes: block b's runs begin at base + b · block_stride + each offset."""

    base: int
    block_stride: int
    offsets: tuple[int, ...]
    run_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this layer."""
        return len(self.offsets) * self.run_bytes


class BlockCopies(Protocol):
    """How bytes get from pages into blocks and back. See BlockLayout."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        ...

    def scatter(
        self, page_views: Sequence[memoryview], block_ids: Sequence[int], *, layers: range | None = None
    ) -> None:
        """Copy pages into blocks."""
        ...

    def gather(self, block_ids: Sequence[int], page_views: Sequence[memoryview]) -> None:
        """Copy blocks into pages."""
        ...

    def sources(self, block_ids: Sequence[int], *, pages: int) -> list[PageSource]:
        """What a put of these blocks reads."""
        ...

    def follow_engine(self) -> None:
        """Copies begun from now on come behind what the calling thread, the engine's, has given its accelerator."""
        ...


class LayerSpans:
    """Which bytes of a block's part of a page belong to which layers."""

    def __init__(self, layers: Sequence[LayerRuns]) -> None:
        self._ends = [0]
        for one in layers:
            self._ends.append(self._ends[-1] + one.block_bytes)

    @property
    def bytes_per_block(self) -> int:
        """All layers'."""
        return self._ends[-1]

    def of(self, layers: range | None, *, blocks_per_page: int) -> tuple[int, int]:
        """Begin and end within a page. Raises InvalidArgumentError for what are no adjacent layers of the model."""
        if layers is None:
            return 0, self._ends[-1] * blocks_per_page
        if layers.step != 1 or not 0 <= layers.start <= layers.stop < len(self._ends):
            raise InvalidArgumentError(f"{layers} are no adjacent layers of {len(self._ends) - 1}")
        return self._ends[layers.start] * blocks_per_page, self._ends[layers.stop] * blocks_per_page


class HostBlocks:
    """Blocks in memory that the processor copies itself. Thread-safe."""

    def __init__(self, layers: Sequence[LayerRuns], *, num_blocks: int, owner: object) -> None:
        """`owner` keeps the memory."""
        self._spans = LayerSpans(layers)
        self._num_blocks = num_blocks
        self._owner = owner
        runs = [
            (one.base + offset, one.block_stride, one.run_bytes) for one in layers for offset in one.offsets
        ]
        columns = np.array(runs, dtype=np.uint64).T
        self._places, self._strides, self._run_bytes = (np.ascontiguousarray(one) for one in columns)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self._spans.bytes_per_block

    def scatter(
        self, page_views: Sequence[memoryview], block_ids: Sequence[int], *, layers: range | None = None
    ) -> None:
        """Copy pages into blocks."""
        blocks = blocks_per_page(block_ids, len(page_views))
        begin, end = self._spans.of(layers, blocks_per_page=blocks)
        _copy(scatter_pages, self._pages(block_ids, blocks, may_skip=True), page_views, begin, end)

    def gather(self, block_ids: Sequence[int], page_views: Sequence[memoryview]) -> None:
        """Copy blocks into pages."""
        blocks = blocks_per_page(block_ids, len(page_views))
        begin, end = self._spans.of(None, blocks_per_page=blocks)
        _copy(gather_pages, self._pages(block_ids, blocks), page_views, begin, end)

    def sources(self, block_ids: Sequence[int], *, pages: int) -> list[PageSource]:
        """The blocks themselves: a put copies them straight to where they are kept."""
        return [*self._pages(block_ids, blocks_per_page(block_ids, pages))]

    def follow_engine(self) -> None:
        """Nothing: the engine's thread has written what it has given out."""

    def _pages(self, block_ids: Sequence[int], blocks: int, *, may_skip: bool = False) -> list[ScatteredPage]:
        if not block_ids:
            return []
        ids = checked_ids(block_ids, self._num_blocks, may_skip=may_skip).reshape(-1, 1, blocks)
        addresses = self._places[None, :, None] + ids.astype(np.uint64) * self._strides[None, :, None]
        if may_skip:
            addresses = np.where(ids == IN_PLACE, np.uint64(0), addresses)
        return scattered_pages(
            np.ascontiguousarray(addresses), np.repeat(self._run_bytes, blocks), owner=self._owner
        )


def blocks_per_page(block_ids: Sequence[int], pages: int) -> int:
    """How many blocks each page has. Raises InvalidArgumentError where that is no whole number."""
    if not pages and not block_ids:
        return 1
    if not pages or not block_ids or len(block_ids) % pages:
        raise InvalidArgumentError(f"{len(block_ids)} blocks are no whole number for each of {pages} pages")
    return len(block_ids) // pages


def checked_ids(
    block_ids: Sequence[int], num_blocks: int, *, may_skip: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The ids as an array: nothing else keeps a copy within the engine's memory. Raises InvalidArgumentError.

    `may_skip`: IN_PLACE stands for blocks that are not to be written.
    """
    ids = np.array(block_ids, dtype=np.int64)
    least = IN_PLACE if may_skip else 0
    if ids.size and (ids.min() < least or ids.max() >= num_blocks):
        raise InvalidArgumentError(f"block ids are 0 to {num_blocks - 1}; got {ids.min()} to {ids.max()}")
    return ids


def _copy(
    copy: object, pages: list[ScatteredPage], views: Sequence[memoryview], begin: int, end: int
) -> None:
    try:
        copy(pages, [*views], begin=begin, end=end)  # type: ignore[operator]
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
