"""Leases: pinned pages as a context manager, guarded against use in a process that did not take them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from kv_types.errors import ClosedError
from kv_types.ids import NO_LIFE, LifeId
from kv_types.loading import LoadDecision
from kv_types.outcomes import MissReason
from kv_types.validity import UNKNOWN_INSTANCE, Instances


class HeldPages(Protocol):
    """What a lease rests on: the native lease, pages received over gRPC, or nothing."""

    @property
    def pages(self) -> int:
        """Pages held."""
        ...

    @property
    def reason(self) -> int:
        """MissReason that ended the prefix."""
        ...

    @property
    def view(self) -> int:
        """The view that the look-up loaded; 0 when there was none."""
        ...

    @property
    def stands_on(self) -> int:
        """Instance of the page before the first."""
        ...

    def instances(self) -> list[int]:
        """Instance of each page."""
        ...

    def __getitem__(self, index: int) -> memoryview: ...

    def release(self) -> None:
        """Give the pages back."""
        ...


class Home:
    """Where a lease was taken. A forked child marks it inherited: the memory is not there, and not its own."""

    __slots__ = ("inherited",)

    def __init__(self) -> None:
        self.inherited = False

    @property
    def life(self) -> LifeId:
        """The sidecar's life that instances of its pages belong to; NO_LIFE where they mean nothing."""
        return NO_LIFE


class PageLease:
    """Pages of one look-up, pinned until released; read-only memoryviews of `page_bytes` bytes each, root first.

    Release by leaving the `with` block or by `release()`, which may be called twice. A memoryview or array that is
    still exported keeps its page pinned until it is gone. Every access raises ClosedError once the lease is released,
    and in a process forked after it was taken; an exported view must not be touched in such a process at all.
    """

    __slots__ = ("_held", "_home", "_pages_l3", "load")

    def __init__(
        self, held: HeldPages, home: Home, pages_l3: int = 0, load: LoadDecision | None = None
    ) -> None:
        self.load = load
        """What was chosen between loading and computing, where L3 was asked and had something."""
        self._held = held
        self._home = home
        self._pages_l3 = pages_l3

    @property
    def pages(self) -> int:
        """Pages of `keys[start:]` that are leased."""
        return self._checked().pages

    @property
    def reason(self) -> MissReason:
        """Why the prefix ended where it did; NONE when all pages are there."""
        return MissReason(self._checked().reason)

    @property
    def pages_l3(self) -> int:
        """How many of the last of them were brought from L3 for this very look-up."""
        return self._pages_l3

    @property
    def view(self) -> int:
        """The sidecar's view that the look-up loaded; 0 when there was none."""
        return self._checked().view

    @property
    def instances(self) -> Instances:
        """Which pages of L2 these are, for an L1 that keeps them; over gRPC it can't be told."""
        return Instances(self._home.life, tuple(self._checked().instances()))

    @property
    def stands_on(self) -> int:
        """Instance of keys[start − 1], on which the first page stands; over gRPC it can't be told."""
        return self._checked().stands_on

    def __len__(self) -> int:
        return self._checked().pages

    def __getitem__(self, index: int) -> memoryview:
        held = self._checked()
        try:
            return held[index]
        except ValueError as error:
            raise ClosedError(f"page {index} of a lease that was released: {error}") from error

    def __iter__(self) -> Iterator[memoryview]:
        for index in range(len(self)):
            yield self[index]

    def release(self) -> None:
        """Give the pages back; again does nothing, and nor does a forked child, whose parent holds the lease."""
        if not self._home.inherited:
            self._held.release()

    def __enter__(self) -> PageLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._home.inherited:
            self._held.release()

    def _checked(self) -> HeldPages:
        if self._home.inherited:
            raise ClosedError("this lease belongs to the process that forked; take one of your own")
        return self._held


class OwnedPages:
    """Pages in memory of our own: what a lease over gRPC holds, or nothing with a reason."""

    __slots__ = ("_pages", "_reason")

    def __init__(self, pages: list[memoryview], reason: MissReason) -> None:
        self._pages: list[memoryview] | None = pages
        self._reason = reason

    @property
    def pages(self) -> int:
        """Pages held."""
        return len(self._pages or ())

    @property
    def reason(self) -> int:
        """MissReason that ended the prefix."""
        return self._reason

    @property
    def view(self) -> int:
        """No view of a header was loaded."""
        return 0

    @property
    def stands_on(self) -> int:
        """Likewise."""
        return UNKNOWN_INSTANCE

    def instances(self) -> list[int]:
        """Nothing that an L1 here could use: no header vouches for these pages."""
        return [UNKNOWN_INSTANCE] * self.pages

    def __getitem__(self, index: int) -> memoryview:
        if self._pages is None:
            raise ValueError("the lease was released")
        return self._pages[index]

    def release(self) -> None:
        """Drop the pages; views that are still exported keep their memory."""
        self._pages = None


ANYWHERE = Home()
"""Home of leases that rest on no shared memory and stay valid in a forked child."""


def empty_lease(reason: MissReason) -> PageLease:
    """Return a lease of no pages, with the reason."""
    return PageLease(OwnedPages([], reason), ANYWHERE)
