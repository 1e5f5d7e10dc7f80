"""Metrics of what attached workers tell of their own speed: how they compute prompts, and copy pages out of L2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from cache_l2.attach_messages import Speeds
from kv_types.limits import METRIC_WORKERS_MAX

OTHER = "other"
_GAUGES = (
    (
        "stratakv_worker_prefill_tokens_per_second",
        "Tokens of prompts that a worker computes in a second, as it tells: what loads of L3 are weighed against.",
        "prefill_tokens_per_s",
    ),
    (
        "stratakv_worker_copy_latency_seconds",
        "What a worker's copies of pages out of the arena take, however small, as it tells.",
        "copy_latency_s",
    ),
    (
        "stratakv_worker_copy_bytes_per_second",
        "Bandwidth of a worker's copies of pages out of the arena, as it tells.",
        "copy_bytes_per_s",
    ),
)


def worker_metrics(speeds: Mapping[int, Speeds]) -> Iterable[Metric]:
    """Gauges by row, of those who have told anything: METRIC_WORKERS_MAX rows apart, the mean of all others as OTHER."""
    for name, text, field in _GAUGES:
        family = GaugeMetricFamily(name, text, labels=("row",))
        told = {row: getattr(one, field) for row, one in sorted(speeds.items()) if getattr(one, field)}
        for row in list(told)[:METRIC_WORKERS_MAX]:
            family.add_metric((str(row),), told.pop(row))
        if told:
            family.add_metric((OTHER,), sum(told.values()) / len(told))
        yield family
