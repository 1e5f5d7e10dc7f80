"""Millions of operations on a page pool by requests that come, share, fork, grow and go: no leak, no growth of fragmentation."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from cache_l1.block_tables import BlockTable, Fragmentation
from cache_l1.pool import PagePool

CAPACITY = 8192
PAGE_TOKENS = 64
SEED = 11
WINDOWS = 20
PREFIXES = 24
"""Prompts that requests begin with, as long as they stay resident."""
PREFIX_TOKENS = (256, 8192)
PROMPT_TOKENS = (1, 2048)
ANSWER_TOKENS = (1, 64)
MOVES_ON = 0.02
"""How often a prefix goes instead of a request coming."""
STEPS_BETWEEN_LOOKS = 500


@dataclass(frozen=True)
class Window:
    """The pool at the end of a part of the run. Parts of 1, but for the counts."""

    operations: int
    tables: int
    occupancy: float
    sharing: float
    reuse: float
    internal: float
    external: float


@dataclass(frozen=True)
class Churn:
    """A whole run: its windows, and what was left over when the last request had ended."""

    windows: tuple[Window, ...]
    operations: int
    tail_copies: int
    refused: int
    leaked_pages: int
    references_lost: int
    """References that were taken and never given back, or the other way round."""


class _Requests:
    """Requests over one pool: the operations that an engine asks of it, drawn at random."""

    def __init__(self, *, capacity: int, seed: int) -> None:
        self.pool = PagePool(capacity)
        self.prefixes: deque[BlockTable] = deque()
        self.running: list[BlockTable] = []
        self.given_back = self.tail_copies = self.refused = 0
        self._draw = random.Random(seed)
        self._growing: BlockTable | None = None

    def operations(self) -> int:
        """Pages taken, shared and given back."""
        counts = self.pool.statistics()
        return counts.allocated + counts.acquired + self.given_back

    def step(self) -> None:
        """One request does something."""
        what = self._draw.random()
        if what < 0.3 or not self.running:
            self._arrive()
        elif what < 0.35:
            self.running.append(self._draw.choice(self.running).fork())
        elif what < 0.75:
            self._grow(self._draw.choice(self.running), self._draw.randint(*ANSWER_TOKENS))
        else:
            self._end(self._draw.randrange(len(self.running)))

    def end_all(self) -> None:
        """Every request and prefix goes."""
        while self.running:
            self._end(0)
        while self.prefixes:
            self._release(self.prefixes.popleft())

    def _arrive(self) -> None:
        if len(self.prefixes) < PREFIXES:
            self._begin(self.prefixes, (), self._draw.randrange(*PREFIX_TOKENS, PAGE_TOKENS))
        elif self._draw.random() < MOVES_ON:
            self._release(self.prefixes.popleft())
        else:
            known = self._draw.choice(self.prefixes).pages
            shared = known[: self._draw.randint(0, len(known))]
            self._begin(self.running, shared, self._draw.randint(*PROMPT_TOKENS))

    def _begin(
        self, among: list[BlockTable] | deque[BlockTable], shared: tuple[int, ...], tokens: int
    ) -> None:
        table = BlockTable(self.pool, page_tokens=PAGE_TOKENS, make_room=self._preempt)
        table.share(shared)
        if self._grow(table, tokens):
            among.append(table)
        else:
            self._release(table)

    def _grow(self, table: BlockTable, tokens: int) -> bool:
        self._growing = table
        grown = table.append(tokens)
        self.refused += grown is None
        if grown is not None and grown.tail is not None:
            self.tail_copies += 1
            self.given_back += 1
        return grown is not None

    def _preempt(self, pages: int) -> None:
        """End requests until so many pages are free, as an engine does whose memory is full."""
        wanted = self.pool.free_pages + pages
        others = [at for at, one in enumerate(self.running) if one is not self._growing]
        for at in reversed(others):
            if self.pool.free_pages >= wanted:
                return
            self._end(at)

    def _end(self, at: int) -> None:
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        self._release(self.running.pop())

    def _release(self, table: BlockTable) -> None:
        self.given_back += len(table.pages)
        table.release()


def churn(operations: int, *, capacity: int = CAPACITY, seed: int = SEED) -> Churn:
    """Run at least so many operations, looking at the pool WINDOWS times on the way."""
    requests = _Requests(capacity=capacity, seed=seed)
    windows: list[Window] = []
    while (done := requests.operations()) < operations:
        if done >= operations * (len(windows) + 1) // WINDOWS:
            windows.append(_window(requests, done))
        for _ in range(STEPS_BETWEEN_LOOKS):
            requests.step()
    windows.append(_window(requests, done))
    requests.end_all()
    counts = requests.pool.statistics()
    return Churn(
        windows=tuple(windows),
        operations=requests.operations(),
        tail_copies=requests.tail_copies,
        refused=requests.refused,
        leaked_pages=counts.used,
        references_lost=abs(counts.allocated + counts.acquired - requests.given_back),
    )


def _window(requests: _Requests, operations: int) -> Window:
    counts = requests.pool.statistics()
    tables = [*requests.prefixes, *requests.running]
    scattered = Fragmentation.of(tables, page_tokens=PAGE_TOKENS)
    return Window(
        operations=operations,
        tables=len(tables),
        occupancy=counts.occupancy,
        sharing=counts.shared / max(1, counts.used),
        reuse=counts.reuse,
        internal=scattered.internal,
        external=scattered.external,
    )
