"""What one request has reused: which pages of L2 its own computation rests on, chain by chain. Pure; no clock, no lock.

A put says on which page of its chain it rests. L2 then finds what a page was computed from in its own tree, as long as
that page is still below the new one; if not, the new page counts as computed on anything. One page has to stand for all
that was reused of a chain, and it does so only if all of it is that page or lies below it. Pages come from several
places, though: L1 may have the front of a chain, and L2 the rest of one that was computed anew since. So each run of
pages is held against what was there before: where the two are not seen to be one history, the instance is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """Of one request, used by one thread at a time. Remembers REUSED_RUNS_MAX runs; after more it knows nothing.

    A Request has its own. Who computes for requests that begin elsewhere, as a worker of an engine does, makes one for each
    put (`of`, or `found` in the order of the chain), gives it to `Client.put_computed`, and asks it for the `instances` of what
    was stored. It must tell of all pages below those that it puts, but for what the same request has computed itself.
    """

    __slots__ = ("_count", "_noted", "pages_l3", "waited_ns")

    def __init__(self) -> None:
        self.pages_l3 = 0
        self.waited_ns = 0
        """Pages that were brought from L3 for this request's look-ups, and how long these waited for loads."""
        self._noted: dict[int, dict[bytes, dict[bytes, _Noted]]] = {}
        """Index of a run's first page → its key → that of its last page, which names the whole chain up to there → the run."""
        self._count = 0

    @classmethod
    def of(cls, packed: bytes, instances: Instances) -> ReusedPages:
        """All pages of a chain from its root were reused, and are these pages of L2, each on the one before."""
        reused = cls()
        reused.had(packed, instances)
        return reused

    def had(self, packed: bytes, instances: Instances) -> None:
        """Note pages of a chain from its root that did not come by a look-up; with one of them unknown all of them are."""
        pages = len(packed) // KEY_BYTES
        if not pages:
            return
        numbers = tuple(instances.at(index) for index in range(pages))
        if NO_INSTANCE in numbers or UNKNOWN_INSTANCE in numbers:
            numbers = (UNKNOWN_INSTANCE,) * pages
        self.found(packed, Run(instances.life, 0, pages, numbers[-1], numbers))

    def found(self, packed: bytes, run: Run) -> None:
        """Note pages that a look-up served, or that L1 had."""
        is_one = self._is_one_history(self._on(packed, pages=run.end + 1), run)
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
        on_chain = self._on(packed, pages=pages)
        if any(noted.run.end >= first and not noted.is_own for noted in on_chain):
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
        on_chain = self._on(packed, pages=pages)
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
            return
        keys = packed[run.start * KEY_BYTES : (run.end + 1) * KEY_BYTES]
        beside = self._noted.setdefault(run.start, {}).setdefault(keys[:KEY_BYTES], {})
        beside[keys[-KEY_BYTES:]] = _Noted(run, keys, covers, self._count, is_own)

    def _on(self, packed: bytes, *, pages: int) -> list[_Noted]:
        """What was noted of the first `pages` of this chain, the longest first.

        Of a run that leaves the chain, or goes on behind these pages, it is the part that they share.
        """
        found: dict[tuple[object, ...], tuple[int, _Noted]] = {}
        for start, by_first in self._noted.items():
            if start >= pages:
                continue
            shared = pages
            for noted in by_first.get(_key(packed, start), {}).values():
                # most runs that leave the chain leave it where the one before did
                shared = _shared(noted, packed, pages, guess=shared)
                last = noted.run.number_at(shared - 1)
                same = start, shared, last, noted.run.life, noted.covers == UNKNOWN_INSTANCE, noted.is_own
                if same not in found or found[same][1].order < noted.order:
                    found[same] = shared, noted
        parts = [_cut(noted, shared) for shared, noted in found.values()]
        return sorted(parts, key=lambda noted: noted.run.end, reverse=True)

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


def _shared(noted: _Noted, packed: bytes, pages: int, *, guess: int) -> int:
    """How many of a chain's first pages a run's chain has, one of which begins the run. Keys name all before them."""
    start, keys = noted.run.start, noted.keys
    low, high = start + 1, min(noted.run.end + 1, pages)
    if start < guess < high and _key(keys, guess - start) != _key(packed, guess):
        high = guess
    if low < guess <= high and _key(keys, guess - 1 - start) == _key(packed, guess - 1):
        low = guess
    while low < high:
        middle = (low + high) // 2
        if _key(keys, middle - start) == _key(packed, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _cut(noted: _Noted, pages: int) -> _Noted:
    """The part of a run that lies within the first pages of its chain."""
    run = noted.run
    if run.end < pages:
        return noted
    last = run.number_at(pages - 1)
    kept = replace(run, pages=pages - run.start, last=last, numbers=run.numbers[: pages - run.start])
    covers = UNKNOWN_INSTANCE if noted.covers == UNKNOWN_INSTANCE else last
    return replace(noted, run=kept, covers=covers)


def _key(packed: bytes, index: int) -> bytes:
    return packed[index * KEY_BYTES : (index + 1) * KEY_BYTES]
