"""The best hit ratio of an arena that is split among models for good: what moving segments is measured against.

Least recently used is a stack: a page is found in an arena of so many slots exactly if fewer others were asked for since. So
one pass over the requests tells the hits of every split, and the best one is found by trying all.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

Split = tuple[int, ...]


class _Counts:
    """A Fenwick tree: how many marks are set below a place."""

    def __init__(self, places: int) -> None:
        self._tree = [0] * (places + 1)

    def add(self, place: int, amount: int) -> None:
        place += 1
        while place < len(self._tree):
            self._tree[place] += amount
            place += place & -place

    def below(self, place: int) -> int:
        total = 0
        while place > 0:
            total += self._tree[place]
            place -= place & -place
        return total


def stack_distances(requests: Sequence[Sequence[Hashable]]) -> Iterator[list[int]]:
    """Of each request, a chain from the root: how many other pages were asked for since its pages were last, where they were.

    A chain is touched from its tail on: its head is the last to go, as the arena's is.
    """
    asked = _Counts(sum(len(request) for request in requests))
    last: dict[Hashable, int] = {}
    time = 0
    for request in requests:
        distances = []
        for page in reversed(request):
            before = last.get(page)
            if before is not None:
                distances.append(asked.below(time) - asked.below(before + 1))
                asked.add(before, -1)
            asked.add(time, 1)
            last[page] = time
            time += 1
        yield distances


def splits(parts: int, segments: int) -> Iterator[Split]:
    """Every way to divide so many segments."""
    for cuts in itertools.combinations_with_replacement(range(segments + 1), parts - 1):
        edges = (0, *cuts, segments)
        yield tuple(high - low for low, high in itertools.pairwise(edges))


class SplitHits:
    """Hits of each model in one phase, by the segments that it has."""

    def __init__(
        self, distances: Mapping[str, Iterable[int]], slots: Mapping[str, int], segments: int
    ) -> None:
        """`slots`: of a segment, by model."""
        self._segments = segments
        self._hits = {
            name: [bisect_left(ordered, slots[name] * given) for given in range(segments + 1)]
            for name, ordered in ((name, sorted(found)) for name, found in distances.items())
        }

    def best(self, worth: Mapping[str, float]) -> tuple[float, Split]:
        """The most that any split is worth, a hit of each model counting as `worth`, and that split."""
        names = list(self._hits)

        def total(split: Split) -> float:
            return sum(
                self._hits[name][given] * worth[name] for name, given in zip(names, split, strict=True)
            )

        best = max(splits(len(names), self._segments), key=total)
        return total(best), best
