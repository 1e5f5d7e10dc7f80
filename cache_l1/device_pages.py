"""DevicePages: the bytes of L1's pages, as one torch tensor on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.limits import PAGE_BYTES_MAX
from kv_types.namespace import KvDtype
from kv_types.page_layout import PageLayout, PagePart

TORCH_DTYPES: dict[KvDtype, torch.dtype] = {
    KvDtype.FP32: torch.float32,
    KvDtype.FP16: torch.float16,
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP8_E4M3: torch.float8_e4m3fn,
    KvDtype.FP8_E5M2: torch.float8_e5m2,
    KvDtype.INT8: torch.int8,
}


class DevicePages:
    """`capacity` pages of `page_bytes` raw bytes. Who may touch which page is the caller's to know."""

    def __init__(self, *, capacity: int, page_bytes: int, device: str | torch.device = "cpu") -> None:
        """Allocates everything now. Raises InvalidArgumentError, and torch's error when memory is short."""
        if capacity < 1 or not 1 <= page_bytes <= PAGE_BYTES_MAX:
            raise InvalidArgumentError(
                f"{capacity} pages of {page_bytes} bytes: at least one page of 1 to {PAGE_BYTES_MAX} bytes"
            )
        self._pages = torch.zeros((capacity, page_bytes), dtype=torch.uint8, device=device)

    @property
    def capacity(self) -> int:
        """Pages in all."""
        return int(self._pages.shape[0])

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return int(self._pages.shape[1])

    @property
    def device(self) -> torch.device:
        """Where the pages are."""
        return self._pages.device

    @property
    def memory(self) -> torch.Tensor:
        """All pages: uint8 [capacity, page_bytes], shared with the store."""
        return self._pages

    def raw(self, page: int) -> torch.Tensor:
        """One page as uint8 [page_bytes], shared with the store. Raises InvalidArgumentError."""
        if not 0 <= page < self.capacity:
            raise InvalidArgumentError(f"page {page} of {self.capacity}")
        return self._pages[page]

    def view(self, page: int, part: PagePart) -> torch.Tensor:
        """One part of a page as a tensor of its dtype and shape, shared with the store.

        Raises InvalidArgumentError when the part does not fit the page or is not aligned in it.
        """
        raw = self.raw(page)
        dtype = TORCH_DTYPES[part.dtype]
        if part.offset + part.size_bytes > self.page_bytes:
            raise InvalidArgumentError(
                f"{part.role} of layer {part.layer} ends at byte {part.offset + part.size_bytes}; a page has "
                f"{self.page_bytes}"
            )
        if (raw.storage_offset() + part.offset) % dtype.itemsize:
            raise InvalidArgumentError(f"{part.role} of layer {part.layer} is not aligned to {dtype}")
        return raw[part.offset : part.offset + part.size_bytes].view(dtype).view(part.shape)

    def views(self, page: int, layout: PageLayout) -> list[tuple[PagePart, torch.Tensor]]:
        """Every part of a page, as `view` gives them. Raises InvalidArgumentError."""
        return [(part, self.view(page, part)) for part in layout.parts()]

    def write(self, page: int, source: Any) -> None:
        """Fill a page with the bytes of a tensor of any dtype and device, or of a contiguous buffer.

        Raises BufferMismatchError when the source is not page_bytes long, InvalidArgumentError.
        """
        target = self.raw(page)
        if isinstance(source, torch.Tensor):
            self._check_bytes(source.numel() * source.element_size(), "source")
            target.copy_(_bytes_of(source.contiguous()))
            return
        view = _flat(source, "source")
        self._check_bytes(view.nbytes, "source")
        host = np.frombuffer(view, dtype=np.uint8)
        if target.device.type == "cpu":
            np.copyto(target.numpy(), host)
        else:  # a copy, because torch warns of memory that it may not write
            target.copy_(torch.from_numpy(host.copy()))

    def read(self, page: int, destination: Any) -> None:
        """Copy a page into a tensor of any dtype, device and strides, or into a writable contiguous buffer.

        Raises BufferMismatchError when the destination is not page_bytes long or not writable.
        """
        source = self.raw(page)
        if isinstance(destination, torch.Tensor):
            self._check_bytes(destination.numel() * destination.element_size(), "destination")
            if destination.is_contiguous():
                _bytes_of(destination).copy_(source)
            else:
                # a clone starts aligned, which a page of odd size inside the store need not
                destination.detach().copy_(source.clone().view(destination.dtype).view(destination.shape))
            return
        view = _flat(destination, "destination")
        if view.readonly:
            raise BufferMismatchError("the destination is read-only")
        self._check_bytes(view.nbytes, "destination")
        np.copyto(np.frombuffer(view, dtype=np.uint8), source.cpu().numpy())

    def _check_bytes(self, found: int, what: str) -> None:
        if found != self.page_bytes:
            raise BufferMismatchError(f"the {what} has {found} bytes; a page has {self.page_bytes}")


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _flat(buffer: Any, what: str) -> memoryview:
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise BufferMismatchError(
            f"the {what} is a {type(buffer).__name__}; give a tensor or something with the buffer protocol"
        ) from error
    if not view.c_contiguous:
        raise BufferMismatchError(f"the {what} is not contiguous")
    return view.cast("B")
