"""Prometheus metrics of one sidecar: figures of the store read at each scrape, and what the daemon times itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache_l2.attach_messages import Speeds
from cache_l2.store import NamespaceCounts
from cache_l2.tenants import TenantFigures
from kv_types import limits
from kv_types.ids import NamespaceId
from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded
from sidecar.l3.metrics import l3_metrics, outcome_of
from sidecar.l3.tier import L3State
from sidecar.log.metrics import log_metrics
from sidecar.log.state import LogState
from sidecar.operator_metrics import operator_metrics
from sidecar.policy_metrics import policy_metrics
from sidecar.worker_metrics import worker_metrics

OTHER = "other"
_LATENCY_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
_ATTACH_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_EVICTION_PREFIX = "evictions_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a scrape shows, read in one go on the store's own thread.

    `models` names the namespaces, the first of this life first; `recycled` is what those counted that are among them no
    more. `resident` gives (pages, bytes) of each; `arena` and `attach` are statistics by
    name, `clients` counts attached workers by state, `speeds` is what they tell of themselves, by row; `freshness_remaining_s`
    is negative once hits have stopped.
    """

    models: Mapping[NamespaceId, str]
    counts: Mapping[NamespaceId, NamespaceCounts]
    recycled: NamespaceCounts
    resident: Mapping[NamespaceId, tuple[int, int]]
    arena: Mapping[str, int]
    clients: Mapping[str, int]
    attach: Mapping[str, int]
    arena_bytes: int
    freshness_remaining_s: float
    log: LogState
    l3: L3State
    tenants: Mapping[str, TenantFigures]
    pins: Mapping[str, int]
    speeds: Mapping[int, Speeds]
    calls_running: int
    calls_refused: int


