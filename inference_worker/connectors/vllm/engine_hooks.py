"""Puts a governor into a vLLM KVCacheManager: around its steps' beginning, its look-up, and what it hashes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol, get_args

from inference_worker.connectors.vllm.governed import BlockPool, GateAnswer, UngovernedEngineError

_SIGNATURES = (
    ("new_step_starts", ()),
    ("get_computed_blocks", ("request",)),
    ("evict_blocks", ("block_ids",)),
    ("coordinator.cache_blocks", ("request", "num_computed_tokens")),
    ("block_pool.get_cached_block", ("block_hash", "kv_cache_group_ids")),
    ("block_pool.evict_blocks", ("block_ids",)),
)
_ATTRIBUTES = (
    "empty_kv_cache_blocks",
    "enable_caching",
    "num_kv_cache_groups",
    "block_pool.blocks",
    "block_pool.cached_block_hashes_by_block",
    "block_pool.hash_block_size",
    "coordinator.single_type_managers",
)
_BLOCK_ATTRIBUTES = ("block_id", "block_hash", "is_null")
_SCAN_FROM = 1 / 8
"""Of so large a part of the pool, all blocks are looked at once instead of each hash twice."""


class EnginePool:
    """Conforms to governed.BlockPool. `manager`: a KVCacheManager; hashes are looked up in group 0."""

    def __init__(self, manager: Any) -> None:
        self._pool = manager.block_pool

    def has(self, block_hash: bytes) -> bool:
        """Whether any block is cached under this hash."""
        return self._pool.get_cached_block(block_hash, [0]) is not None

    def evict(self, block_hashes: Iterable[bytes]) -> int:
        """Take the hash from all blocks that have one of these; several may have the same."""
        hashes = set(block_hashes)
        evicted = 0
        if len(hashes) > len(self._pool.blocks) * _SCAN_FROM:
            evicted = self._evict_by_scan(hashes)
            if not self._pool.cached_block_hashes_by_block:  # no block has a second hash
                return evicted
        for block_hash in hashes:
            while (found := self._pool.get_cached_block(block_hash, [0])) is not None:
                self._pool.evict_blocks({found[0].block_id})
                evicted += 1
        return evicted

    def _evict_by_scan(self, hashes: set[bytes]) -> int:
        """Most of them in one go; a block's own hash is one of ours followed by its group's number."""
        size = len(next(iter(hashes)))
        blocks = self._pool.blocks
        ids = {b.block_id for b in blocks if b.block_hash is not None and b.block_hash[:size] in hashes}
        self._pool.evict_blocks(ids)
        return len(ids)

    def evict_all(self) -> int:
        """Take the hash from all blocks of all groups. The engine's own reset refuses while any block is in use."""
        ids = {block.block_id for block in self._pool.blocks if block.block_hash is not None}
        self._pool.evict_blocks(ids)
        return len(ids)


class Governs(Protocol):
    """What is put into the engine's manager: a Governor, or one behind a fuse."""

    def bind(self, pool: BlockPool, *, block_tokens: int, can_be_exact: bool) -> None:
        """See Governor."""
        ...

    def boundary(self) -> None:
        """See Governor."""
        ...

    def gate(self, request_id: str) -> GateAnswer:
        """See Governor."""
        ...

    def looked_up(self) -> None:
        """See Governor."""
        ...

    def may_hash(self, request_id: str) -> bool:
        """See Governor."""
        ...

    def hashed(self, request_id: str, tokens: int) -> None:
        """See Governor."""
        ...


def govern(governor: Governs, manager: Any) -> None:
    """Wrap a KVCacheManager, so that its cache serves and takes only what the governor allows.

    Raises UngovernedEngineError when it looks different from those that are known.
    """
    _check(manager)
    managers = manager.coordinator.single_type_managers
    is_plain = (
        manager.num_kv_cache_groups == 1 and managers[0].block_size == manager.block_pool.hash_block_size
    )
    governor.bind(EnginePool(manager), block_tokens=managers[0].block_size, can_be_exact=is_plain)
    manager.new_step_starts = _boundary(governor, manager.new_step_starts)
    manager.get_computed_blocks = _gate(governor, manager)
    manager.coordinator.cache_blocks = _cache_blocks(governor, manager.coordinator.cache_blocks)


def reset_beside(manager: Any, held: Callable[[], set[int]]) -> None:
    """Let the engine's owner reset its cache while no block is in use but those that are `held` to be stored.

    The engine refuses then, and whoever has loaded other weights would be served on from before.
    """
    reset = manager.reset_prefix_cache

    def reset_all() -> bool:
        pool = manager.block_pool
        blocks = held()
        if not blocks or pool.num_gpu_blocks - pool.get_num_free_blocks() - 1 != len(blocks):
            return bool(reset())
        EnginePool(manager).evict_all()
        if manager.log_stats:
            manager.prefix_cache_stats.reset = True
        return True

    manager.reset_prefix_cache = reset_all


def _boundary(governor: Governs, new_step_starts: Callable[[], None]) -> Callable[[], None]:
    def governed() -> None:
        governor.boundary()
        new_step_starts()

    return governed


def _gate(governor: Governs, manager: Any) -> Callable[[Any], Any]:
    get_computed_blocks = manager.get_computed_blocks

    def governed(request: Any) -> Any:
        try:
            if governor.gate(request.request_id) is GateAnswer.SERVE:
                return get_computed_blocks(request)
            return manager.empty_kv_cache_blocks, 0, 0
        finally:
            governor.looked_up()

    return governed


def _cache_blocks(governor: Governs, cache_blocks: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    def governed(request: Any, num_computed_tokens: int) -> None:
        if governor.may_hash(request.request_id):
            cache_blocks(request, num_computed_tokens)
            governor.hashed(request.request_id, num_computed_tokens)

    return governed


def _check(manager: Any) -> None:
    """Raise UngovernedEngineError unless everything that is wrapped or called is there, and is called as we call it."""
    for path in _ATTRIBUTES:
        _find(manager, path)
    for path, parameters in _SIGNATURES:
        function = _find(manager, path)
        try:
            found = tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            found = ("?",)
        if found != parameters:
            raise _ungoverned(f"{path} takes ({', '.join(found)}), not ({', '.join(parameters)})")
    returned = get_args(inspect.signature(manager.get_computed_blocks).return_annotation)
    if returned and len(returned) != 3:
        raise _ungoverned(f"get_computed_blocks returns {len(returned)} values, not 3")
    blocks = manager.block_pool.blocks
    for name in _BLOCK_ATTRIBUTES if blocks else ():
        _find(blocks[0], name)


def _find(owner: Any, path: str) -> Any:
    for name in path.split("."):
        if not hasattr(owner, name):
            raise _ungoverned(f"{type(owner).__name__} has no {name}")
        owner = getattr(owner, name)
    return owner


def _ungoverned(difference: str) -> UngovernedEngineError:
    return UngovernedEngineError(
        "this vLLM's prefix cache can't be kept valid, since it is not the one that this connector knows (vLLM 0.32.0): "
        f"{difference}. Use a vLLM that it knows; the engine is not started, for invalidations would not reach its cache"
    )
