"""What the connector reads off the engine it runs in: its rank, its attention layers, and whether it can be served at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kv_types.errors import ConfigError

_LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """How this worker's attention layers keep KV: the names of its layers in the model's order, and who reads the blocks.

    `block_tokens` and `num_blocks`: of the engine's pool. `groups`: KV cache groups; more than one is no single chain.
    """

    layer_order: tuple[str, ...]
    attention_name: str
    isa: str
    block_tokens: int
    num_blocks: int
    groups: int


def check_engine(vllm_config: Any) -> None:
    """Raise ConfigError for set-ups in which this connector could not keep what it promises."""
    transfer = vllm_config.kv_transfer_config
    if transfer.kv_role != "kv_both":
        raise ConfigError(
            f'kv_role is {transfer.kv_role!r}; this connector loads and stores: give "kv_role": "kv_both"'
        )
    if transfer.kv_load_failure_policy != "recompute":
        raise ConfigError(
            f"kv_load_failure_policy is {transfer.kv_load_failure_policy!r}: a page that went away between look-up and load "
            'would fail its request; give "kv_load_failure_policy": "recompute"'
        )
    if transfer.kv_connector != "StrataConnector":
        raise ConfigError(
            f"{transfer.kv_connector} keeps pages of its own beside this connector, which no invalidation would reach: "
            "load StrataConnector by itself"
        )


def rank_of(vllm_config: Any) -> int:
    """This worker's number among those that hold one copy of the model."""
    parallel = vllm_config.parallel_config
    return int(parallel.rank % (parallel.tensor_parallel_size * parallel.pipeline_parallel_size))


def layer_facts(vllm_config: Any, kv_cache_config: Any, kv_caches: Mapping[str, Any]) -> LayerFacts:
    """Describe the layers that were registered."""
    layers = vllm_config.compilation_config.static_forward_context
    order = tuple(sorted(kv_caches, key=_position))
    first = layers.get(order[0]) if order else None
    backends = {_backend_name(layers.get(name)) for name in order}
    group = kv_cache_config.kv_cache_groups[0]
    return LayerFacts(
        layer_order=order,
        attention_name="+".join(sorted(backends)),
        isa=str(getattr(first, "isa", "")),
        block_tokens=int(group.kv_cache_spec.block_size),
        num_blocks=int(kv_cache_config.num_blocks),
        groups=len(kv_cache_config.kv_cache_groups),
    )


def _position(layer_name: str) -> tuple[list[int], str]:
    return [int(number) for number in _LAYER.findall(layer_name)], layer_name


def _backend_name(layer: Any) -> str:
    backend = getattr(layer, "attn_backend", None)
    return str(backend.get_name()) if backend is not None else type(layer).__name__
