"""Prometheus metrics of one L1, for the registry of the process that serves the model: read at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_STATES = {
    "capacity_pages": "capacity",
    "resident_pages": "resident",
    "pinned_pages": "pinned",
    "free_pages": "free",
    "shared_pages": "shared",
    "scattered_pages": "scattered",
}
_COUNTERS = (
    ("stratakv_l1_requested_pages", "Pages that look-ups asked L1 for.", "requested_pages"),
    ("stratakv_l1_hit_pages", "Pages that L1 served.", "hit_pages"),
    ("stratakv_l1_inserted_pages", "Pages that were put into L1.", "inserted_pages"),
    ("stratakv_l1_known_pages", "Pages offered to L1 that it had already.", "known_pages"),
    (
        "stratakv_l1_found_alone_pages",
        "Pages that were to go because L2 had them too, and were chosen anew because it had not.",
        "found_alone_pages",
    ),
)
_BY_REASON = (
    ("stratakv_l1_missed_pages", "Pages that L1 did not serve, by reason.", "missed_pages_"),
    ("stratakv_l1_refused_pages", "Pages that L1 did not keep, by reason.", "refused_pages_"),
)
_LOST = {"evicted_pages": "evicted", "expired_pages": "expired", "dropped_pages": "invalidated"}
_PROMOTIONS = {"promoted_pages": "kept", "left_in_l2_pages": "left"}
_COPIES = {"copied_in_pages": "in", "copied_out_pages": "out"}


class L1Collector(Collector):
    """Register it with prometheus_client.REGISTRY, or another registry, once for each L1 that `labels` tell apart."""

    def __init__(
        self, statistics: Callable[[], Mapping[str, int]], *, labels: Mapping[str, str] | None = None
    ) -> None:
        """`statistics`: L1Cache.statistics, or what gives the same; empty while there is none. `labels`: of every sample."""
        given = labels or {}
        self._statistics = statistics
        self._names = tuple(given)
        self._values = tuple(given.values())

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering asks for no statistics."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """All of it, of one moment."""
        counts = self._statistics()
        if not counts:
            return
        yield self._family(
            GaugeMetricFamily, "stratakv_l1_pages", "Pages of L1 by state.", "state", counts, _STATES
        )
        size = GaugeMetricFamily("stratakv_l1_page_bytes", "Bytes of one page.", labels=self._names)
        size.add_metric(self._values, counts["page_bytes"])
        yield size
        for name, text, key in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=self._names)
            counter.add_metric(self._values, counts[key])
            yield counter
        for name, text, prefix in _BY_REASON:
            reasons = {key: key.removeprefix(prefix) for key in counts if key.startswith(prefix)}
            yield self._family(CounterMetricFamily, name, text, "reason", counts, reasons)
        yield self._family(
            CounterMetricFamily, "stratakv_l1_lost_pages", "Pages that left L1, by why.", "why", counts, _LOST
        )
        yield self._family(
            CounterMetricFamily, "stratakv_l1_copied_pages", "Pages copied into L1 and out of it.", "direction",
            counts, _COPIES,
        )  # fmt: skip
        if "promoted_pages" in counts:
            yield self._family(
                CounterMetricFamily, "stratakv_l1_promoted_pages", "Pages that L2 gave, by whether L1 was to keep them.",
                "choice", counts, _PROMOTIONS,
            )  # fmt: skip

    def _family(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        label: str,
        counts: Mapping[str, int],
        shown: Mapping[str, str],
    ) -> Metric:
        family = kind(name, text, labels=(*self._names, label))
        for key, value in shown.items():
            family.add_metric((*self._values, value), counts[key])
        return family
