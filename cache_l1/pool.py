"""PagePool: numbers of pages with reference counts; integers only, any memory can stand behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kv_types.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment. Counters count since the pool was made.

    A page that is referenced more than once is *shared*. `acquired` ÷ (`acquired` + `allocated`) is the part of all
    references that needed no page of their own. `free_runs` are runs of adjacent free pages: what was allocated from few
    long ones lies together.
    """

    capacity: int
    used: int
    shared: int
    references: int
    used_peak: int
    allocated: int
    acquired: int
    free_runs: int

    @property
    def occupancy(self) -> float:
        """Used pages as a part of all, 0 to 1."""
        return self.used / self.capacity

    @property
    def reuse(self) -> float:
        """References that found their page there, as a part of all that were ever taken, 0 to 1."""
        taken = self.acquired + self.allocated
        return self.acquired / taken if taken else 0.0


class PagePool:
    """Pages 0 … capacity−1. A page is free, or referenced one or more times. Not thread-safe.

    Free pages are a stack: allocating and releasing cost the same however many there are, and what was released last, the
    warmest memory, is given first.
    """

    __slots__ = ("_acquired", "_allocated", "_free", "_references", "_shared", "_used_peak")

    def __init__(self, capacity: int) -> None:
        """Raises InvalidArgumentError."""
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidArgumentError(f"a pool has at least one page; got {capacity!r}")
        self._references = [0] * capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._shared = self._allocated = self._acquired = self._used_peak = 0

    @property
    def capacity(self) -> int:
        """Pages in all."""
        return len(self._references)

    @property
    def free_pages(self) -> int:
        """Pages that nobody references."""
        return len(self._free)

    @property
    def shared_pages(self) -> int:
        """Pages with more than one reference."""
        return self._shared

    @property
    def used_pages_peak(self) -> int:
        """The most pages that were in use at a time."""
        return self._used_peak

    def allocate(self) -> int | None:
        """Take a free page with one reference; None when there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._references[page] = 1
        self._count_allocated(1)
        return page

    def allocate_many(self, count: int) -> list[int] | None:
        """Take so many free pages with one reference each, in the order in which `allocate` would; None, and nothing taken,
        when there are fewer. Raises InvalidArgumentError for a negative count.
        """
        if count < 0:
            raise InvalidArgumentError(f"{count} pages can't be allocated")
        left = len(self._free) - count
        if left < 0:
            return None
        pages = self._free[left:]
        del self._free[left:]
        pages.reverse()
        references = self._references
        for page in pages:
            references[page] = 1
        self._count_allocated(count)
        return pages

    def acquire(self, page: int) -> None:
        """Add a reference to a page that has one. Raises InvalidArgumentError."""
        self._check_referenced(page)
        self._references[page] += 1
        self._acquired += 1
        if self._references[page] == 2:
            self._shared += 1

    def release(self, page: int) -> bool:
        """Drop a reference; True when it was the last and the page is free. Raises InvalidArgumentError."""
        self._check_referenced(page)
        left = self._references[page] = self._references[page] - 1
        if left:
            if left == 1:
                self._shared -= 1
            return False
        self._free.append(page)
        return True

    def references(self, page: int) -> int:
        """References of a page, 0 when it is free. Raises InvalidArgumentError."""
        self._check_number(page)
        return self._references[page]

    def statistics(self) -> PoolStatistics:
        """Looks at every free page."""
        return PoolStatistics(
            capacity=self.capacity,
            used=self.capacity - len(self._free),
            shared=self._shared,
            references=sum(self._references),
            used_peak=self._used_peak,
            allocated=self._allocated,
            acquired=self._acquired,
            free_runs=runs(sorted(self._free)),
        )

    def _count_allocated(self, count: int) -> None:
        self._allocated += count
        self._used_peak = max(self._used_peak, len(self._references) - len(self._free))

    def _check_number(self, page: int) -> None:
        if isinstance(page, bool) or not isinstance(page, int) or not 0 <= page < len(self._references):
            raise InvalidArgumentError(f"page {page!r} of a pool of {len(self._references)} pages")

    def _check_referenced(self, page: int) -> None:
        self._check_number(page)
        if self._references[page] == 0:
            raise InvalidArgumentError(f"page {page} is free: it was released too often or never allocated")


def runs(pages: Iterable[int]) -> int:
    """How many runs of adjacent pages, each one above the last, a sequence is made of: what one copy can take at a time."""
    count, expected = 0, None
    for page in pages:
        if page != expected:
            count += 1
        expected = page + 1
    return count
