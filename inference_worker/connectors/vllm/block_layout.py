"""How one block of the engine lies in its registered KV tensors, found from shapes and strides, and named for the namespace.

A page is one or more whole blocks. Its bytes: for each layer in the model's order, for each run of memory that a block has
in that layer, for each block of the page, the run's bytes as they lie there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import prod

import torch

from cache_l1.transfer_registration import RegisteredMemory
from inference_worker.buffers import PageSource
from inference_worker.connectors.vllm.block_copies import BlockCopies, HostBlocks, LayerRuns
from inference_worker.connectors.vllm.device_blocks import DeviceBlocks
from kv_types.engine_limits import BLOCK_RUNS_PER_LAYER_MAX
from kv_types.limits import LAYERS_MAX, NAME_BYTES_MAX
from kv_types.namespace import Uncacheable, UncacheableReason
from kv_types.numbers import check_integer


class _NotUnderstoodError(Exception):
    """Why a tensor is none that whole blocks can be taken from; never leaves this module."""


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One dimension of a layer's tensor: where it stands in the shape (−1: blocks of the kernel within one), size, stride."""

    place: int
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer: what a block of it is, apart from where the tensor lies."""

    tensor: torch.Tensor
    block_stride: int
    outer: tuple[_Dimension, ...]
    inner: tuple[_Dimension, ...]

    @property
    def run_elements(self) -> int:
        return prod(dimension.size for dimension in self.inner)

    def runs(self) -> LayerRuns:
        """Addresses, in bytes."""
        item = self.tensor.element_size()
        steps = [[index * one.stride for index in range(one.size)] for one in self.outer]
        return LayerRuns(
            base=self.tensor.data_ptr(),
            block_stride=self.block_stride * item,
            offsets=tuple(sum(step) * item for step in product(*steps)),
            run_bytes=self.run_elements * item,
        )

    def physical(self, num_blocks: int) -> torch.Tensor:
        """The same memory as bytes: [blocks, runs…, bytes of a run]."""
        sizes = (num_blocks, *(one.size for one in self.outer), self.run_elements)
        strides = (self.block_stride, *(one.stride for one in self.outer), 1)
        whole = self.tensor.as_strided(sizes, strides, self.tensor.storage_offset())
        return whole.view(torch.uint8)

    def text(self) -> str:
        """Numbers of a block, and the order in which they lie; how many blocks there are says nothing of it."""
        order = ",".join(f"{one.place}:{one.size}" for one in (*self.outer, *self.inner) if one.size > 1)
        return f"{str(self.tensor.dtype).removeprefix('torch.')}[{len(self.outer)}|{order}]"


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Copies whole blocks between pages and the engine's tensors, all layers or some. `name`: the namespace's `layout`."""

    name: str
    block_tokens: int
    num_blocks: int
    layer_order: tuple[str, ...]
    copies: BlockCopies

    @classmethod
    def of(
        cls,
        kv_caches: Mapping[str, torch.Tensor],
        *,
        num_blocks: int,
        block_tokens: int,
        attention_name: str,
        isa: str,
        layer_order: Sequence[str],
        registered: RegisteredMemory | None = None,
    ) -> BlockLayout | Uncacheable:
        """Understand the tensors, or say why not. `layer_order`: all of their names in the model's order. `registered`: host
        memory that their device reads by itself.

        A tensor is [num_blocks, …] or [2, num_blocks, …], or has a multiple of blocks, of which so many that follow one
        another are one. Raises InvalidArgumentError for numbers out of range.
        """
        check_integer(num_blocks, "num_blocks", low=1, high=2**31 - 1)
        check_integer(block_tokens, "block_tokens", low=1, high=2**31 - 1)
        try:
            layers = _layers(kv_caches, layer_order, num_blocks)
            copies = _copies(layers, num_blocks, registered)
        except _NotUnderstoodError as error:
            return Uncacheable(UncacheableReason.GEOMETRY_UNKNOWN, str(error))
        groups = [(text, len(list(same))) for text, same in groupby(one.text() for one in layers)]
        shapes = "+".join(f"{count}x{text}" for text, count in groups)
        name = f"vllm-blocks/1;{shapes};block={block_tokens};attention={attention_name};isa={isa}"
        return cls(_bounded(name), block_tokens, num_blocks, tuple(layer_order), copies)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.copies.bytes_per_block

    @property
    def layers(self) -> int:
        """Layers of a page."""
        return len(self.layer_order)

    def page_bytes(self, blocks_per_page: int) -> int:
        """Bytes of a page of so many blocks."""
        return blocks_per_page * self.bytes_per_block

    def scatter(
        self, page_views: Sequence[memoryview], block_ids: Sequence[int], *, layers: range | None = None
    ) -> None:
        """Copy pages, or their part of some adjacent layers, into blocks: the ids of the first page's, then the second's…

        Raises InvalidArgumentError for ids out of range, and where ids or bytes don't fit the pages.
        """
        self.copies.scatter(page_views, block_ids, layers=layers)

    def gather(self, block_ids: Sequence[int], page_views: Sequence[memoryview]) -> None:
        """Copy blocks into page buffers; the reverse of `scatter`, which see."""
        self.copies.gather(block_ids, page_views)

    def sources(self, block_ids: Sequence[int], *, pages: int) -> list[PageSource]:
        """The blocks' bytes as sources of a put: where they lie if that is host memory, else a copy."""
        return self.copies.sources(block_ids, pages=pages)

    def follow_engine(self) -> None:
        """Called by the engine's thread at each step: what is copied from now on comes behind what that has begun."""
        self.copies.follow_engine()


