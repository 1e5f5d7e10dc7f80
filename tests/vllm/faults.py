"""Faults that tests put into a running engine, called in its process between two steps (`Engine.inside`)."""

from __future__ import annotations

from typing import Any


def plant(engine: Any, spare: int = 0) -> int:
    """Overwrite the KV of all running requests with what no computation gave; returns in how many blocks.

    Before their pages are stored: so the engine's own cache and ours both have it. The first `spare` blocks are left.
    """
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    blocks = {
        block
        for request in scheduler.running
        for block in scheduler.kv_cache_manager.get_block_ids(request.request_id)[0][spare:]
    }
    worker = core.model_executor.driver_worker
    runner = getattr(worker, "worker", worker).model_runner
    for tensor in runner.kv_caches:
        for block in blocks:
            tensor[block].fill_(0.37)
    return len(blocks)


def cached_blocks(engine: Any) -> int:
    """Blocks that the engine's own prefix cache has."""
    pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    return sum(block.block_hash is not None for block in pool.blocks)


def connector_counts(engine: Any) -> dict[str, float]:
    """The scheduler's statistics of our connector."""
    return dict(engine.engine_core.engine_core.scheduler.connector.statistics)


def give_memory_away(engine: Any) -> None:
    """Reset all caches and lose what blocks hold, as an engine that sleeps does on an accelerator."""
    core = engine.engine_core.engine_core
    core.scheduler.reset_connector_cache()
    worker = core.model_executor.driver_worker
    for tensor in getattr(worker, "worker", worker).model_runner.kv_caches:
        tensor.fill_(0.37)
