"""Puts the connector's halves together: clients, identity, governor. The one place that knows all of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from cache_l1.transfer_registration import RegisteredMemory, registered_memory
from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.vllm.adapters import AdapterDigests
from inference_worker.connectors.vllm.block_layout import BlockLayout
from inference_worker.connectors.vllm.fuse import FusedScheduler
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.identity import PhysicalLayout, RankRange, WorkerIdentity, identify
from inference_worker.connectors.vllm.naming import RequestNaming
from inference_worker.connectors.vllm.scheduler_side import SchedulerSide
from inference_worker.connectors.vllm.settings import ConnectorSettings, EngineCache, LoadMode, OnInvalidation
from inference_worker.connectors.vllm.worker_side import WorkerSide
from kv_types.clock import BoottimeClock
from kv_types.errors import ConfigError
from kv_types.limits import PREFETCHES_IN_FLIGHT_MAX
from kv_types.namespace import Uncacheable
from kv_types.validity import EngineMode

_log = logging.getLogger("stratakv.vllm")


def settings_in(settings: ConnectorSettings, vllm_config: Any) -> ConnectorSettings:
    """What an operator chose, as far as this engine allows.

    With a step under way while the next is made, a request whose load has failed is computed on in that one, and answers
    with what it gives: so it is loaded before it is scheduled.
    """
    is_ahead = bool(getattr(vllm_config.scheduler_config, "async_scheduling", False))
    if not is_ahead or settings.load_mode is LoadMode.ASYNC:
        return settings
    _log.info("load_mode is async: this engine schedules a step ahead (--no-async-scheduling for the others)")
    return replace(settings, load_mode=LoadMode.ASYNC)


def connect_scheduler(settings: ConnectorSettings, vllm_config: Any) -> FusedScheduler:
    """Connect to the sidecar as an engine's scheduler. Raises ConfigError."""
    mode = EngineMode.KEEP if settings.engine_cache is EngineCache.KEEP else EngineMode.DROP
    recompute = settings.on_invalidation is OnInvalidation.RECOMPUTE
    if recompute and getattr(vllm_config.scheduler_config, "async_scheduling", False):
        raise ConfigError(
            "on_invalidation is recompute, which needs an engine that has one step under way at a time: give "
            "--no-async-scheduling, or on_invalidation finish"
        )
    client = Client.connect(
        settings.endpoint,
        settings=ClientSettings(
            name="vllm-scheduler",
            deadline_s=settings.scheduler_deadline_s,
            engine=mode,
            writable=False,
            prefault=False,
            prefetches_in_flight_max=PREFETCHES_IN_FLIGHT_MAX,
            prefill_tokens_per_s=settings.prefill_tokens_per_s,
        ),
    )
    governor = Governor(client.validity, BoottimeClock(), mode=mode, recompute=recompute)
    shares_encodings = getattr(vllm_config, "ec_transfer_config", None) is not None
    naming = RequestNaming(settings, AdapterDigests(), shares_encodings=shares_encodings)
    return FusedScheduler(SchedulerSide(client, settings, naming, governor), governor)


def connect_worker(
    settings: ConnectorSettings, vllm_config: Any, kv_cache_config: Any, *, rank: int
) -> WorkerSide:
    """Connect to the sidecar as one of an engine's workers. Raises ConfigError."""
    registered = _registered_memory()
    client = Client.connect(
        settings.endpoint,
        settings=ClientSettings(
            name=f"vllm-worker-{rank}",
            register_memory=None if registered is None else registered.register,
        ),
    )
    parallel = vllm_config.parallel_config
    place = RankRange(
        tensor_rank=rank % parallel.tensor_parallel_size,
        tensor_size=parallel.tensor_parallel_size,
        pipeline_rank=rank // parallel.tensor_parallel_size,
        pipeline_size=parallel.pipeline_parallel_size,
    )

    def named(layout: BlockLayout | Uncacheable, board: tuple[int, int]) -> WorkerIdentity:
        if isinstance(layout, Uncacheable):
            return WorkerIdentity(
                base=layout, page_bytes=0, blocks_per_page=1, block_tokens=1, model="", board=board
            )
        physical = PhysicalLayout(
            name=layout.name, block_tokens=layout.block_tokens, bytes_per_block=layout.bytes_per_block
        )
        found = identify(
            vllm_config, layout=physical, rank=place, settings=settings, kv_cache_config=kv_cache_config
        )
        return replace(found, board=board)

    return WorkerSide(
        client,
        named,
        rank=rank,
        settings=settings,
        tensor_size=parallel.tensor_parallel_size,
        may_sleep=bool(getattr(vllm_config.model_config, "enable_sleep_mode", False)),
        registered=registered,
    )


def _registered_memory() -> RegisteredMemory | None:
    """Of the device that the engine has chosen for this worker by now; None where that is the processor."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return None
    return registered_memory(torch.device("cuda", cuda.current_device()))
