"""What one request has reused: which pages of L2 its own computation rests on, chain by chain. Pure; no clock, no lock.

A put says on which page of its chain it rests. L2 then finds what a page was computed from in its own tree, as long as
that page is still below the new one; if not, the new page counts as computed on anything. One page has to stand for all
that was reused of a chain, and it does so only if all of it is that page or lies below it. Pages come from several
places, though: L1 may have the front of a chain, and L2 the rest of one that was computed anew since. So each run of
pages is held against what was there before: where the two are not seen to be one history, the instance is unknown.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from kv_types.ids import KEY_BYTES, NO_LIFE, LifeId
from kv_types.limits import REUSED_RUNS_MAX
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, Instances


@dataclass(frozen=True, slots=True)
class Run:
    """Pages [start, start + pages) of one chain that came or went at once, in one life of the sidecar.

    `numbers` are their instances, or empty where only `last` is known; `stands_on` is that of the page before.
    """

    life: LifeId
    start: int
    pages: int
    last: int
    numbers: Sequence[int] = ()
    stands_on: int = UNKNOWN_INSTANCE

    @property
    def end(self) -> int:
        """Index of its last page."""
        return self.start + self.pages - 1

    def number_at(self, index: int) -> int:
        """Instance of one page of the chain, as far as this run tells it."""
        if index == self.end:
            return self.last
        if self.start <= index < self.end and self.numbers:
            return self.numbers[index - self.start]
        return self.stands_on if index == self.start - 1 else UNKNOWN_INSTANCE


@dataclass(frozen=True, slots=True)
class _Noted:
    """A run in its place, with its pages' keys; `covers` stands for everything that was noted of its chain up to then."""

    run: Run
    keys: bytes
    covers: int
    order: int
    is_own: bool


class ReusedPages:
    """Of one request, used by one thread at a time. Remembers REUSED_RUNS_MAX runs; after more it knows nothing."""

    __slots__ = ("_count", "_ends", "_noted")

    def __init__(self) -> None:
        self._noted: dict[int, dict[bytes, _Noted]] = {}
        """Index of a run's last page → its key, which names the whole chain up to there → the run."""
        self._ends: list[int] = []
        self._count = 0

    def found(self, packed: bytes, run: Run) -> None:
        """Note pages that a look-up served, or that L1 had."""
        before = self._on(packed, end=run.end + 1)
        beyond = self._beyond(packed, pages=run.end + 1)
        is_one = self._is_one_history(before, run) and all(_agree(noted, run) for noted in beyond)
        self._note(packed, run, covers=run.last if is_one else UNKNOWN_INSTANCE, is_own=False)

    def stored(self, packed: bytes, run: Run) -> None:
        """Note pages that this request stored: L2 has held them against what they rest on, so they stand for all."""
        self._note(packed, run, covers=run.last, is_own=True)

    def rests_on(self, packed: bytes, *, first: int, life: LifeId) -> int:
        """Instance that pages from index `first` on rest on, for an arena of this life.

        Unknown as well where one of them was reused: what is stored again was computed by somebody else.
        """
        if self._count > REUSED_RUNS_MAX:
            return UNKNOWN_INSTANCE
        pages = len(packed) // KEY_BYTES
        on_chain = self._on(packed, end=pages)
        over = [noted for noted in on_chain if noted.run.end >= first] + self._beyond(packed, pages=pages)
        if any(not noted.is_own for noted in over):
            return UNKNOWN_INSTANCE
        below = [noted for noted in on_chain if noted.run.end < first]
        if not below:
            return NO_INSTANCE
        return _cover(below) if below[0].run.life == life else UNKNOWN_INSTANCE

    def instances(self, packed: bytes) -> Instances:
        """Instance of each page of a chain, for an L1 that keeps their bytes.

        Where a look-up served a page, it is that of the bytes which the look-up gave.
        """
        pages = len(packed) // KEY_BYTES
        on_chain = self._on(packed, end=pages)
        if not on_chain or self._count > REUSED_RUNS_MAX:
            return Instances(NO_LIFE, (UNKNOWN_INSTANCE,) * pages)
        life = on_chain[0].run.life
        reused, own = [0] * pages, [0] * pages
        for noted in on_chain:
            told = own if noted.is_own else reused
            is_known = noted.covers != UNKNOWN_INSTANCE and noted.run.life == life
            for index in range(noted.run.start, noted.run.end + 1):
                number = noted.run.number_at(index) if is_known else UNKNOWN_INSTANCE
                told[index] = number if told[index] in (NO_INSTANCE, number) else UNKNOWN_INSTANCE
        return Instances(life, tuple(a or b or UNKNOWN_INSTANCE for a, b in zip(reused, own, strict=True)))

    def _note(self, packed: bytes, run: Run, *, covers: int, is_own: bool) -> None:
        if not run.pages:
            return
        self._count += 1
        if self._count > REUSED_RUNS_MAX:
            self._noted.clear()
            self._ends.clear()
            return
        if run.end not in self._noted:
            insort(self._ends, run.end)
        at_end = self._noted.setdefault(run.end, {})
        keys = packed[run.start * KEY_BYTES : (run.end + 1) * KEY_BYTES]
        at_end[_key(packed, run.end)] = _Noted(run, keys, covers, self._count, is_own)

    def _on(self, packed: bytes, *, end: int) -> list[_Noted]:
        """Runs of this chain that end before `end`, the longest first."""
        return [
            noted
            for at in reversed(self._ends)
            if at < end and (noted := self._noted[at].get(_key(packed, at))) is not None
        ]

    def _beyond(self, packed: bytes, *, pages: int) -> list[_Noted]:
        """Runs that have some of this chain's first `pages` and go on behind them: it was cut after it was looked up."""
        key = _key(packed, pages - 1)
        return [
            noted
            for at in self._ends[bisect_left(self._ends, pages) :]
            for noted in self._noted[at].values()
            if noted.run.start < pages and _key(noted.keys, pages - 1 - noted.run.start) == key
        ]

    @staticmethod
    def _is_one_history(before: Sequence[_Noted], run: Run) -> bool:
        """Whether all that was noted of the chain is below the run's last page, in L2's tree."""
        if not before:
            return run.start == 0  # else the caller has pages of which it told nothing
        return _stands_for(run, _cover(before), before[0].run)


def _cover(noted: Sequence[_Noted]) -> int:
    """One instance for all runs of a chain, the longest first: the longest's, if later ones are seen to lie below it."""
    longest = noted[0]
    for other in noted[1:]:
        if other.order > longest.order and not _stands_for(longest.run, other.run.last, other.run):
            return UNKNOWN_INSTANCE
    return longest.covers


def _stands_for(run: Run, cover: int, other: Run) -> bool:
    """Whether the page that `cover` names, the last of another run, is one of this run or the one that it stands on."""
    return cover != UNKNOWN_INSTANCE and cover == run.number_at(other.end) and other.life == run.life


def _agree(noted: _Noted, run: Run) -> bool:
    """Whether a run that goes on behind another of its chain has the same page where that ends."""
    at_end = noted.run.number_at(run.end)
    return noted.covers != UNKNOWN_INSTANCE != at_end == run.last and noted.run.life == run.life


def _key(packed: bytes, index: int) -> bytes:
    return packed[index * KEY_BYTES : (index + 1) * KEY_BYTES]
