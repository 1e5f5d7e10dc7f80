"""Which pages go when room is needed: tails first, oldest access first, and what outlived its time to live.

Pure state machines: times are given, nothing is locked, and a decision only names pages; whoever owns the
memory carries it out. A page is named by a small integer (its handle). Only tails, pages without a resident
child, are ever victims, so that what stays is closed under prefixes (invariant I4).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kv_types.errors import InvalidArgumentError
from kv_types.limits import EVICTION_DEAD_PLACES_MAX

_NEVER_NS = 2**63 - 1


class EvictionPolicy(Protocol):
    """What a tier tells about its pages, and what it asks. Times are ns of one clock that never steps."""

    def looked(
        self, deepest: int | None, *, resident_pages: int, missing_pages: int, now_ns: int, digest: int = 0
    ) -> None:
        """A request asked for a chain, of which so many pages were there, `deepest` the last of them (None: none was).

        They are used now. The pages that were missing are those that are inserted on top of it later; `digest` is of the
        first of them, 0 when it is not known. Raises InvalidArgumentError.
        """
        ...

    def insert(
        self, page: int, *, parent: int | None, now_ns: int, expires_ns: int | None = None, digest: int = 0
    ) -> None:
        """A page became resident on top of `parent` (None: first of a chain). Raises InvalidArgumentError.

        `digest`: 32 bits of its key, by which it is known when it comes back; 0: it is not.
        """
        ...

    def touch(self, page: int, now_ns: int) -> None:
        """A page was used, outside of any look-up. Raises InvalidArgumentError when it is not resident."""
        ...

    def hold(self, page: int) -> None:
        """The page may not be a victim until `release`; holds count. Raises InvalidArgumentError."""
        ...

    def release(self, page: int) -> None:
        """End one hold. Raises InvalidArgumentError when there is none."""
        ...

    def remove(self, page: int) -> None:
        """A tail is no longer resident for another reason. Raises InvalidArgumentError when it is no tail."""
        ...

    def evict(self, count: int) -> list[int]:
        """Choose and forget up to `count` pages in the order they may go, children before parents."""
        ...

    def expire(self, now_ns: int, *, count_max: int) -> list[int]:
        """Choose and forget up to `count_max` pages past their time to live, in the order they may go."""
        ...


@dataclass(slots=True)
class _Page:
    parent: int | None
    accessed_ns: int
    expires_ns: int
    children: int = 0
    holds: int = 0


class TailQueue:
    """Tails by rank. A page's rank only grows while it is resident; the heap learns of it when it comes up.

    Every page has at most one live place in the heap, so that a decision costs amortised O(log n): a place
    that comes up too early moves once per growth of its rank, one that is no candidate any more is dropped.
    Handles come back for other pages, so that a place is known by a serial number of its own.
    """

    def __init__(self, rank: Callable[[int], int | None]) -> None:
        """`rank(page)` is None for what is no candidate now."""
        self._rank = rank
        self._heap: list[tuple[int, int, int]] = []
        self._place: dict[int, int] = {}
        self._serial = 0

    def offer(self, page: int) -> None:
        """Queue a page that may have become a candidate."""
        rank = self._rank(page)
        if rank is None or page in self._place:
            return
        self._serial += 1
        self._place[page] = self._serial
        heapq.heappush(self._heap, (rank, page, self._serial))
        if len(self._heap) > 2 * len(self._place) + EVICTION_DEAD_PLACES_MAX:
            self._heap = [place for place in self._heap if self._place.get(place[1]) == place[2]]
            heapq.heapify(self._heap)

    def withdraw(self, page: int) -> None:
        """Forget a page that is no longer resident."""
        self._place.pop(page, None)

    def first(self) -> tuple[int, int] | None:
        """(rank, page) of the lowest rank, then the lowest handle; it stays queued."""
        while self._heap:
            queued_rank, page, serial = self._heap[0]
            if self._place.get(page) != serial:
                heapq.heappop(self._heap)
                continue
            rank = self._rank(page)
            if rank == queued_rank:
                return queued_rank, page
            if rank is None:
                heapq.heappop(self._heap)
                del self._place[page]
            else:
                heapq.heapreplace(self._heap, (rank, page, serial))
        return None


class TailFirstLru:
    """Least recently used tails first, with times to live. Implements EvictionPolicy; not thread-safe.

    Ties of the last access go to the lowest handle. A page expires no later than the page below it, without
    which nobody could reach it; so what has expired is always closed towards the tails.
    """

    def __init__(self) -> None:
        self._pages: dict[int, _Page] = {}
        self._by_access = TailQueue(self._access_rank)
        self._by_expiry = TailQueue(self._expiry_rank)

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: int) -> bool:
        return page in self._pages

    def looked(
        self, deepest: int | None, *, resident_pages: int, missing_pages: int, now_ns: int, digest: int = 0
    ) -> None:
        """Set the last access of `deepest` and of all that it stands on. Raises InvalidArgumentError."""
        del missing_pages, digest
        if (deepest is None) != (resident_pages == 0):
            raise InvalidArgumentError(f"{resident_pages} pages there is no look-up that ends at {deepest}")
        page = deepest
        while page is not None:
            self.touch(page, now_ns)
            page = self._pages[page].parent

    def insert(
        self, page: int, *, parent: int | None, now_ns: int, expires_ns: int | None = None, digest: int = 0
    ) -> None:
        """Add a page as a tail. Raises InvalidArgumentError when it is resident or its parent is not."""
        del digest
        if page in self._pages:
            raise InvalidArgumentError(f"page {page} is resident already")
        expiry_ns = _NEVER_NS if expires_ns is None else expires_ns
        if parent is not None:
            below = self._resident(parent)
            below.children += 1
            expiry_ns = min(expiry_ns, below.expires_ns)
        self._pages[page] = _Page(parent, now_ns, expiry_ns)
        self._offer(page)

    def touch(self, page: int, now_ns: int) -> None:
        """Set the last access; one before the known one changes nothing. Raises InvalidArgumentError."""
        state = self._resident(page)
        state.accessed_ns = max(state.accessed_ns, now_ns)

    def hold(self, page: int) -> None:
        """Keep a page from being chosen until it is released as often. Raises InvalidArgumentError."""
        self._resident(page).holds += 1

    def release(self, page: int) -> None:
        """End one hold. Raises InvalidArgumentError when the page has none."""
        state = self._resident(page)
        if state.holds == 0:
            raise InvalidArgumentError(f"page {page} is not held")
        state.holds -= 1
        self._offer(page)

    def remove(self, page: int) -> None:
        """Forget a tail, held or not. Raises InvalidArgumentError when it is not resident or has a child."""
        if self._resident(page).children:
            raise InvalidArgumentError(f"page {page} carries resident pages; remove those first")
        self._forget(page)

    def evict(self, count: int) -> list[int]:
        """Up to `count` victims; fewer when everything left is held or carries what is held."""
        victims: list[int] = []
        while len(victims) < count and (first := self._by_access.first()) is not None:
            victims.append(first[1])
            self._forget(first[1])
        return victims

    def expire(self, now_ns: int, *, count_max: int) -> list[int]:
        """Up to `count_max` pages whose expiry is at or before `now_ns`; held ones stay until released."""
        victims: list[int] = []
        while len(victims) < count_max and (first := self._by_expiry.first()) is not None:
            if first[0] > now_ns:
                break
            victims.append(first[1])
            self._forget(first[1])
        return victims

    def expired(self, page: int, now_ns: int) -> bool:
        """Whether a page's time to live has passed, held or not. Raises InvalidArgumentError."""
        return self._resident(page).expires_ns <= now_ns

    def _resident(self, page: int) -> _Page:
        state = self._pages.get(page)
        if state is None:
            raise InvalidArgumentError(f"page {page} is not resident")
        return state

    def _forget(self, page: int) -> None:
        parent = self._pages.pop(page).parent
        self._by_access.withdraw(page)
        self._by_expiry.withdraw(page)
        if parent is not None:
            self._pages[parent].children -= 1
            self._offer(parent)

    def _offer(self, page: int) -> None:
        self._by_access.offer(page)
        self._by_expiry.offer(page)

    def _access_rank(self, page: int) -> int | None:
        state = self._pages.get(page)
        return None if state is None or state.children or state.holds else state.accessed_ns

    def _expiry_rank(self, page: int) -> int | None:
        state = self._pages.get(page)
        if state is None or state.children or state.holds or state.expires_ns == _NEVER_NS:
            return None
        return state.expires_ns
