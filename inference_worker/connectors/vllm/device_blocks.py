"""Copies between pages and blocks on an accelerator: through pinned memory and side streams, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from cache_l1.transfer import Part, Transfers, batches
from cache_l1.transfer_registration import CudaRuntime, RegisteredMemory, host_tensor
from cache_l1.transfer_streams import Side, side_of
from cache_l2._native import copy_bytes
from inference_worker.buffers import PageSource
from inference_worker.connectors.vllm.block_copies import (
    LayerRuns,
    LayerSpans,
    blocks_per_page,
    checked_ids,
)
from inference_worker.connectors.vllm.plan import IN_PLACE
from kv_types.errors import BufferMismatchError

BlockIds = npt.NDArray[np.int64]


class DeviceBlocks:
    """Blocks that the processor can't reach. Thread-safe; each call is over when the bytes are in place.

    It begins when all is done that the engine's streams were given before: that of the thread that calls, and that of the thread
    that made this or called `follow_engine` last. Engines change their stream after they have registered their blocks, once
    they capture graphs.
    """

    def __init__(
        self,
        layers: Sequence[LayerRuns],
        physical: Sequence[torch.Tensor],
        *,
        num_blocks: int,
        device: torch.device,
        make_side: Callable[[torch.device], Side] = side_of,
        registered: RegisteredMemory | None = None,
    ) -> None:
        """`physical`: each layer's blocks as bytes, [blocks, runs…, bytes of a run]. `registered`: host memory that the device
        reads by itself; pages that lie elsewhere are staged.
        """
        self._spans = LayerSpans(layers)
        self._physical = physical
        self._num_blocks = num_blocks
        self._device = device
        self._transfers = Transfers(device, make_side=make_side)
        self._registered = registered or RegisteredMemory(CudaRuntime(device))

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self._spans.bytes_per_block

    def follow_engine(self) -> None:
        """The engine's stream is the one that the calling thread has now."""
        self._transfers.follow_engine()

    def scatter(
        self, page_views: Sequence[memoryview], block_ids: Sequence[int], *, layers: range | None = None
    ) -> None:
        """Copy pages into blocks."""
        blocks = blocks_per_page(block_ids, len(page_views))
        begin, end = self._spans.of(layers, blocks_per_page=blocks)
        self._check(page_views, blocks)
        ids = checked_ids(block_ids, self._num_blocks, may_skip=True).reshape(-1, blocks)
        chosen = range(len(self._physical)) if layers is None else layers

        def fill(pages: range, staging: torch.Tensor) -> None:
            for page, room in zip(pages, staging.view(len(pages), end - begin), strict=True):
                copy_bytes(room.numpy(), page_views[page][begin:end])

        def move(pages: range, staging: torch.Tensor) -> None:
            moved = staging.view(len(pages), end - begin).to(self._device, non_blocking=True)
            place(pages, moved)

        def move_straight(pages: range) -> None:
            moved = torch.empty((len(pages), end - begin), dtype=torch.uint8, device=self._device)
            for page, room in zip(pages, moved, strict=True):
                room.copy_(host_tensor(page_views[page][begin:end]), non_blocking=True)
            place(pages, moved)

        def place(pages: range, moved: torch.Tensor) -> None:
            blocks_of_pages = self._on_device(ids[pages.start : pages.stop])
            wanted = blocks_of_pages != IN_PLACE
            for layer, part_of_page in self._parts(moved, chosen, blocks, begin):
                target = self._physical[layer]
                rows = part_of_page.reshape(len(blocks_of_pages), *target.shape[1:])
                target.index_copy_(0, blocks_of_pages[wanted], rows[wanted])

        with self._registered.held(page_views) as is_reached:
            if is_reached:
                for turn in batches(len(page_views), end - begin):
                    loaded = self._transfers.load_straight(partial(move_straight, turn))
            else:
                loaded = self._transfers.load(_turns(len(page_views), end - begin, host=fill, device=move))
            loaded.synchronize()

    def gather(self, block_ids: Sequence[int], page_views: Sequence[memoryview]) -> None:
        """Copy blocks into pages."""
        blocks = blocks_per_page(block_ids, len(page_views))
        _, end = self._spans.of(None, blocks_per_page=blocks)
        self._check(page_views, blocks)
        ids = checked_ids(block_ids, self._num_blocks).reshape(-1, blocks)

        def move(pages: range, staging: torch.Tensor) -> None:
            blocks_of_pages = self._on_device(ids[pages.start : pages.stop])
            moved = torch.empty((len(pages), end), dtype=torch.uint8, device=self._device)
            for layer, part_of_page in self._parts(moved, range(len(self._physical)), blocks, 0):
                taken = self._physical[layer].index_select(0, blocks_of_pages)
                part_of_page.copy_(taken.reshape(part_of_page.shape))
            staging.view(len(pages), end).copy_(moved, non_blocking=True)

        def empty(pages: range, staging: torch.Tensor) -> None:
            for page, brought in zip(pages, staging.view(len(pages), end), strict=True):
                copy_bytes(page_views[page], brought.numpy())

        self._transfers.store(_turns(len(page_views), end, host=empty, device=move))

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

    def _on_device(self, ids: BlockIds) -> torch.Tensor:
        return torch.from_numpy(ids.reshape(-1)).to(self._device)


def _turns(
    pages: int,
    page_bytes: int,
    *,
    host: Callable[[range, torch.Tensor], None],
    device: Callable[[range, torch.Tensor], None],
) -> Iterator[Part]:
    for turn in batches(pages, page_bytes):
        yield Part(len(turn) * page_bytes, partial(host, turn), partial(device, turn))
