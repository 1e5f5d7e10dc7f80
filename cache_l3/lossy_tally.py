"""LossyTally: what pages of lossy namespaces have lost, by namespace, in counters and histograms that metrics show."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cache_l3.page_codecs import Packed
from kv_types.ids import NamespaceId
from kv_types.limits import METRIC_NAMESPACES_MAX

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper ends, of relative errors."""
EXACT = "exact_"
"""What begins the names of counters of pages that were stored bit for bit though they need not have been."""


@dataclass(slots=True)
class Histogram:
    """How many pages lost up to each of BUCKETS, and beyond; their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, value: float) -> None:
        """Count one page."""
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.total += value

    def plus(self, other: Histogram) -> Histogram:
        """Both together."""
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.total + other.total)

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus has them: (upper end, pages up to there)."""
        told, so_far = [], 0
        for end, count in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            so_far += count
            told.append((end, float(so_far)))
        return told


@dataclass(slots=True)
class LossyFigures:
    """Of one namespace: pages by what became of them ("lossy", "exact_" and why), and what the lossy ones lost."""

    pages: Counter[str] = field(default_factory=Counter)
    mean: Histogram = field(default_factory=Histogram)
    worst: Histogram = field(default_factory=Histogram)
    largest: float = 0.0
    """The worst error of all that were measured, of pages that were stored lossless for it too."""

    def plus(self, other: LossyFigures) -> LossyFigures:
        """Both together."""
        return LossyFigures(
            self.pages + other.pages,
            self.mean.plus(other.mean),
            self.worst.plus(other.worst),
            max(self.largest, other.largest),
        )


class LossyTally:
    """Of the METRIC_NAMESPACES_MAX first namespaces each for itself, and of all others together (None)."""

    def __init__(self) -> None:
        self._figures: dict[NamespaceId | None, LossyFigures] = {}

    def count(self, namespace: NamespaceId, packed: Packed) -> None:
        """A page of a lossy namespace has been stored."""
        name = namespace if namespace in self._figures or len(self._figures) < METRIC_NAMESPACES_MAX else None
        figures = self._figures.setdefault(name, LossyFigures())
        if packed.error is not None:
            figures.largest = max(figures.largest, packed.error.worst)
        if packed.kept is not None:
            figures.pages[EXACT + packed.kept] += 1
        elif packed.error is not None:
            figures.pages["lossy"] += 1
            figures.mean.add(packed.error.mean)
            figures.worst.add(packed.error.worst)

    def read(self) -> Mapping[NamespaceId | None, LossyFigures]:
        """Figures of this moment, to be read and not kept."""
        return self._figures
