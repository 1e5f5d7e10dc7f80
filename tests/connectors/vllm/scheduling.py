"""A scheduler's half without an engine: requests as the engine shows them, and a client of a real sidecar."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from inference_worker.client import Client
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.requests import RequestState, ShardChains
from inference_worker.connectors.vllm.variants import VariantNamespaces
from kv_types.namespace import Namespace
from kv_types.outcomes import PutOutcome
from tests.support.spaces import space_of

PAGE_BYTES = 4096
BLOCK_TOKENS = 4
_ids = itertools.count()


def base_of(model: str, *, page_tokens: int = BLOCK_TOKENS) -> Namespace:
    """A shard's base namespace with pages of PAGE_BYTES."""
    del page_tokens
    return space_of(PAGE_BYTES, model=model)


@dataclass
class ARequest:
    """What the engine shows of a request."""

    all_token_ids: list[int]
    request_id: str = field(default_factory=lambda: f"r{next(_ids)}")
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_prompt_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.all_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


class Scheduling:
    """Variants of some shards over one client, and states of requests."""

    def __init__(self, client: Client, bases: list[Namespace], *, page_tokens: int) -> None:
        self.client = client
        self.page_tokens = page_tokens
        self.variants = VariantNamespaces(client, bases, page_bytes=PAGE_BYTES)

    def state(self, tokens: list[int], variant: Variant | None = None) -> RequestState:
        """A request that was named."""
        named = Variant() if variant is None else variant
        shards = self.variants.get(named)
        assert shards is not None
        made = RequestState(ARequest(tokens), named, shards)
        made.chains = ShardChains(
            [shard.namespace for shard in shards], page_tokens=self.page_tokens, extras={}
        )
        return made

    def keys(self, state: RequestState, pages: int) -> tuple[bytes, ...]:
        """Keys of its first pages, a shard each."""
        assert state.chains is not None
        state.chains.extend(state.request.all_token_ids)
        return state.chains.packed(pages)

    def put(self, state: RequestState, pages: int, *, shard: int = 0, start: int = 0) -> list[PutOutcome]:
        """Store pages of one shard, as a worker would."""
        registered = state.shards[shard].registered
        with self.client.begin(registered) as request:
            return request.put(
                self.keys(state, pages)[shard], [bytes(PAGE_BYTES)] * (pages - start), start=start
            )
