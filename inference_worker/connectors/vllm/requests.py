"""One request as the scheduler's side follows it: its key chains, what it found, and what of it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from inference_worker.connectors.vllm.adapter_contents import EngineAdapter
from inference_worker.connectors.vllm.plan import Variant
from inference_worker.connectors.vllm.variants import ShardNamespace
from inference_worker.lease import PageLease
from inference_worker.namespaces import RegisteredNamespace
from inference_worker.prefetch import Prefetch
from kv_types.ids import KEY_BYTES
from kv_types.limits import CHAIN_PAGES_MAX
from kv_types.namespace import Namespace, Uncacheable
from kv_types.outcomes import MissReason
from kv_types.page_keys import Extras, KeyChain


class EngineRequest(Protocol):
    """What is read of the engine's own request object."""

    request_id: str
    num_computed_tokens: int
    num_in_flight_tokens: int
    num_prompt_tokens: int

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Hashes of its full blocks."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens known: the prompt's and those generated."""
        ...

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Their ids."""
        ...


class ShardChains:
    """The keys of one row under the namespaces of all shards; equal namespaces share one chain."""

    def __init__(self, namespaces: Sequence[Namespace], *, page_tokens: int, extras: Extras) -> None:
        chains = {namespace: KeyChain(namespace.id, page_tokens) for namespace in namespaces}
        self._distinct = tuple(chains.values())
        self._chains = tuple(chains[namespace] for namespace in namespaces)
        self._extras: Extras | None = extras or None
        self._packed = {id(chain): b"" for chain in self._distinct}
        self.page_tokens = page_tokens

    @property
    def pages(self) -> int:
        """Full pages that have keys by now."""
        return self._chains[0].pages

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in the tokens of the row that are not in yet; `token_ids` is the whole row. What is too long has no more keys.

        Raises InvalidArgumentError.
        """
        known, end = self._chains[0].tokens, min(len(token_ids), CHAIN_PAGES_MAX * self.page_tokens)
        if known >= end:
            return
        fresh = list(token_ids[known:end])
        for chain in self._distinct:
            if chain.extend(fresh, extras=self._extras):
                self._packed[id(chain)] = chain.packed
        self._extras = None  # given with the first tokens, which are the prompt's

    def packed(self, end: int, *, start: int = 0) -> tuple[bytes, ...]:
        """Keys of pages [start, end) of each shard; fewer where tokens aren't there yet."""
        made = {name: packed[start * KEY_BYTES : end * KEY_BYTES] for name, packed in self._packed.items()}
        return tuple(made[id(chain)] for chain in self._chains)


@dataclass(slots=True)
class Found:
    """What one admission to the engine found: pages of the engine's own, then of ours.

    `resident_at_arrival`: pages of the chain that this node had when the request came; what is found behind them L3 gave. None:
    L3 was asked for nothing, or what is found may be what the request has stored itself.
    """

    local_tokens: int = 0
    external_tokens: int = 0
    ended_by: MissReason = MissReason.NONE
    resident_at_arrival: int | None = None

    def l3_tokens(self, page_tokens: int) -> int:
        """Tokens of what was found that L3 gave, at this request's asking."""
        if self.resident_at_arrival is None:
            return 0
        end = self.local_tokens + self.external_tokens
        return max(0, min(self.external_tokens, end - self.resident_at_arrival * page_tokens))

    def told(self, page_tokens: int) -> dict[str, Any]:
        """What a request is told that asked for it."""
        l3 = self.l3_tokens(page_tokens)
        return {
            "stratakv": {
                "engine_tokens": self.local_tokens,
                "l2_tokens": self.external_tokens - l3,
                "l3_tokens": l3,
                "ended_by": self.ended_by.name.lower(),
            }
        }


