"""What an L1 asks of the memory behind its pages, and the memory that it has when it is given none."""

from __future__ import annotations

from typing import Any, Protocol


class PageMemory(Protocol):
    """Where the bytes are; `cache_l1.device_pages.DevicePages` is one."""

    @property
    def capacity(self) -> int:
        """Pages in all."""
        ...

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        ...

    def write(self, page: int, source: Any) -> None:
        """Fill a page. Raises BufferMismatchError."""
        ...

    def read(self, page: int, destination: Any) -> None:
        """Copy a page out. Raises BufferMismatchError."""
        ...


def device_pages(capacity: int, page_bytes: int, device: Any) -> PageMemory:
    """A torch tensor of pages. Raises InvalidArgumentError, and torch's error when memory is short."""
    # here and not above: whoever brings another memory needs no torch
    from cache_l1.device_pages import DevicePages  # noqa: PLC0415

    return DevicePages(capacity=capacity, page_bytes=page_bytes, device=device)
