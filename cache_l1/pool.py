"""PagePool: numbers of pages with reference counts; integers only, any memory can stand behind them."""

from __future__ import annotations

from kv_types.errors import InvalidArgumentError


class PagePool:
    """Pages 0 … capacity−1. A page is free, or referenced one or more times. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        """Raises InvalidArgumentError."""
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidArgumentError(f"a pool has at least one page; got {capacity!r}")
        self._references = [0] * capacity
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def capacity(self) -> int:
        """Pages in all."""
        return len(self._references)

    @property
    def free_pages(self) -> int:
        """Pages that nobody references."""
        return len(self._free)

    def allocate(self) -> int | None:
        """Take a free page with one reference; None when there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._references[page] = 1
        return page

    def acquire(self, page: int) -> None:
        """Add a reference to a page that has one. Raises InvalidArgumentError."""
        self._check_referenced(page)
        self._references[page] += 1

    def release(self, page: int) -> bool:
        """Drop a reference; True when it was the last and the page is free. Raises InvalidArgumentError."""
        self._check_referenced(page)
        self._references[page] -= 1
        if self._references[page]:
            return False
        self._free.append(page)
        return True

    def references(self, page: int) -> int:
        """References of a page, 0 when it is free. Raises InvalidArgumentError."""
        self._check_number(page)
        return self._references[page]

    def _check_number(self, page: int) -> None:
        if isinstance(page, bool) or not isinstance(page, int) or not 0 <= page < len(self._references):
            raise InvalidArgumentError(f"page {page!r} of a pool of {len(self._references)} pages")

    def _check_referenced(self, page: int) -> None:
        self._check_number(page)
        if self._references[page] == 0:
            raise InvalidArgumentError(f"page {page} is free: it was released too often or never allocated")
