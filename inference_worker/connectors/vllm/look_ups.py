"""The scheduler's look-ups: what arrives is prefetched, what is found is matched over all ranks, what is admitted is leased.

Nothing here waits: while L3 is asked, the engine is told to come again. A look-up is counted once, when the engine admits
its request, as are its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from inference_worker.client import Client
from inference_worker.connectors.vllm.asking import Asker
from inference_worker.connectors.vllm.plan import IN_PLACE, LoadJob, Variant
from inference_worker.connectors.vllm.requests import Found, RequestState
from inference_worker.connectors.vllm.variants import ShardNamespace
from inference_worker.lease import PageLease
from inference_worker.prefetch import Prefetch
from kv_types.ids import KEY_BYTES
from kv_types.loading import LoadChoice
from kv_types.outcomes import MissReason

_COMPUTED = (LoadChoice.COMPUTE, LoadChoice.TRIAL, LoadChoice.STOPPED)


class LookUps:
    """Not thread-safe: the scheduler is one thread. `deadline_s`: how long a request may wait for L3's pages."""

    def __init__(
        self,
        client: Client,
        *,
        blocks_per_page: int,
        block_tokens: int,
        deadline_s: float,
        is_async: bool,
        now_s: Callable[[], float] = time.monotonic,
        asker: Asker | None = None,
    ) -> None:
        self._client = client
        self._asker = Asker(client) if asker is None else asker
        self._blocks_per_page = blocks_per_page
        self._block_tokens = block_tokens
        self._page_tokens = blocks_per_page * block_tokens
        self._deadline_s = deadline_s
        self._is_async = is_async
        self._now_s = now_s

    def arrive(self, state: RequestState) -> None:
        """A request has come: what this node lacks of its prompt is asked for now, so that it may be here at its turn."""
        keys = self._keys(state)
        pages = len(keys[0]) // KEY_BYTES if keys else 0
        state.found = Found()
        if not pages or not state.reads_external:
            return
        chains = state.chains_by_namespace(keys)
        resident, _ = self._asker.match_all(chains)
        if resident == pages or self._deadline_s <= 0.0:
            return
        for namespace, packed in chains.items():
            asked = self._client.prefetch(namespace, packed, deadline_s=self._deadline_s)
            if asked is not None:
                state.prefetches.append(asked)
                state.found.resident_at_arrival = resident

    def match(self, state: RequestState, local_tokens: int) -> int | None:
        """Tokens that could be loaded behind the engine's own; None: not known yet, ask in the next step.

        At least one token of the request is left to compute.
        """
        keys = self._keys(state)
        state.found.local_tokens, state.found.external_tokens = local_tokens, 0
        if not keys or not state.reads_external:
            state.found.ended_by = MissReason.UNCACHEABLE
            return 0
        if state.has_failed_to_load:  # what it found last time is found again, and fails again
            return 0
        pages, reason = self._asker.match_all(state.chains_by_namespace(keys))
        if self._waits(state, reason):
            return None
        if reason is MissReason.ABSENT and any(_is_computed(one) for one in state.prefetches):
            reason = MissReason.COMPUTE_IS_FASTER
        state.cancel_prefetches()
        found = max(0, pages * self._page_tokens - local_tokens)
        state.found.external_tokens, state.found.ended_by = found, reason
        return found

    def admit(self, state: RequestState, external_tokens: int, block_ids: Sequence[int]) -> LoadJob | None:
        """The engine admits a request with so many of the tokens that were found: count the look-up and pin its pages.

        `block_ids`: the request's blocks from its first token on.
        """
        state.is_admitted = True
        state.cancel_prefetches()
        keys = self._keys(state)
        if not keys:
            return None
        local = state.found.local_tokens
        start, end, blocks = self._places(local, external_tokens, block_ids)
        leases = [
            self._client.lease(
                shard.registered, packed, start=start, deadline_s=0.0, missed=state.found.ended_by
            )
            for shard, packed in self._shards(state, keys)
        ]
        if not external_tokens:
            _release(leases)
            return None
        state.leases = leases
        state.found.external_tokens = external_tokens
        variant = state.variant
        assert variant is not None, "what has no name has no keys"
        return LoadJob(
            request_id=state.request_id,
            variant=variant,
            keys=tuple(packed[: end * KEY_BYTES] for packed in keys),
            start=start,
            block_ids=blocks,
            is_async=self._is_async,
        )

    def failing_load(
        self, request_id: str, local: int, external: int, block_ids: Sequence[int], *, ranks: int
    ) -> LoadJob:
        """An order for what was promised to a request, under keys that nothing has."""
        start, end, blocks = self._places(local, external, block_ids)
        keys = (bytes(end * KEY_BYTES),) * ranks
        return LoadJob(
            request_id=request_id, variant=Variant(), keys=keys, start=start, block_ids=blocks, is_async=self._is_async
        )  # fmt: skip

    def _places(
        self, local: int, external: int, block_ids: Sequence[int]
    ) -> tuple[int, int, tuple[int, ...]]:
        """First page and end of a load behind `local` tokens, and its blocks."""
        start, end = local // self._page_tokens, (local + external) // self._page_tokens
        in_place = local // self._block_tokens
        places = range(start * self._blocks_per_page, end * self._blocks_per_page)
        return start, end, tuple(IN_PLACE if place < in_place else block_ids[place] for place in places)

    def first_key(self, state: RequestState) -> bytes:
        """The key, in one shard, of the first page that a matched request would load."""
        start = state.found.local_tokens // self._page_tokens
        return self._keys(state)[0][start * KEY_BYTES : (start + 1) * KEY_BYTES]

    def _keys(self, state: RequestState) -> tuple[bytes, ...]:
        """Keys of the pages that may be reused, a shard each: one token is left to compute."""
        chains = state.chains
        if chains is None:
            return ()
        tokens = state.request.num_tokens
        chains.extend(state.request.all_token_ids)
        return chains.packed(min(chains.pages, (tokens - 1) // self._page_tokens))

    def _shards(self, state: RequestState, keys: Sequence[bytes]) -> list[tuple[ShardNamespace, bytes]]:
        return list(zip(state.shards, keys, strict=True))

    def _waits(self, state: RequestState, reason: MissReason) -> bool:
        """Whether pages may still come that are worth a step's delay."""
        if reason is not MissReason.ABSENT or not state.prefetches:
            return False
        if state.look_up_until_s is None:
            state.look_up_until_s = self._now_s() + self._deadline_s
        if self._now_s() >= state.look_up_until_s:
            return False
        return not all(prefetch.is_over for prefetch in state.prefetches)


def _is_computed(prefetch: Prefetch) -> bool:
    """Whether pages were left to be computed though L3 may have them."""
    load = prefetch.load
    return load is not None and load.choice in _COMPUTED


def _release(leases: Sequence[PageLease]) -> None:
    for lease in leases:
        lease.release()