class Metrics:
    """The registry of one sidecar. Names carry their units; a namespace is labelled by its model and short id."""

    def __init__(self, *, version: str, life: bytes, snapshot: Callable[[], Snapshot]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._calls = Histogram(
            "stratakv_grpc_call_duration_seconds",
            "Time from a gRPC call's arrival to its end, by method and status code.",
            ("method", "code"),
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self._attach = Histogram(
            "stratakv_attach_request_duration_seconds",
            "Time that the sidecar took for a request on the attach connection, by its kind.",
            ("request",),
            buckets=_ATTACH_S,
            registry=self.registry,
        )
        self._lag = Histogram(
            "stratakv_event_loop_lag_seconds",
            "How much later than asked for the event loop woke up.",
            buckets=_LAG_S,
            registry=self.registry,
        )
        self._applying = Histogram(
            "stratakv_log_apply_duration_seconds",
            "Time from taking up records of the invalidation log to having published them.",
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self._loads = Histogram(
            "stratakv_l3_load_duration_seconds",
            "Time that a request for pages of L3 took, by what came of it: whole, part, nothing, or late.",
            ("outcome",),
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.registry.register(_StoreCollector(version, life, snapshot))

    def observe_call(self, method: str, code: str, duration_s: float) -> None:
        """Count one gRPC call that has ended."""
        self._calls.labels(method, code).observe(duration_s)

    def observe_attach(self, request: str, duration_s: float) -> None:
        """Count one request on an attach connection."""
        self._attach.labels(request).observe(duration_s)

    def observe_applying(self, duration_s: float) -> None:
        """Count one batch of records that was applied."""
        self._applying.observe(duration_s)

    def observe_load(self, duration_s: float, rows: Sequence[RowLoaded]) -> None:
        """Count one request for pages of L3 that was answered."""
        self._loads.labels(outcome_of(rows)).observe(duration_s)

    def observe_lag(self, lag_s: float) -> None:
        """Count one wake-up of the event loop."""
        self._lag.observe(lag_s)


class _StoreCollector(Collector):
    def __init__(self, version: str, life: bytes, snapshot: Callable[[], Snapshot]) -> None:
        self._version = version
        self._life = life
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        snapshot = self._snapshot()
        info = GaugeMetricFamily(
            "stratakv_build_info", "1, with the version and the sidecar's life.", labels=("version", "life")
        )
        info.add_metric((self._version, self._life.hex()), 1)
        yield info
        yield from _namespace_metrics(snapshot)
        yield from _arena_metrics(snapshot)
        yield from operator_metrics(snapshot.tenants, snapshot.pins)
        yield from _daemon_metrics(snapshot)
        yield from log_metrics(snapshot.log)
        labels = namespace_labels(snapshot)
        yield from l3_metrics(
            snapshot.l3, lambda namespace: OTHER if namespace is None else labels.get(namespace, OTHER)
        )


def namespace_labels(snapshot: Snapshot) -> dict[NamespaceId, str]:
    """Label of each namespace: model and short id for the METRIC_NAMESPACES_MAX first registered, OTHER for the rest.

    A label never changes while the sidecar lives, so that no counter ever steps back.
    """
    return {
        namespace: f"{model}@{namespace.hex()[:12]}" if index < limits.METRIC_NAMESPACES_MAX else OTHER
        for index, (namespace, model) in enumerate(snapshot.models.items())
    }


def _namespace_metrics(snapshot: Snapshot) -> Iterable[Metric]:
    labels = namespace_labels(snapshot)
    counts: dict[str, NamespaceCounts] = {}
    resident: dict[str, tuple[int, int]] = {}
    for namespace, label in labels.items():
        counts[label] = counts.get(label, NamespaceCounts()) + snapshot.counts.get(
            namespace, NamespaceCounts()
        )
        pages, size = snapshot.resident.get(namespace, (0, 0))
        before = resident.get(label, (0, 0))
        resident[label] = (before[0] + pages, before[1] + size)
    if snapshot.recycled != NamespaceCounts():
        counts[OTHER] = counts.get(OTHER, NamespaceCounts()) + snapshot.recycled
    yield from _page_counters(counts)
    yield _gauges(
        "stratakv_resident_pages",
        "Pages that can be served from this node's memory.",
        {label: pages for label, (pages, _) in resident.items()},
    )
    yield _gauges(
        "stratakv_resident_bytes",
        "Payload bytes of those pages.",
        {label: size for label, (_, size) in resident.items()},
    )


def _page_counters(counts: Mapping[str, NamespaceCounts]) -> Iterable[Metric]:
    plain: tuple[tuple[str, str, Callable[[NamespaceCounts], int]], ...] = (
        ("stratakv_pages_requested", "Pages asked for by finished look-ups.", lambda count: count.requested),
        ("stratakv_look_ups", "Look-ups that have finished.", lambda count: count.look_ups),
        ("stratakv_read_bytes", "Payload bytes copied out of the arena.", lambda count: count.bytes_read),
        ("stratakv_written_bytes", "Payload bytes copied into the arena.", lambda count: count.bytes_written),
        (
            "stratakv_index_collisions",
            "Index entries that matched a key's hash only.",
            lambda count: count.collisions,
        ),
    )
    for name, text, read in plain:
        family = CounterMetricFamily(name, text, labels=("namespace",))
        for label, count in counts.items():
            family.add_metric((label,), read(count))
        yield family
    hits = CounterMetricFamily("stratakv_pages_hit", "Pages served, by tier.", labels=("namespace", "tier"))
    missed = CounterMetricFamily(
        "stratakv_pages_missed", "Pages not served, by reason.", labels=("namespace", "reason")
    )
    for label, count in counts.items():
        for tier, pages in (("l1", count.l1), ("l2", count.l2), ("l3", count.l3)):
            hits.add_metric((label, tier), pages)
        for reason in MissReason:
            if reason is not MissReason.NONE:
                missed.add_metric((label, reason.name.lower()), count.missed[reason])
    yield hits
    yield missed


def _gauges(name: str, text: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("namespace",))
    for label, value in values.items():
        family.add_metric((label,), value)
    return family


def _arena_metrics(snapshot: Snapshot) -> Iterable[Metric]:
    arena = snapshot.arena
    yield GaugeMetricFamily("stratakv_arena_bytes", "Memory committed for pages.", value=snapshot.arena_bytes)
    for name, text in (
        ("leased_bytes", "Payload bytes of pages that somebody holds leased."),
        ("reserved_bytes", "Bytes reserved by puts under way."),
        ("segments_total", "Segments of the arena."),
        ("segments_free", "Segments that belong to no page size now."),
        ("leases", "Leases held by all clients."),
        ("reservations", "Reservations held by all clients."),
        ("entries_total", "Pages that the index can hold."),
        ("entries_visible", "Pages that look-ups can find."),
        ("entries_hidden_leased", "Pages hidden already whose last lease is still held."),
        ("entries_quarantined", "Late reservations whose writer may still write."),
        ("entries_granted", "Slots that writers have in advance."),
    ):
        # "_total" at a gauge's end would make it look like a counter.
        yield GaugeMetricFamily(f"stratakv_{name.removesuffix('_total')}", text, value=arena.get(name, 0))
    yield CounterMetricFamily(
        "stratakv_segments_moved",
        "Segments given from one page size to another.",
        value=arena.get("segments_moved", 0),
    )
    evictions = CounterMetricFamily("stratakv_evictions", "Pages dropped, by cause.", labels=("cause",))
    for name, value in sorted(arena.items()):
        if name.startswith(_EVICTION_PREFIX):
            evictions.add_metric((name.removeprefix(_EVICTION_PREFIX),), value)
    yield evictions
    yield from policy_metrics(arena)
    puts = CounterMetricFamily(
        "stratakv_pages_put", "Pages of puts, by what became of them.", labels=("outcome",)
    )
    for outcome in ("stored", "known", "refused"):
        puts.add_metric((outcome,), arena.get(outcome, 0))
    yield puts
    yield CounterMetricFamily("stratakv_events", "Events published to workers.", value=arena.get("view", 0))


def _daemon_metrics(snapshot: Snapshot) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "stratakv_freshness_remaining_seconds",
        "Time for which hits are still served without another confirmation; negative: they have stopped.",
        value=snapshot.freshness_remaining_s,
    )
    clients = GaugeMetricFamily("stratakv_clients", "Workers that hold a row, by state.", labels=("state",))
    for state in ("attached", "orphaned"):
        clients.add_metric((state,), snapshot.clients.get(state, 0))
    yield clients
    yield GaugeMetricFamily(
        "stratakv_grpc_calls_running", "gRPC calls under way.", value=snapshot.calls_running
    )
    yield CounterMetricFamily(
        "stratakv_grpc_calls_overloaded", "gRPC calls refused above the limit.", value=snapshot.calls_refused
    )
    yield from _attach_metrics(snapshot.attach)
    yield from worker_metrics(snapshot.speeds)


def _attach_metrics(attach: Mapping[str, int]) -> Iterable[Metric]:
    for name in ("connections", "processes"):
        yield GaugeMetricFamily(f"stratakv_attach_{name}", f"Attach {name} now.", value=attach.get(name, 0))
    counts = CounterMetricFamily(
        "stratakv_attach_events", "What the attach server counted.", labels=("event",)
    )
    for name, value in sorted(attach.items()):
        if name not in {"connections", "processes"}:
            counts.add_metric((name,), value)
    yield counts
