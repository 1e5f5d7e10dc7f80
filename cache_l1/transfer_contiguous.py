"""Gather and scatter between pages and an engine's contiguous cache, one tensor [heads, columns, width] a part of a layer.

Pages are rows of one tensor: a page's bytes are adjacent, as every other tier keeps them, and a part of one layer lies at the
same place in each. On the host all layers of all pages go in one native call, run by run; elsewhere one indexed copy a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.page_layout import PageLayout


class RunCopies(Protocol):
    """Copies of pages that lie in many runs of memory, without the GIL: what `cache_l2._native` has. Tiers of one height don't
    import one another, so whoever joins them hands it over.
    """

    def scattered_pages(self, addresses: Any, run_bytes: Any, *, owner: object) -> list[Any]:
        """Pages at addresses, a word of 64 bits for each page and run; `owner` keeps the memory."""
        ...

    def scatter_pages(self, pages: list[Any], sources: list[Any], *, begin: int, end: int) -> None:
        """Copy bytes [begin, end) of whole pages, one buffer each, into their runs."""
        ...

    def gather_pages(self, pages: list[Any], destinations: list[Any], *, begin: int, end: int) -> None:
        """The reverse."""
        ...


@dataclass(frozen=True, slots=True)
class PartOfPage:
    """One tensor of a page: bytes [begin, end), of shape [heads, page_tokens, width]."""

    begin: int
    end: int
    heads: int
    tokens: int
    width: int

    def of(self, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[n, heads, page_tokens, width] of pages [n, page_bytes], sharing their memory."""
        part = pages[:, self.begin : self.end].view(dtype)
        return part.view(len(pages), self.heads, self.tokens, self.width)