def _layers(
    kv_caches: Mapping[str, torch.Tensor], layer_order: Sequence[str], num_blocks: int
) -> list[_Layer]:
    if sorted(layer_order) != sorted(kv_caches):
        odd = sorted(set(layer_order) ^ set(kv_caches))
        raise _NotUnderstoodError(f"the layers in order are not the registered ones: {odd[:4]}")
    if not 0 < len(layer_order) <= LAYERS_MAX:
        raise _NotUnderstoodError(
            f"{len(layer_order)} layers are registered; 1 to {LAYERS_MAX} are understood"
        )
    layers = []
    for name in layer_order:
        try:
            layers.append(_layer(kv_caches[name], num_blocks))
        except _NotUnderstoodError as error:
            raise _NotUnderstoodError(f"KV tensor of {name}: {error}") from None
    if len({one.tensor.device for one in layers}) != 1:
        raise _NotUnderstoodError("the layers' KV lies on several devices")
    return layers


def _layer(tensor: object, num_blocks: int) -> _Layer:
    if not isinstance(tensor, torch.Tensor):
        raise _NotUnderstoodError(f"a {type(tensor).__name__} is no tensor of blocks")
    place = _block_place(tuple(tensor.shape), num_blocks)
    kernel_blocks, block_stride = tensor.shape[place] // num_blocks, tensor.stride(place)
    rest = [_Dimension(at, tensor.shape[at], tensor.stride(at)) for at in range(tensor.ndim) if at != place]
    rest.append(_Dimension(-1, kernel_blocks, block_stride))
    outer, inner = _in_memory_order([one for one in rest if one.size > 1])
    layer = _Layer(tensor, block_stride * kernel_blocks, outer, inner)
    if num_blocks > 1 and layer.block_stride < layer.run_elements:
        raise _NotUnderstoodError(f"blocks overlap: shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    if prod(one.size for one in outer) > BLOCK_RUNS_PER_LAYER_MAX:
        raise _NotUnderstoodError(
            f"a block lies in more than {BLOCK_RUNS_PER_LAYER_MAX} pieces: shape {tuple(tensor.shape)}, "
            f"strides {tensor.stride()}"
        )
    return layer


def _block_place(shape: tuple[int, ...], num_blocks: int) -> int:
    """Which dimension counts blocks."""
    is_counted = [size > 0 and size % num_blocks == 0 for size in shape[:2]]
    if len(shape) < 3 or 0 in shape:
        raise _NotUnderstoodError(f"shape {shape} is none of a tensor of blocks")
    if shape[0] == 2 and is_counted[1]:
        if is_counted[0]:
            raise _NotUnderstoodError(
                f"shape {shape} does not tell whether its first or second dimension counts blocks"
            )
        return 1
    if is_counted[0]:
        return 0
    raise _NotUnderstoodError(f"no dimension of shape {shape} counts {num_blocks} blocks")


def _in_memory_order(dimensions: list[_Dimension]) -> tuple[tuple[_Dimension, ...], tuple[_Dimension, ...]]:
    """The dimensions that lie apart, and those that are one run, each from the widest stride on."""
    dimensions = sorted(dimensions, key=lambda one: one.stride)
    count, expected = 0, 1
    while count < len(dimensions) and dimensions[count].stride == expected:
        expected *= dimensions[count].size
        count += 1
    for narrow, wide in zip(dimensions[count:], dimensions[count + 1 :], strict=False):
        if wide.stride < narrow.stride * narrow.size:
            raise _NotUnderstoodError("its numbers overlap")
    if count < len(dimensions) and dimensions[count].stride < expected:
        raise _NotUnderstoodError("its numbers overlap")
    return tuple(reversed(dimensions[count:])), tuple(reversed(dimensions[:count]))


def _copies(layers: Sequence[_Layer], num_blocks: int, registered: RegisteredMemory | None) -> BlockCopies:
    runs = [one.runs() for one in layers]
    _check_apart(runs, num_blocks)
    device = layers[0].tensor.device
    if device.type == "cpu":
        return HostBlocks(runs, num_blocks=num_blocks, owner=[one.tensor for one in layers])
    return DeviceBlocks(
        runs,
        [one.physical(num_blocks) for one in layers],
        num_blocks=num_blocks,
        device=device,
        registered=registered,
    )


def _check_apart(layers: Sequence[LayerRuns], num_blocks: int) -> None:
    """No byte belongs to two blocks, runs or layers: what is written for one would be another's."""
    runs = [(one.base + offset, one.run_bytes, one.block_stride) for one in layers for offset in one.offsets]
    for at, (place, size, stride) in enumerate(runs):
        for other_place, other_size, other_stride in runs[at + 1 :]:
            (low, low_size, low_stride), (high, high_size, _) = sorted(
                [(place, size, stride), (other_place, other_size, other_stride)]
            )
            if high >= low + low_stride * (num_blocks - 1) + low_size:
                continue  # one is wholly behind the other
            within = (high - low) % low_stride if low_stride else 0
            if stride != other_stride or within < low_size or within + high_size > low_stride:
                raise _NotUnderstoodError("two layers' blocks overlap in memory")


def _bounded(name: str) -> str:
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return f"vllm-blocks/1;{hashlib.blake2b(name.encode(), digest_size=32).hexdigest()}"