@dataclass(slots=True, eq=False)
class RequestState:
    """`named`: its variant, or why it has none. `stored`: pages from the root that need not be stored (again)."""

    request: EngineRequest
    named: Variant | Uncacheable
    shards: tuple[ShardNamespace, ...] = ()
    chains: ShardChains | None = None
    reads_external: bool = True
    found: Found = field(default_factory=Found)
    prefetches: list[Prefetch] = field(default_factory=list)
    look_up_until_s: float | None = None
    is_admitted: bool = False
    leases: list[PageLease] = field(default_factory=list)
    load_step: int | None = None
    has_failed_to_load: bool = False
    """Whether what it found could not be loaded: it computes, and looks nowhere else, until it is interrupted."""
    is_loading_async: bool = False
    save_from_step: int = 0
    computed_from: int | None = None
    """First page that holds nothing but what the request has computed; from `computed_from_ms` (Unix) on."""
    computed_from_ms: int = 0
    stored: int = 0
    is_resident_known: bool = False
    save_shortfalls: int = 0
    interruptions: int = 0
    held: Variant | None = None
    """The variant whose namespaces are kept registered for it: leases or prefetches are under way."""
    jobs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Save jobs under way: number → (first page, end)."""
    is_finished: bool = False
    wants_report: bool = False

    @property
    def request_id(self) -> str:
        """The engine's name of it."""
        return self.request.request_id

    @property
    def variant(self) -> Variant | None:
        """Its variant, where it has one."""
        return self.named if isinstance(self.named, Variant) else None

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Of its computation, a rank each; empty where it has no name."""
        return tuple(shard.namespace for shard in self.shards)

    def chains_by_namespace(self, keys: Sequence[bytes]) -> dict[RegisteredNamespace, bytes]:
        """`keys`, a shard each, by where they are looked up: shards that keep the same share that."""
        return {shard.registered: packed for shard, packed in zip(self.shards, keys, strict=True)}

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV its blocks have, will have by steps in flight, or are being loaded; 0: it has no blocks."""
        return self.request.num_computed_tokens

    @property
    def adapter(self) -> EngineAdapter | None:
        """The adapter that it computes with, by its content, or by the engine's number where that has no name."""
        lora = getattr(self.request, "lora_request", None)
        if lora is None:
            return None
        named = None if self.variant is None else self.variant.adapter
        content = str(lora.lora_int_id).encode() if named is None else named.digest
        return EngineAdapter((str(lora.lora_name), str(lora.lora_path)), content)

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The engine's hashes of its full blocks."""
        return self.request.block_hashes

    def page_keys(self, start: int, end: int) -> tuple[bytes, ...]:
        """Packed keys of pages [start, end), a rank each; fewer where tokens aren't there yet."""
        if self.chains is None:
            return ()
        self.chains.extend(self.request.all_token_ids)
        return self.chains.packed(end, start=start)

    @property
    def is_cacheable(self) -> bool:
        """Whether its pages have names."""
        return self.chains is not None

    @property
    def confirmed_tokens(self) -> int:
        """Tokens whose KV is in place for certain: of steps whose outcome the scheduler knows."""
        return max(0, self.request.num_computed_tokens - self.request.num_in_flight_tokens)

    def release_leases(self) -> None:
        """What it had pinned is in place, or not needed any more."""
        leases, self.leases = self.leases, []
        for lease in leases:
            lease.release()

    def cancel_prefetches(self) -> None:
        """Nobody waits for pages of L3 any more."""
        prefetches, self.prefetches = self.prefetches, []
        for prefetch in prefetches:
            prefetch.cancel()

    def load_failed(self, page: int, *, page_tokens: int) -> int:
        """Pages from this one on could not be loaded; returns how many tokens less were found."""
        in_place = max(0, page * page_tokens - self.found.local_tokens)
        lost = max(0, self.found.external_tokens - in_place)
        self.found.external_tokens -= lost
        self.has_failed_to_load = True
        if self.computed_from is not None:
            self.computed_from = min(self.computed_from, page)
        return lost

    def to_store_from(self, page: int) -> None:
        """Pages from this one on are computed anew, and stored anew."""
        self.stored = min(self.stored, page)
        self.is_resident_known = False

    def interrupt(self) -> None:
        """Its blocks were taken away: it will be looked up, loaded and stored anew."""
        self.release_leases()
        self.found.resident_at_arrival = None
        self.is_admitted = False
        self.load_step = None
        self.has_failed_to_load = False
        self.is_loading_async = False
        self.stored = 0
        self.is_resident_known = False
        self.interruptions += 1


def asks_for_report(kv_transfer_params: Any) -> bool:
    """Whether a request's own parameters ask for what it hit: {"stratakv": {"report": true}}."""
    told = kv_transfer_params.get("stratakv") if isinstance(kv_transfer_params, dict) else None
    return isinstance(told, dict) and told.get("report") is True
