"""Block tables: which physical pages the logical pages of one request are; shared where requests agree. Integers only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cache_l1.pool import PagePool, runs
from kv_types.errors import ClosedError, InvalidArgumentError
from kv_types.limits import CHAIN_PAGES_MAX, PAGE_TOKENS_MAX
from kv_types.numbers import check_integer

MakeRoom = Callable[[int], object]
"""Asked to free so many pages of the pool; may free fewer."""


@dataclass(frozen=True, slots=True)
class TailCopy:
    """What must be copied before a table is written to: the first `tokens` tokens of page `source`, into page `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What an append took: `fresh` physical pages in logical order, and the copy of a tail that others go on using.

    The target of `tail` is among `fresh`. Copies must be done before anything is written to the table's last pages, and
    before another table that shares the source is released.
    """

    fresh: tuple[int, ...]
    tail: TailCopy | None = None


class BlockTable:
    """Logical to physical pages of one request, with a reference to each. Not thread-safe.

    A page that is shared is never written: a table that grows into a partly filled tail which another one references gets a
    tail of its own (copy on write). Full pages are shared for good. Its last page alone may be filled in part, so that a
    table wastes less than one page, however the pool was used before: nothing has to be adjacent, and nothing is ever moved.
    """

    __slots__ = ("_make_room", "_page_tokens", "_pages", "_pool", "_tokens")

    def __init__(self, pool: PagePool, *, page_tokens: int, make_room: MakeRoom | None = None) -> None:
        """`make_room` is asked when the pool has too few free pages. Raises InvalidArgumentError."""
        check_integer(page_tokens, "page_tokens", low=1, high=PAGE_TOKENS_MAX)
        self._pool = pool
        self._page_tokens = page_tokens
        self._make_room = make_room
        self._pages: list[int] | None = []
        self._tokens = 0

    @property
    def pages(self) -> tuple[int, ...]:
        """Physical pages in logical order. Raises ClosedError."""
        return tuple(self._open())

    def check_open(self) -> None:
        """Raises ClosedError once it was released: its pages are free then, or somebody else's."""
        self._open()

    @property
    def tokens(self) -> int:
        """Tokens that the pages hold."""
        return self._tokens

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self._page_tokens

    @property
    def unused_tokens(self) -> int:
        """Places of the last page that hold nothing: all that this table wastes (internal fragmentation)."""
        return -self._tokens % self._page_tokens

    @property
    def page_runs(self) -> int:
        """Runs of adjacent pages, 1 when all lie together: how far the pages are scattered (external fragmentation)."""
        return runs(self._open())

    def locate(self, token: int) -> tuple[int, int]:
        """(physical page, place within it) of a token. Raises InvalidArgumentError, ClosedError."""
        pages = self._open()
        if not 0 <= token < self._tokens:
            raise InvalidArgumentError(f"token {token} of a table of {self._tokens}")
        return pages[token // self._page_tokens], token % self._page_tokens

    def share(self, pages: Sequence[int]) -> None:
        """Continue with full pages that somebody references, a prefix that was found for example.

        Raises InvalidArgumentError, and takes nothing, when one is free or the table's tail is not full; ClosedError.
        """
        own = self._open()
        if self.unused_tokens:
            raise InvalidArgumentError(
                f"the last page has room for {self.unused_tokens} more tokens: only full pages carry others"
            )
        self._check_length(len(own) + len(pages))
        taken: list[int] = []
        try:
            for page in pages:
                self._pool.acquire(page)
                taken.append(page)
        except InvalidArgumentError:
            for page in taken:
                self._pool.release(page)
            raise
        own += pages
        self._tokens += len(pages) * self._page_tokens

    def append(self, tokens: int) -> Growth | None:
        """Make room for more tokens; None, and nothing changed, when the pool has too few pages.

        Raises InvalidArgumentError for a negative number or a chain beyond CHAIN_PAGES_MAX, ClosedError.
        """
        pages = self._open()
        if tokens < 0:
            raise InvalidArgumentError(f"{tokens} tokens can't be appended")
        wanted = -(-(self._tokens + tokens) // self._page_tokens) - len(pages)
        self._check_length(len(pages) + wanted)
        needed = wanted + self._is_copied(tokens)
        if needed > self._pool.free_pages and self._make_room is not None:
            self._make_room(needed - self._pool.free_pages)
        is_copied = self._is_copied(tokens)  # whoever shared the tail may be gone
        fresh = self._pool.allocate_many(wanted + is_copied)
        if fresh is None:
            return None
        tail = None
        if is_copied:
            tail = TailCopy(pages[-1], fresh[0], self._page_tokens - self.unused_tokens)
            self._pool.release(pages.pop())
        pages += fresh
        self._tokens += tokens
        return Growth(tuple(fresh), tail)

    def fork(self) -> BlockTable:
        """A table of the same pages, which both reference. Raises ClosedError."""
        pages = self._open()
        other = BlockTable(self._pool, page_tokens=self._page_tokens, make_room=self._make_room)
        for page in pages:
            self._pool.acquire(page)
        other._pages = pages.copy()
        other._tokens = self._tokens
        return other

    def truncate(self, tokens: int) -> None:
        """Keep the first tokens, and let go of pages that hold others only: of tokens that were guessed wrongly, for example.

        Raises InvalidArgumentError when there are fewer, ClosedError.
        """
        pages = self._open()
        if not 0 <= tokens <= self._tokens:
            raise InvalidArgumentError(f"{tokens} tokens of a table of {self._tokens} can't be kept")
        kept = -(-tokens // self._page_tokens)
        while len(pages) > kept:
            self._pool.release(pages.pop())
        self._tokens = tokens

    def release(self) -> None:
        """End the table and its references; again does nothing. Tails are released first, so that the head is allocated last."""
        pages, self._pages, self._tokens = self._pages or [], None, 0
        for page in reversed(pages):
            self._pool.release(page)

    def _is_copied(self, tokens: int) -> bool:
        """Whether so many more tokens would be written into a page that somebody else has too."""
        return bool(tokens and self.unused_tokens) and self._pool.references(self._open()[-1]) > 1

    def _open(self) -> list[int]:
        if self._pages is None:
            raise ClosedError("this table was released")
        return self._pages

    @staticmethod
    def _check_length(pages: int) -> None:
        if pages > CHAIN_PAGES_MAX:
            raise InvalidArgumentError(f"a table of {pages} pages; a chain has at most {CHAIN_PAGES_MAX}")


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """What a set of tables wastes, and how far it is scattered; empty tables are not counted.

    Of a paged pool only tails waste anything: `unused_tokens` of `page_tokens` · pages places. That pages of one table are not
    adjacent wastes nothing, but it decides how many copies a gather needs: `page_runs`, at best one a table.
    """

    tables: int
    pages: int
    page_tokens: int
    unused_tokens: int
    page_runs: int

    @classmethod
    def of(cls, tables: Iterable[BlockTable], *, page_tokens: int) -> Fragmentation:
        """Looks at every page of every table."""
        every = [one for one in tables if one.pages]
        return cls(
            tables=len(every),
            pages=sum(len(one.pages) for one in every),
            page_tokens=page_tokens,
            unused_tokens=sum(one.unused_tokens for one in every),
            page_runs=sum(one.page_runs for one in every),
        )

    @property
    def internal(self) -> float:
        """The part of all places in the tables' pages that holds no token, 0 to 1."""
        return self.unused_tokens / (self.pages * self.page_tokens) if self.pages else 0.0

    @property
    def external(self) -> float:
        """0 when each table's pages are adjacent, 1 when no two of them are."""
        joints = self.pages - self.tables
        return (self.page_runs - self.tables) / joints if joints > 0 else 0.0
