"""Prometheus metrics of L3: what is loaded and stored, what is not and why, what waits, and which servers answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from cache_l3.lossy_tally import EXACT, LossyFigures
from cache_l3.page_codecs import KeptExact
from cache_l3.tally import REFUSALS
from kv_types.ids import NamespaceId
from kv_types.loading import LoadChoice
from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded
from sidecar.l3.tier import L3State

LabelOf = Callable[[NamespaceId | None], str]
"""Label of a namespace; of None and of those that have none of their own the same."""
_LOSSY_OUTCOMES = ("lossy", *(EXACT + reason for reason in KeptExact))
_LOST = ("gone", "dropped_", "refused_")
"""What begins the names of pages that were to be stored and were not."""
_LOST_REASONS = (
    "gone", "dropped_queue_full", "dropped_too_old", "dropped_failed", "dropped_closing",
    *(f"refused_{reason.name.lower()}" for reason in REFUSALS),
)  # fmt: skip
"""Told from the start: a series that begins with its first loss hides that one from whoever looks at its growth."""


def outcome_of(rows: Sequence[RowLoaded]) -> str:
    """What came of a load, in a word: late, whole, part, or nothing of what L2 lacked."""
    if any(row.reason is MissReason.DEADLINE for row in rows):
        return "late"
    if all(row.reason is MissReason.NONE for row in rows):
        return "whole"
    return "part" if any(row.from_l3 < row.pages for row in rows) else "nothing"


def l3_metrics(state: L3State, label_of: LabelOf) -> Iterable[Metric]:
    """Yield the metrics of one moment; but for the first they are there only where L3 is. `label_of` names namespaces."""
    yield GaugeMetricFamily("stratakv_l3_enabled", "1 if pages go to L3.", value=int(not state.why_off))
    if state.picture is None:
        return
    yield from _servers(state)
    records, stores, loads = state.records, state.stores, state.loads
    for name, text, value in (
        ("loaded_pages", "Pages that came from L3.", records.get("loaded", 0)),
        ("loaded_bytes", "Payload bytes of them.", records.get("loaded_bytes", 0)),
        ("published_pages", "Pages of L3 that became visible on this node.", loads.get("loaded", 0)),
        ("stored_pages", "Pages that went into L3.", records.get("stored", 0)),
        ("stored_bytes", "Bytes of them, as they lie in L3.", records.get("stored_bytes", 0)),
        ("known_pages", "Pages that L3 had already, so that they were not sent.", stores.get("known", 0)),
        (
            "left_pages",
            "Pages that clients stored and that were left on this node.",
            stores.get("left_here", 0),
        ),
        (
            "saved_pages",
            "Pages that were offered to L3 because they were asked for on this node.",
            stores.get("offered_used", 0),
        ),
        ("restored_pages", "Ancestors of stored pages that L3 had lost.", stores.get("restored", 0)),
        (
            "offered_pages",
            "Pages that were to go to L3: those that clients stored, and restored ones.",
            stores.get("offered", 0),
        ),
        ("corrupt_records", "Records that failed their checks, and were removed.", records.get("corrupt", 0)),
        (
            "unreadable_records",
            "Times that a record was met which only newer versions read, and left.",
            records.get("unreadable", 0),
        ),
        ("retries", "Requests that were sent again.", records.get("retried", 0)),
        ("redirects", "Requests that a Cluster sent elsewhere.", records.get("redirected", 0)),
        (
            "breaker_openings",
            "Times that a server was given up for a while.",
            records.get("breaker_opened", 0),
        ),
    ):
        yield CounterMetricFamily(f"stratakv_l3_{name}", text, value=value)
    yield _by("load_misses", "reason", "Records that were fetched in vain.", _after(records, "load_missed_"))
    yield _by(
        "probe_misses",
        "reason",
        "Records that were asked for and not there.",
        _after(records, "probe_missed_"),
    )
    lost = dict.fromkeys(_LOST_REASONS, 0)
    lost |= {name: count for name, count in stores.items() if name.startswith(_LOST)}
    yield _by("lost_pages", "reason", "Pages that clients stored and that did not get into L3.", lost)
    yield from _under_way(loads, stores)
    yield from _lossy(state, label_of)
    yield from _choices(state.choices)


def _choices(choices: Mapping[str, float]) -> Iterable[Metric]:
    """What loads were weighed against, and by what estimate."""
    decisions = CounterMetricFamily(
        "stratakv_l3_load_decisions", "Choices between loading pages and computing them.", labels=("choice",)
    )
    for choice in LoadChoice:
        name = choice.name.lower()
        decisions.add_metric((name,), choices.get(f"chose_{name}", 0.0))
    yield decisions
    for name, text in (
        ("latency_seconds", "Estimated time of a load however small; 0: nothing was measured yet."),
        ("bytes_per_second", "Estimated bandwidth of loads; 0: nothing was measured yet."),
        ("sureness", "How many loads that estimate is worth: it ages."),
        ("error_factor", "Typical factor between a load's estimated and its real time."),
    ):
        yield GaugeMetricFamily(f"stratakv_l3_estimate_{name}", text, value=choices.get(name, 0.0))
    for name, text in (
        ("expected_seconds", "Estimated times of loads that were measured."),
        ("measured_seconds", "Their real times."),
    ):
        yield CounterMetricFamily(f"stratakv_l3_estimate_{name}", text, value=choices.get(name, 0.0))


def _servers(state: L3State) -> Iterable[Metric]:
    assert state.picture is not None, "there is an L3"
    available = GaugeMetricFamily(
        "stratakv_l3_server_available",
        "1 if pages can be read of the server, 0 while its breaker is open or it refuses that.",
        labels=("server",),
    )
    writable = GaugeMetricFamily(
        "stratakv_l3_server_writable",
        "1 unless the server is too full for more pages, or refuses them.",
        labels=("server",),
    )
    for server in state.picture.servers:
        available.add_metric((server.server,), float(server.is_readable))
        writable.add_metric((server.server,), float(server.writes not in ("full", "refused")))
    yield available
    yield writable


def _under_way(loads: Mapping[str, int], stores: Mapping[str, int]) -> Iterable[Metric]:
    for name, text, value in (
        ("loads_under_way", "Requests for pages of L3 that are not answered yet.", loads.get("requests", 0)),
        ("flights", "Pages on their way from L3.", loads.get("flights", 0)),
        ("flight_bytes", "Places in the arena that they take.", loads.get("flight_bytes", 0)),
        ("queued_pages", "Pages that wait to be stored in L3.", stores.get("queued_pages", 0)),
        ("queued_bytes", "Bytes of them; they stay in the arena meanwhile.", stores.get("queued_bytes", 0)),
        ("stores_under_way", "Pages on their way into L3.", stores.get("in_flight", 0)),
        ("queue_age_seconds", "How long the first page has waited.", stores.get("oldest_ms", 0) / 1000),
    ):
        yield GaugeMetricFamily(f"stratakv_l3_{name}", text, value=value)


def _lossy(state: L3State, label_of: LabelOf) -> Iterable[Metric]:
    """What pages lose whose namespaces say that they are stored lossily; nothing where there are none."""
    pages = CounterMetricFamily(
        "stratakv_l3_lossy_pages",
        "Pages of namespaces that are stored lossily, by what became of them: lossy, or why they were stored bit for bit.",
        labels=("namespace", "outcome"),
    )
    mean = HistogramMetricFamily(
        "stratakv_l3_lossy_error_mean",
        "What lossy pages have lost, by the sum of their magnitudes.",
        labels=("namespace",),
    )
    worst = HistogramMetricFamily(
        "stratakv_l3_lossy_error_worst",
        "What lossy pages have lost in the layer whose keys or values lost most.",
        labels=("namespace",),
    )
    largest = GaugeMetricFamily(
        "stratakv_l3_lossy_error_largest",
        "The worst error that was measured, of pages too that were stored bit for bit because of it.",
        labels=("namespace",),
    )
    for label, figures in _by_label(state.lossy, label_of).items():
        for outcome in _LOSSY_OUTCOMES:
            pages.add_metric((label, outcome.removeprefix(EXACT)), figures.pages[outcome])
        for family, histogram in ((mean, figures.mean), (worst, figures.worst)):
            family.add_metric((label,), histogram.cumulative(), sum_value=histogram.total)
        largest.add_metric((label,), figures.largest)
    yield from (pages, mean, worst, largest)


def _by_label(lossy: Mapping[NamespaceId | None, LossyFigures], label_of: LabelOf) -> dict[str, LossyFigures]:
    """Figures by label: those that share one are added up."""
    found: dict[str, LossyFigures] = {}
    for namespace, figures in lossy.items():
        label = label_of(namespace)
        found[label] = found[label].plus(figures) if label in found else figures
    return found


def _by(name: str, label: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"stratakv_l3_{name}", text, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family


def _after(counts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in counts.items() if name.startswith(prefix)}