class ContiguousCopies:
    """Copies for pages of one layout whose parts are all of `dtype`."""

    def __init__(self, layout: PageLayout, dtype: torch.dtype, *, native: RunCopies | None = None) -> None:
        """Without `native` the host's memory is copied by torch, part by part, as any device's."""
        self.page_bytes = layout.page_bytes
        self.page_tokens = layout.page_tokens
        self.dtype = dtype
        self.parts = tuple(self._part(one.offset, one.shape) for one in layout.parts())
        is_whole = sum(one.end - one.begin for one in self.parts) == layout.page_bytes
        self._native = native if is_whole else None

    def _part(self, offset: int, shape: tuple[int, ...]) -> PartOfPage:
        heads, tokens, width = shape if len(shape) == 3 else (1, *shape)
        return PartOfPage(offset, offset + heads * tokens * width * self.dtype.itemsize, heads, tokens, width)

    def gather(
        self, pages: torch.Tensor, numbers: Sequence[int], targets: Sequence[torch.Tensor], *, column: int = 0
    ) -> None:
        """Copy rows `numbers` of `pages`, uint8 [n, page_bytes], in this order into the targets, one [heads, columns, width]
        a part, from a column on.

        Raises InvalidArgumentError for numbers out of range, BufferMismatchError for targets of other shapes.
        """
        self._check(pages, numbers, targets, column)
        if not len(numbers):
            return
        if self._native is not None and _are_runs([pages, *targets]):
            runs = self._runs(targets, len(numbers), column)
            self._native.scatter_pages(runs, _rows(pages, numbers), begin=0, end=self.page_bytes)
            return
        chosen = _chosen(pages, numbers)
        for part, target in zip(self.parts, targets, strict=True):
            source = part.of(pages, self.dtype)
            taken = source[chosen] if isinstance(chosen, slice) else source.index_select(0, chosen)
            self._columns(target, part, len(numbers), column).copy_(taken)

    def scatter(
        self, sources: Sequence[torch.Tensor], pages: torch.Tensor, numbers: Sequence[int], *, column: int = 0
    ) -> None:
        """Copy whole pages out of the sources, from a column on, into rows `numbers` of `pages`: the reverse of `gather`, which
        see. Numbers must differ.
        """
        self._check(pages, numbers, sources, column)
        if not len(numbers):
            return
        if self._native is not None and _are_runs([pages, *sources]):
            if len(numbers) > 1:
                self._scatter_heads(self._native, sources, pages, numbers, column)
                return
            runs = self._runs(sources, len(numbers), column)
            self._native.gather_pages(runs, _rows(pages, numbers), begin=0, end=self.page_bytes)
            return
        chosen = _chosen(pages, numbers)
        for part, source in zip(self.parts, sources, strict=True):
            taken = self._columns(source, part, len(numbers), column)
            target = part.of(pages, self.dtype)
            if isinstance(chosen, slice):
                target[chosen].copy_(taken)
            else:
                target.index_copy_(0, chosen, taken)

    def copy_part_of_page(
        self,
        pages: torch.Tensor,
        number: int,
        targets: Sequence[torch.Tensor],
        *,
        column: int,
        tokens: int,
    ) -> None:
        """Copy the first tokens of one page into the targets. Raises as `gather` does."""
        if not 0 <= tokens <= self.page_tokens:
            raise InvalidArgumentError(f"{tokens} tokens of a page of {self.page_tokens}")
        self._check(pages, [number], targets, column, tokens=tokens)
        for part, target in zip(self.parts, targets, strict=True):
            target[:, column : column + tokens] = part.of(pages, self.dtype)[number, :, :tokens]

    def _columns(self, tensor: torch.Tensor, part: PartOfPage, pages: int, column: int) -> torch.Tensor:
        """[pages, heads, page_tokens, width] of a contiguous cache, sharing its memory."""
        taken = tensor[:, column : column + pages * part.tokens]
        return taken.view(part.heads, pages, part.tokens, part.width).transpose(0, 1)

    def _runs(self, tensors: Sequence[torch.Tensor], pages: int, column: int) -> list[Any]:
        """The columns of each page as runs of memory, one a part and head, in the page's order."""
        starts: list[int] = []
        steps: list[int] = []
        for part, tensor in zip(self.parts, tensors, strict=True):
            item = self.dtype.itemsize
            first = tensor.data_ptr() + column * part.width * item
            for head in range(part.heads):
                starts.append(first + head * tensor.stride(0) * item)
                steps.append(part.tokens * part.width * item)
        sizes = np.array(steps, dtype=np.uint64)
        places = np.array(starts, dtype=np.uint64)[None] + np.arange(pages, dtype=np.uint64)[:, None] * sizes
        assert self._native is not None, "asked only where there is one"
        return self._native.scattered_pages(np.ascontiguousarray(places), sizes, owner=tensors)

    def _scatter_heads(
        self,
        native: RunCopies,
        sources: Sequence[torch.Tensor],
        pages: torch.Tensor,
        numbers: Sequence[int],
        column: int,
    ) -> None:
        """Head by head: one head's columns, which are adjacent over all pages, go to its place in each.

        Page by page a copy would read a short run of each head of each layer by turns, more streams than a processor fetches
        ahead; to write by turns costs less. `stratakv bench l1` measures it.
        """
        rows = np.array(numbers, dtype=np.uint64) * np.uint64(pages.stride(0))
        by_run: dict[int, tuple[list[int], list[Any]]] = {}
        for part, source in zip(self.parts, sources, strict=True):
            run = part.tokens * part.width * self.dtype.itemsize
            places, heads = by_run.setdefault(run, ([], []))
            columns = (
                source.detach()[:, column : column + len(numbers) * part.tokens].view(torch.uint8).numpy()
            )
            for head in range(part.heads):
                places.append(pages.data_ptr() + part.begin + head * run)
                heads.append(columns[head].data)
        for run, (places, heads) in by_run.items():
            addresses = np.array(places, dtype=np.uint64)[:, None] + rows[None]
            sizes = np.full(len(numbers), run, dtype=np.uint64)
            targets = native.scattered_pages(np.ascontiguousarray(addresses), sizes, owner=pages)
            native.scatter_pages(targets, heads, begin=0, end=run * len(numbers))

    def _check(
        self,
        pages: torch.Tensor,
        numbers: Sequence[int],
        tensors: Sequence[torch.Tensor],
        column: int,
        *,
        tokens: int | None = None,
    ) -> None:
        if pages.dtype != torch.uint8 or pages.dim() != 2 or pages.shape[1] != self.page_bytes:
            raise BufferMismatchError(
                f"pages are uint8 [n, {self.page_bytes}]; got {pages.dtype} {tuple(pages.shape)}"
            )
        if len(numbers) and not 0 <= min(numbers) <= max(numbers) < len(pages):
            raise InvalidArgumentError(f"pages {min(numbers)} to {max(numbers)} of {len(pages)}")
        if len(tensors) != len(self.parts):
            raise BufferMismatchError(f"{len(tensors)} tensors for {len(self.parts)} parts; give one a part")
        end = column + (len(numbers) * self.page_tokens if tokens is None else tokens)
        for part, tensor in zip(self.parts, tensors, strict=True):
            is_alike = tensor.dim() == 3 and (tensor.shape[0], tensor.shape[2]) == (part.heads, part.width)
            if not is_alike or tensor.dtype != self.dtype or not 0 <= column <= end <= tensor.shape[1]:
                raise BufferMismatchError(
                    f"columns {column} to {end} of {part.heads} heads of {part.width} numbers ({self.dtype}) are needed; "
                    f"the tensor is {tensor.dtype} {tuple(tensor.shape)}"
                )


def _are_runs(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the processor can copy them, run by run: in its memory, and columns of a head adjacent."""
    return all(
        one.device.type == "cpu" and one.stride(-1) == 1 and (one.dim() < 3 or one.stride(1) == one.shape[2])
        for one in tensors
    )


def _rows(pages: torch.Tensor, numbers: Sequence[int]) -> list[Any]:
    memory = pages.numpy()
    return [memory[number].data for number in numbers]


def _chosen(pages: torch.Tensor, numbers: Sequence[int]) -> torch.Tensor | slice:
    """Adjacent pages as a slice, which needs no index on the device."""
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[0] + len(numbers))
    return torch.tensor(numbers, dtype=torch.int64).to(pages.device)
