"""StrataConnector: what vLLM loads; it hands each of the engine's calls to the scheduler's side or to the worker's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from inference_worker.connectors.vllm.engine_facts import check_engine, layer_facts, rank_of
from inference_worker.connectors.vllm.fuse import FusedScheduler
from inference_worker.connectors.vllm.identity import WorkerIdentity
from inference_worker.connectors.vllm.metrics import StrataPromMetrics, StrataStats
from inference_worker.connectors.vllm.plan import StepPlan, WorkerReport
from inference_worker.connectors.vllm.settings import ConnectorSettings, LoadMode
from inference_worker.connectors.vllm.wiring import connect_scheduler, connect_worker, settings_in
from inference_worker.connectors.vllm.worker_side import WorkerSide

__all__ = ["StrataConnector"]


@dataclass
class _Orders(KVConnectorMetadata):
    plan: StepPlan


@dataclass
class _Handshake(KVConnectorHandshakeMetadata):
    identity: WorkerIdentity


@dataclass
class _Report(KVConnectorWorkerMetadata):
    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> _Report:
        assert isinstance(other, _Report), f"a report of another connector: {type(other).__name__}"
        return _Report(self.report.merge(other.report))


class StrataConnector(KVConnectorBase_V1, SupportsHMA):
    """See docs/vllm.md. One instance is the scheduler's, and one each worker's; either has its own client."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises ConfigError for what is wrong with the settings or can't work in this engine."""
        super().__init__(vllm_config, role, kv_cache_config)
        chosen = ConnectorSettings.of(self._kv_transfer_config.kv_connector_extra_config)
        check_engine(vllm_config)
        self._settings = settings_in(chosen, vllm_config)
        self._scheduler: FusedScheduler | None = None
        self._worker: WorkerSide | None = None
        self._told: dict[str, float] = {}
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = connect_scheduler(self._settings, vllm_config)
        else:
            self._worker = connect_worker(
                self._settings, vllm_config, kv_cache_config, rank=rank_of(vllm_config)
            )

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a page that is not stored is a miss later, and nothing else."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether graphs must leave room for waits between layers."""
        return ConnectorSettings.of(extra_config).load_mode is LoadMode.LAYERWISE

    # --- the scheduler's side --------------------------------------------------------------------------------------

    @property
    def _planner(self) -> FusedScheduler:
        assert self._scheduler is not None, "this is a worker's connector"
        return self._scheduler

    @contextlib.contextmanager
    def _scheduling(self) -> Iterator[FusedScheduler]:
        side, began = self._planner, time.perf_counter()
        try:
            yield side
        finally:
            side.side.hook_s += time.perf_counter() - began

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._planner.bind(kv_cache_manager)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Any]) -> None:
        ranks = {rank: metadata[rank].identity for rank in sorted(metadata)}
        self._planner.side.learn_workers(dict(enumerate(ranks.values())))

    def on_new_request(self, request: Any) -> None:
        with self._scheduling() as side:
            side.arrive(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        with self._scheduling() as side:
            return side.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        with self._scheduling() as side:
            side.admit(request, blocks.get_block_ids()[0], num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        l3 = self._planner.l3_tokens(request.request_id, num_external_tokens)
        sources = {CacheHitSource.HOST: num_external_tokens - l3, CacheHitSource.EXTERNAL_UNSPECIFIED: l3}
        return {source: tokens for source, tokens in sources.items() if tokens}

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        with self._scheduling() as side:
            plan = side.plan_step(
                scheduler_output.num_scheduled_tokens, sorted(scheduler_output.preempted_req_ids or ())
            )
        return _Orders(plan)

    def update_connector_output(self, connector_output: Any) -> None:
        told = connector_output.kv_connector_worker_meta
        with self._scheduling() as side:
            side.take_report(
                None if told is None else told.report, sorted(connector_output.finished_recving or ())
            )

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        with self._scheduling() as side:
            return side.finish(request, block_ids[0])

    def reset_cache(self) -> bool:
        """Void what this engine may find: its weights may have changed under their name. See docs/vllm.md.

        False, though that is done, while blocks of requests that have ended are read: whoever asks may be about to give up
        the engine's memory.
        """
        return self._planner.reset()

    # --- a worker's side -------------------------------------------------------------------------------------------

    @property
    def _executor(self) -> WorkerSide:
        assert self._worker is not None, "this is the scheduler's connector"
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._executor.register_kv_caches(
            kv_caches, layer_facts(self._vllm_config, self._kv_cache_config, kv_caches)
        )

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return _Handshake(self._executor.identity)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, _Orders), "orders of another connector"
        self._executor.handle_preemptions(kv_connector_metadata.plan)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, _Orders), "orders of another connector"
        self._executor.begin_step(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._executor.start_loads()

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._executor.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: pages are stored from the engine's blocks, once the step that filled them is known to be right."""

    def wait_for_save(self) -> None:
        self._executor.end_step()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self._executor.finished()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._executor.failed_block_ids()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self._executor.report()
        return None if report is None else _Report(report)

    def set_weights_version(self, version: str) -> None:
        """Name this worker's weights, which were changed before this is called. See stratakv.vllm.set_weights_version."""
        self._executor.set_weights_version(version)

    # --- both ------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> dict[str, float]:
        """Counters and gauges of this side, by name."""
        side = self._scheduler or self._executor
        return {name: float(value) for name, value in side.statistics().items()}

    def get_kv_connector_stats(self) -> StrataStats | None:
        """What was counted since the last call."""
        now = self.statistics
        fresh = StrataStats.between(self._told, now)
        self._told = now
        return None if fresh.is_empty() else fresh

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StrataStats:
        return StrataStats(data={} if data is None else data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> StrataPromMetrics:
        return StrataPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.side.shutdown()
        if self._worker is not None:
            self._worker.shutdown()
