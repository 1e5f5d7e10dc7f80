"""Metrics of what an operator sets apart in the arena: pins, and tenants' shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from cache_l2.tenants import TenantFigures


def operator_metrics(tenants: Mapping[str, TenantFigures], pins: Mapping[str, int]) -> Iterable[Metric]:
    """Families of both. Labels are tenants with a share, TENANT_SHARES_MAX at most, and "" for everybody else."""
    for name, text in (
        ("pins", "Pins that last."),
        ("keys", "Keys that they name, each once."),
        ("held_pages", "Pages that are resident and held for them."),
        ("held_bytes", "Bytes of the slots of those pages."),
        ("charged_bytes", "Bytes of the quota of pins that are taken, for pages that are here or may come."),
        ("quota_bytes", "Bytes of slots that pins may take."),
    ):
        label = name if name == "pins" else f"pinned_{name}"
        yield GaugeMetricFamily(f"stratakv_{label}", text, value=pins.get(name, 0))
    yield CounterMetricFamily(
        "stratakv_pinned_beyond_quota",
        "Pages that came under a pinned key and were not held, for want of quota.",
        value=pins.get("beyond_quota", 0),
    )
    yield from _tenant_metrics(tenants)


def _tenant_metrics(tenants: Mapping[str, TenantFigures]) -> Iterable[Metric]:
    share = GaugeMetricFamily(
        "stratakv_tenant_share_bytes", "Bytes that a tenant is sure of.", labels=("tenant",)
    )
    used = GaugeMetricFamily(
        "stratakv_tenant_used_bytes", "Bytes of slots that a tenant's pages take.", labels=("tenant",)
    )
    evictions = CounterMetricFamily(
        "stratakv_tenant_evictions",
        "Pages evicted for want of room: own for itself, caused of others for it, suffered of its own for others.",
        labels=("tenant", "side"),
    )
    for tenant, figures in tenants.items():
        share.add_metric((tenant,), figures.share_bytes)
        used.add_metric((tenant,), figures.used_bytes)
        for side, pages in (
            ("own", figures.evictions_own),
            ("caused", figures.evictions_caused),
            ("suffered", figures.evictions_suffered),
        ):
            evictions.add_metric((tenant, side), pages)
    yield from (share, used, evictions)
