"""Identity of one worker's shard, from the engine's own configuration: its base namespace and the size of its pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from inference_worker.connectors.vllm.engine_model import (
    RankRange,
    geometry_of,
    kv_dtype,
    layer_kinds,
    rope_of,
    sliding_window,
    unsupported,
)
from inference_worker.connectors.vllm.engine_numerics import Machine, digest_text, numerics_of
from inference_worker.connectors.vllm.engine_weights import model_name, weights_of
from inference_worker.connectors.vllm.file_digests import DigestMemory
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.computation import check_name
from kv_types.errors import ConfigError, InvalidArgumentError
from kv_types.limits import ENGINE_PAGE_TOKENS_MAX, NAME_BYTES_MAX, PAGE_BYTES_MAX, PAGE_TOKENS_MAX
from kv_types.namespace import Geometry, KvDtype, Namespace, Uncacheable, UncacheableReason, Weights
from kv_types.namespace import identify as name_computation
from kv_types.numbers import check_integer

__all__ = [
    "Machine",
    "PhysicalLayout",
    "RankRange",
    "WorkerIdentity",
    "blocks_of_a_page",
    "identify",
    "namespace_of",
]

_PAGE_TOKENS_LEAST = 64
_PAGE_BYTES_LEAST = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalLayout:
    """How one engine block of a shard lies in memory, as the worker found it in the registered tensors.

    `name` tells the order of bytes inside a block, and where that depends on it, the instruction set.
    `bytes_per_block`: over all layers of the shard. Raises InvalidArgumentError.
    """

    name: str
    block_tokens: int
    bytes_per_block: int

    def __post_init__(self) -> None:
        check_name(self.name, "name of a physical layout")
        check_integer(self.block_tokens, "block_tokens", low=1, high=2**31 - 1)
        check_integer(self.bytes_per_block, "bytes_per_block", low=1, high=2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """What a worker tells the scheduler's side at start; can be pickled.

    `base`: the namespace of its shard without adapter and tenant, or why it has none; then `page_bytes` is 0.
    `board`: (pid, descriptor) of its version board.
    """

    base: Namespace | Uncacheable
    page_bytes: int
    blocks_per_page: int
    block_tokens: int
    model: str
    board: tuple[int, int] | None = None

    @property
    def page_tokens(self) -> int:
        """Tokens of one page."""
        return self.blocks_per_page * self.block_tokens


def identify(
    vllm_config: Any,
    *,
    layout: PhysicalLayout,
    rank: RankRange,
    settings: ConnectorSettings,
    kv_cache_config: Any = None,
    machine: Machine | None = None,
    memory: DigestMemory | None = None,
) -> WorkerIdentity:
    """Name what a worker computes, after it has loaded its weights; reads files unless weights have a version or commit.

    `kv_cache_config`: the engine's groups of layers; with them what it does is seen, and not only what it was told.
    Whatever the model is like becomes an Uncacheable. Raises ConfigError when settings don't fit this engine, and with
    `require_cacheable` when the model can't be named.
    """
    machine = Machine.of_this_process() if machine is None else machine
    blocks = _blocks_of_a_page(layout, settings)
    model = model_name(vllm_config.model_config, settings)
    base: Namespace | Uncacheable
    if isinstance(blocks, Uncacheable):
        base, blocks = blocks, 1
    else:
        base = _base(
            vllm_config,
            layout=layout,
            rank=rank,
            settings=settings,
            kv_cache_config=kv_cache_config,
            machine=machine,
            memory=memory,
            model=model,
            blocks=blocks,
        )
    if isinstance(base, Uncacheable) and settings.require_cacheable:
        raise ConfigError(
            f"require_cacheable is set, and pages of this model can't be kept ({base.reason}): {base.detail}"
        )
    return WorkerIdentity(
        base=base,
        page_bytes=0 if isinstance(base, Uncacheable) else blocks * layout.bytes_per_block,
        blocks_per_page=blocks,
        block_tokens=layout.block_tokens,
        model=model or "",
    )


def namespace_of(base: Namespace, variant: Variant) -> Namespace:
    """Namespace of requests of a variant on the shard that `base` names.

    A variant's version of the weights takes the place of what named them. Raises InvalidArgumentError when a name is too
    long, which RequestNaming does not let pass.
    """
    version = variant.weights_version
    return replace(
        base,
        weights=base.weights if version is None else Weights(version=version),
        adapter=variant.adapter,
        tenant=variant.tenant,
    )


def blocks_of_a_page(layout: PhysicalLayout) -> int:
    """How many engine blocks make a page where nobody said it.

    A prefix is reused in whole pages, so a page should be short; each page costs a key, an entry, a copy's set-up and,
    in L3, a request, so it shouldn't be small. From 256 KiB on these are small against moving the bytes, and with fewer
    than 64 tokens a chain gets long for nothing. More than 256 tokens would lose more reuse at a prompt's end than larger
    pages gain. Blocks that are larger than that by themselves are pages of one block.
    """
    blocks = 1
    while (
        blocks * layout.block_tokens < _PAGE_TOKENS_LEAST
        or blocks * layout.bytes_per_block < _PAGE_BYTES_LEAST
    ) and (
        (blocks + 1) * layout.block_tokens <= ENGINE_PAGE_TOKENS_MAX
        and (blocks + 1) * layout.bytes_per_block <= PAGE_BYTES_MAX
    ):
        blocks += 1
    return blocks


def _blocks_of_a_page(layout: PhysicalLayout, settings: ConnectorSettings) -> int | Uncacheable:
    if settings.page_tokens is None:
        blocks = blocks_of_a_page(layout)
    elif settings.page_tokens % layout.block_tokens:
        raise ConfigError(
            f"kv_connector_extra_config: page_tokens is {settings.page_tokens}; with the engine's blocks of "
            f"{layout.block_tokens} tokens it must be a multiple of that"
        )
    else:
        blocks = settings.page_tokens // layout.block_tokens
        if blocks * layout.bytes_per_block > PAGE_BYTES_MAX:
            raise ConfigError(
                f"kv_connector_extra_config: a page of {settings.page_tokens} tokens takes "
                f"{blocks * layout.bytes_per_block} bytes; at most {PAGE_BYTES_MAX} are allowed: use fewer page_tokens"
            )
    if layout.bytes_per_block > PAGE_BYTES_MAX or blocks * layout.block_tokens > PAGE_TOKENS_MAX:
        return Uncacheable(
            UncacheableReason.INVALID,
            f"an engine block has {layout.block_tokens} tokens and {layout.bytes_per_block} bytes; a page may have "
            f"{PAGE_TOKENS_MAX} and {PAGE_BYTES_MAX}: use a smaller block_size",
        )
    return blocks


def _base(
    vllm_config: Any,
    *,
    layout: PhysicalLayout,
    rank: RankRange,
    settings: ConnectorSettings,
    kv_cache_config: Any,
    machine: Machine,
    memory: DigestMemory | None,
    model: str | None,
    blocks: int,
) -> Namespace | Uncacheable:
    model_config = vllm_config.model_config
    shape = _shape(vllm_config, layout, rank, kv_cache_config, machine)
    if isinstance(shape, Uncacheable):
        return shape
    dtype, geometry = shape

    def name(weights: Weights) -> Namespace | Uncacheable:
        return name_computation(
            model=model,
            weights=weights,
            kv_dtype=dtype,
            geometry=geometry,
            page_tokens=blocks * layout.block_tokens,
            rope=rope_of(model_config),
            sliding_window=sliding_window(model_config),
            layer_kinds=layer_kinds(model_config),
            layout=_layout_text(layout, blocks),
            numerics=numerics_of(vllm_config, machine),
            stored_as=settings.stored_as,
        )

    try:
        # Files are read last: what can't be named for another reason need not wait for them.
        tried = name(Weights(version="?"))
        if isinstance(tried, Uncacheable):
            return tried
        weights = weights_of(model_config, vllm_config.load_config, settings, memory)
        if isinstance(weights, Uncacheable):
            return weights
        if settings.follow_weights and weights.version is None:
            raise ConfigError(
                "kv_connector_extra_config: follow_weights needs weights that are named by a version; give weights_version"
            )
        return name(weights)
    except InvalidArgumentError as error:
        return Uncacheable(UncacheableReason.INVALID, str(error))


def _layout_text(layout: PhysicalLayout, blocks: int) -> str:
    """Canonical text of how a page lies: its blocks one after another, each as the layout says."""
    prefix = f"vllm-1 block={layout.block_tokens} blocks={blocks} "
    text = prefix + layout.name
    return text if len(text.encode()) <= NAME_BYTES_MAX else prefix + digest_text(layout.name)


def _shape(
    vllm_config: Any, layout: PhysicalLayout, rank: RankRange, kv_cache_config: Any, machine: Machine
) -> tuple[KvDtype, Geometry] | Uncacheable:
    problem = unsupported(vllm_config, rank, kv_cache_config)
    if problem is not None:
        return problem
    dtype = kv_dtype(vllm_config, is_rocm=machine.is_rocm)
    if isinstance(dtype, Uncacheable):
        return dtype
    geometry = geometry_of(
        vllm_config,
        rank,
        dtype=dtype,
        block_tokens=layout.block_tokens,
        bytes_per_block=layout.bytes_per_block,
    )
    return geometry if isinstance(geometry, Uncacheable) else (dtype, geometry)
