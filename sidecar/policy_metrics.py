"""Metrics of the eviction policy: what it learns from, and how often it was wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def policy_metrics(arena: Mapping[str, int]) -> Iterable[Metric]:
    """Figures of the policy out of the arena's statistics."""
    yield GaugeMetricFamily(
        "stratakv_eviction_policy_learned",
        "1 where victims are chosen by what look-ups have shown, 0 where they are the least recently used.",
        value=arena.get("policy_learned", 0),
    )
    yield GaugeMetricFamily(
        "stratakv_eviction_policy_elsewhere_pages",
        "Pages of L2 that L3 is known to hold too, so that they cost less to lose.",
        value=arena.get("policy_elsewhere", 0),
    )
    for name, text in (
        ("notes_read", "Look-ups that the eviction policy was told of."),
        ("notes_lost", "Look-ups that it was not told of: notes were overwritten or their pages had gone."),
        ("policy_requests", "Requests that the eviction policy has learned from, earlier lives included."),
        ("policy_returns", "Pages stored anew that had been evicted lately."),
    ):
        yield CounterMetricFamily(f"stratakv_{name}", text, value=arena.get(name, 0))
