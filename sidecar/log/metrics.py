"""Prometheus metrics of following the invalidation log."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from invalidation.follower import Phase
from sidecar.log.state import LogState

NEVER_S = -1.0
"""Stands for the time since a confirmation that never came."""


def log_metrics(state: LogState) -> Iterable[Metric]:
    """Yield the metrics of one moment."""
    phases = GaugeMetricFamily(
        "stratakv_log_phase",
        "1 for where following the invalidation log stands, 0 for all else.",
        labels=("phase",),
    )
    for phase in Phase:
        phases.add_metric((str(phase),), float(state.phase == phase))
    yield phases
    applied = 0 if state.position is None else state.position.revision
    for name, text, value in (
        ("applied_revision", "Newest revision that is hidden and published here.", applied),
        ("acknowledged_revision", "Newest revision that all engines here have applied.", state.acknowledged),
        ("drained_revision", "Newest revision before which nothing is in use here.", state.drained),
        (
            "tip_lag_records",
            "Records that the log has and this sidecar has not applied.",
            max(0, state.tip - applied),
        ),
        (
            "settled",
            "1 if the log's incarnation is settled, so that fences can be reached.",
            int(state.settled),
        ),
        ("replicas_configured", "Replicas that must confirm what the log says.", state.replicas),
        ("clients_holding_back", "Clients whose engines hold back an acknowledgement.", len(state.held_by)),
    ):
        yield GaugeMetricFamily(f"stratakv_log_{name}", text, value=value)
    yield GaugeMetricFamily(
        "stratakv_log_confirmed_ago_seconds",
        "Time since the log last confirmed this sidecar; -1: it never has.",
        value=NEVER_S if state.confirmed_ago_s is None else state.confirmed_ago_s,
    )
    yield from _server(state)
    yield from _tables(state)
    renewals = CounterMetricFamily(
        "stratakv_log_renewals", "Renewals at the log, by what came of them.", labels=("outcome",)
    )
    for outcome, count in sorted(state.renewals.items()):
        renewals.add_metric((outcome,), count)
    yield renewals
    yield CounterMetricFamily(
        "stratakv_log_records_applied", "Records of the log applied here.", value=state.records_applied
    )
    yield CounterMetricFamily(
        "stratakv_pages_hidden", "Pages hidden because the log selects them.", value=state.pages_hidden
    )


def _server(state: LogState) -> Iterable[Metric]:
    """Which server the log is on, and what is wrong with it; all 0 for a log in this sidecar's memory."""
    servers = GaugeMetricFamily(
        "stratakv_log_server",
        "1 for the server of the log that is in use, or is tried, now.",
        labels=("server",),
    )
    for candidate in dict.fromkeys((*state.candidates, *([state.server] if state.server else ()))):
        servers.add_metric((candidate,), float(candidate == state.server))
    yield servers
    faults = GaugeMetricFamily(
        "stratakv_log_server_faults",
        "What is wrong with the log's server: errors, for which it would not be joined again, and warnings.",
        labels=("severity",),
    )
    for severity, found in (("error", state.server_errors), ("warning", state.server_warnings)):
        faults.add_metric((severity,), len(found))
    yield faults


def _tables(state: LogState) -> Iterable[Metric]:
    """Sizes, bounded all of them: this sidecar's by `where` here, the log's own by `where` log."""
    sizes = GaugeMetricFamily(
        "stratakv_log_table_entries",
        "Entries of the tables that validity rests on.",
        labels=("where", "table"),
    )
    for name, value in sorted(state.sizes.items()):
        in_log = name.startswith("log_")
        sizes.add_metric(("log" if in_log else "here", name.removeprefix("log_")), value)
    yield sizes
