"""The answer of Status: the sidecar's state as one message."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cache_l2.attach_messages import Speeds
from cache_l2.store import ArenaStore, ClientRow, NamespaceCounts, NamespaceRecord
from cache_l2.tenants import TenantFigures
from kv_types.clock import Clock
from kv_types.ids import NamespaceId
from kv_types.outcomes import MissReason
from kv_wire.conversions import stamp_to_wire
from kv_wire.gen import cache_pb2
from sidecar.l3.tier import L3State
from sidecar.log.state import LogPicture
from sidecar.metrics import Snapshot

_NS = 1_000_000_000


@dataclass(slots=True)
class Addresses:
    """Where this sidecar can be reached."""

    runtime_dir: str = ""
    attach_path: str = ""
    grpc: list[str] = field(default_factory=list)
    metrics: str = ""


class StatusReport:
    """Reads one store for the status call and for metrics."""

    def __init__(
        self,
        store: ArenaStore,
        log: Callable[[], LogPicture],
        l3: Callable[[], L3State],
        memory: Callable[[], cache_pb2.MemoryStatus],
        *,
        version: str,
        clock: Clock,
        addresses: Addresses,
    ) -> None:
        self._store = store
        self._log = log
        self._l3 = l3
        self._memory = memory
        self._version = version
        self._clock = clock
        self._addresses = addresses
        self._began = time.monotonic()

    def message(
        self, *, attach: Mapping[str, int], names: Mapping[int, str], speeds: Mapping[int, Speeds]
    ) -> cache_pb2.StatusResponse:
        """Return the present state as a message; `names` gives what clients call themselves, `speeds` what they tell, by row."""
        counts = self._store.namespace_counts()
        resident = self._store.namespace_resident()
        log = self._log()
        answer = cache_pb2.StatusResponse(
            version=self._version,
            life=self._store.life,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began,
            serving=not self._store.is_draining,
            stamp=stamp_to_wire(self._store.stamp()),
            view=self._store.view,
            arena_bytes=self._store.config.arena_bytes,
            arena=dict(self._store.statistics()),
            attach=dict(attach),
            attach_path=self._addresses.attach_path,
            grpc_addresses=self._addresses.grpc,
            metrics_address=self._addresses.metrics,
            runtime_dir=self._addresses.runtime_dir,
            freshness_remaining_ms=int(self._freshness_remaining_s() * 1000),
            log=_log_status(log),
            l3=_l3_status(self._l3()),
            memory=self._memory(),
            weights_versions=log.weights,
            tenants=[_tenant(name, figures) for name, figures in self._store.tenants.figures().items()],
            pins=self._store.pins.figures(),
        )
        for record in self._store.namespaces():
            count = counts.get(record.id, NamespaceCounts())
            answer.namespaces.append(_namespace(record, count, resident.get(record.id, (0, 0))))
        for row in self._store.clients():
            told = speeds.get(row.row, Speeds())
            name = names.get(row.row, "")
            answer.clients.append(_client(row, told, own=self._store.own_row, name=name))
        return answer

    def snapshot(
        self,
        *,
        attach: Mapping[str, int],
        speeds: Mapping[int, Speeds],
        calls_running: int,
        calls_refused: int,
    ) -> Snapshot:
        """Return the present figures for a scrape."""
        return Snapshot(
            models=self._models(),
            counts=self._store.namespace_counts(),
            recycled=self._store.recycled_counts(),
            resident=self._store.namespace_resident(),
            arena=self._store.statistics(),
            clients=Counter(row.state for row in self._store.clients() if row.row != self._store.own_row),
            attach=attach,
            arena_bytes=self._store.config.arena_bytes,
            freshness_remaining_s=self._freshness_remaining_s(),
            log=self._log().state,
            l3=self._l3(),
            tenants=self._store.tenants.figures(),
            pins=self._store.pins.figures(),
            speeds=speeds,
            calls_running=calls_running,
            calls_refused=calls_refused,
        )

    def _models(self) -> dict[NamespaceId, str]:
        """Models of the first namespaces of this life, which keep their places, and of those registered now."""
        models = {id: namespace.model for id, namespace in self._store.first_namespaces().items()}
        return models | {record.id: record.namespace.model for record in self._store.namespaces()}

    def _freshness_remaining_s(self) -> float:
        return (self._store.reader.freshness_ns() - self._clock.now_ns()) / _NS


def _log_status(log: LogPicture) -> cache_pb2.LogStatus:
    state = log.state
    position, ago_s = state.position, state.confirmed_ago_s
    return cache_pb2.LogStatus(
        fleet=log.fleet,
        kind=log.kind,
        address=log.address,
        phase=state.phase,
        reason=state.reason,
        member=state.member,
        incarnation=b"" if position is None else position.incarnation,
        tip=state.tip,
        applied=0 if position is None else position.revision,
        acknowledged=state.acknowledged,
        drained=state.drained,
        confirmed_ms_ago=-1 if ago_s is None else int(ago_s * 1000),
        held_by=state.held_by,
        draining_held_by=state.draining_held_by,
        sizes=dict(state.sizes),
        settled=state.settled,
        why_local=log.why_local,
        server=state.server,
        server_errors=state.server_errors,
        server_warnings=state.server_warnings,
    )


def _l3_status(state: L3State) -> cache_pb2.L3Status:
    picture = state.picture
    servers = () if picture is None else picture.servers
    return cache_pb2.L3Status(
        why_off=state.why_off,
        kind="" if picture is None else picture.kind,
        servers=[
            cache_pb2.L3ServerStatus(
                server=one.server, breaker=one.breaker, connections=one.connections, last_error=one.last_error,
                writes=one.writes, refused=one.refused, last_error_ms_ago=one.last_error_ms_ago,
            )
            for one in servers
        ],
        trouble="" if picture is None else picture.trouble,
        choices=state.choices,
        loads=dict(state.loads),
        stores=dict(state.stores),
        records=dict(state.records),
    )  # fmt: skip


def _namespace(
    record: NamespaceRecord, count: NamespaceCounts, resident: tuple[int, int]
) -> cache_pb2.NamespaceStatus:
    return cache_pb2.NamespaceStatus(
        namespace_id=record.id,
        model=record.namespace.model,
        page_bytes=record.page_bytes,
        page_tokens=record.namespace.page_tokens,
        resident_pages=resident[0],
        resident_bytes=resident[1],
        requested_pages=count.requested,
        l1_pages=count.l1,
        l2_pages=count.l2,
        l3_pages=count.l3,
        missed_pages={
            reason.name.lower(): count.missed[reason] for reason in MissReason if count.missed[reason]
        },
    )


def _tenant(tenant: str, figures: TenantFigures) -> cache_pb2.TenantStatus:
    return cache_pb2.TenantStatus(
        tenant=tenant,
        share_bytes=figures.share_bytes,
        used_bytes=figures.used_bytes,
        evictions_own=figures.evictions_own,
        evictions_caused=figures.evictions_caused,
        evictions_suffered=figures.evictions_suffered,
    )


def _client(row: ClientRow, speeds: Speeds, *, own: int, name: str) -> cache_pb2.ClientStatus:
    return cache_pb2.ClientStatus(
        row=row.row,
        pid=row.pid,
        state="service" if row.row == own else row.state,
        leases=row.leases,
        leased_bytes=row.leased_bytes,
        reservations=row.reservations,
        name=name,
        oldest_view=row.oldest_view,
        oldest_hidden_view=row.oldest_hidden_view,
        prefill_tokens_per_s=speeds.prefill_tokens_per_s,
        copy_latency_s=speeds.copy_latency_s,
        copy_bytes_per_s=speeds.copy_bytes_per_s,
    )
