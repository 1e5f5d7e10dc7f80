"""vLLM's real scheduler, cache manager and block pool under a governor, with a real arena; no model runs: outputs are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from inference_worker.connectors.vllm.engine_hooks import govern
from inference_worker.connectors.vllm.governor import Governor
from inference_worker.connectors.vllm.running_weights import EngineWeights
from inference_worker.view_hold import ViewHold
from kv_types.clock import BoottimeClock
from kv_types.computation import AttentionKind, Geometry, KvDtype, Rope, Weights
from kv_types.events import EventKind
from kv_types.ids import LifeId, LogIncarnation, PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.page_keys import KeyChain
from kv_types.selectors import Selector
from kv_types.validity import EngineMode, ObservedView
from tests.support.native_arena import NativeArena, now_ns

BLOCK = 32
NAMESPACE = Namespace(
    model="toy",
    weights=Weights(version="v1"),
    kv_dtype=KvDtype.FP32,
    geometry=Geometry(
        attention=AttentionKind.GQA, layers_total=1, layer_begin=0, layer_end=1, kv_heads_total=2, head_begin=0, head_end=2,
        head_dim=32,
    ),
    rope=Rope(kind="default", theta=10_000.0),
    page_tokens=BLOCK,
)  # fmt: skip
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1024,
    "max_position_embeddings": 2048, "torch_dtype": "float32",
}  # fmt: skip


def keys_of(tokens: Sequence[int]) -> list[PageKey]:
    chain = KeyChain(NAMESPACE.id, BLOCK)
    chain.extend(list(tokens))
    return chain.keys


class ArenaHeader:
    """Conforms to governed.Header, over the reader of an arena in this process."""

    def __init__(self, native: NativeArena) -> None:
        self.native = native
        self.never_attached = False

    @property
    def life(self) -> LifeId:
        return LifeId(self.native.life)

    @property
    def freshness_ns(self) -> int:
        return self.native.reader.freshness_ns()

    def stamped_view(self) -> tuple[ObservedView, Stamp]:
        view, incarnation, revision = self.native.reader.stamp()
        return ObservedView(self.life, view), Stamp(LogIncarnation(incarnation), revision)

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        return self.native.reader.events_since(view)

    def set_applied_view(self, view: int) -> None:
        self.native.reader.set_applied_view(view)

    def claim_freshness(self, freshness_ns: int | None = None) -> tuple[int, int]:
        return self.native.reader.claim_freshness(freshness_ns)

    def hold(self, view: int | None = None, *, life: LifeId | None = None) -> ViewHold:
        slot, _, _, _ = self.native.reader.begin_request(view=view)
        return ViewHold(self, slot=slot, view=view or 0)

    @property
    def inherited(self) -> bool:
        return False

    def advance_hold(self, slot: int, view: int) -> bool:
        self.native.reader.advance_request(slot, view)
        return True

    def end_hold(self, slot: int, request: object) -> None:
        self.native.reader.end_request(slot)


class Live:
    """Conforms to governed.LiveRequest, over vLLM's own request."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @property
    def request_id(self) -> str:
        return str(self.request.request_id)

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        return (NAMESPACE,)

    @property
    def computed_tokens(self) -> int:
        return int(self.request.num_computed_tokens)

    @property
    def adapter(self) -> None:
        return None

    @property
    def block_hashes(self) -> Sequence[bytes]:
        return list(self.request.block_hashes)

    def page_keys(self, start: int, end: int) -> tuple[bytes, ...]:
        return (b"".join(keys_of(self.request.all_token_ids)[start:end]),)


class GovernedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The governor and nothing else: no page is loaded or stored."""

    governor: ClassVar[Governor]

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self.local: dict[str, int] = {}
        self.step = 0
        self.to_recompute: set[int] = set()
        self.manager = kv_cache_manager
        govern(self.governor, kv_cache_manager)
        self.governor.learn(EngineWeights("v1"), blocks_per_page=1)

    def on_new_request(self, request: Request) -> None:
        self.governor.track(Live(request))

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self.governor.was_gated(request.request_id)
        if self.governor.is_deferred(request.request_id):
            return None, False
        self.local[request.request_id] = num_computed_tokens
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self.step += 1
        self.governor.step_begun(self.step)
        for request_id, first in self.governor.to_recompute().items():
            self.to_recompute.update(self.manager.get_block_ids(request_id)[0][first:])
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        self.governor.untrack(request.request_id)
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class GovernedScheduler:
    """One scheduler, `depth` steps deep. Token ids are made up: 7 after each token."""

    def __init__(
        self, folder: Path, *, depth: int = 1, mode: EngineMode = EngineMode.DROP, governor: type[Governor] = Governor,
        recompute: bool = False, blocks: int = 128,
    ) -> None:  # fmt: skip
        self.native = NativeArena(ring_records=64)
        self.header = ArenaHeader(self.native)
        self.fresh_for(10**12)
        self.governor = governor(self.header, BoottimeClock(), mode=mode, recompute=recompute)
        GovernedConnector.governor = self.governor
        (folder / "config.json").write_text(json.dumps(_LLAMA))
        config = EngineArgs(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", block_size=BLOCK, max_model_len=1024,
            num_gpu_blocks_override=blocks, enforce_eager=True, max_num_batched_tokens=1024,
            kv_transfer_config={
                "kv_connector": "GovernedConnector", "kv_connector_module_path": __name__, "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
            },
        ).create_engine_config()  # fmt: skip
        import torch

        config.cache_config.num_gpu_blocks = blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
        caches = KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        kind = Scheduler if depth == 1 else AsyncScheduler
        self.scheduler = kind(
            config, caches, StructuredOutputManager(config), block_size=BLOCK, log_stats=False
        )
        self.connector: GovernedConnector = self.scheduler.connector
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.depth = depth
        self.queue: list[Any] = []
        self.count = 0

    def publish(self, kind: int, payload: bytes = b"") -> None:
        revision = self.native.reader.view + 1
        self.native.arena.publish_event(incarnation=b"i" * 16, revision=revision, kind=kind, payload=payload)

    def select(self, tokens: Sequence[int], page: int) -> None:
        """A page of a prompt is invalidated."""
        self.publish(EventKind.SELECTED, Selector(key=keys_of(tokens)[page]).encode())

    def fresh_for(self, duration_ns: int) -> None:
        self.native.arena.publish_freshness(now_ns() + duration_ns)

    def add(self, tokens: Sequence[int], max_tokens: int = 1) -> Request:
        self.count += 1
        request = Request(
            f"r{self.count}", list(tokens), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True), None,
            block_hasher=self.hasher,
        )  # fmt: skip
        self.scheduler.add_request(request)
        return request

    def pump(self, between: Callable[[], None] = lambda: None) -> None:
        """Schedule until as many steps are in flight as may be, do something `between`, and process the oldest."""
        while len(self.queue) < self.depth and self.scheduler.has_requests():
            made = self.scheduler.schedule()
            self.queue.append((self.connector.step, made, frozenset(self.connector.to_recompute)))
            self.connector.to_recompute.clear()
            if not made.total_num_scheduled_tokens:
                break
        between()
        if self.queue:
            self._process(*self.queue.pop(0))

    def _process(self, step: int, made: Any, invalid: frozenset[int]) -> None:
        ids = list(made.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            request = self.scheduler.requests.get(request_id)
            is_ready = request is None or request.num_computed_tokens >= request.num_prompt_tokens
            sampled.append([7] if is_ready else [])
        output = KVConnectorOutput(invalid_block_ids=set(invalid)) if invalid else None
        self.scheduler.update_from_output(
            made,
            ModelRunnerOutput(
                req_ids=ids, req_id_to_index={name: index for index, name in enumerate(ids)}, sampled_token_ids=sampled,
                logprobs=None, prompt_logprobs_dict={}, pooler_output=[], kv_connector_output=output,
            ),
        )  # fmt: skip
        self.governor.step_done(step)

    def run(self, request: Request) -> Request:
        for _ in range(2000):
            if request.is_finished():
                break
            self.pump()
        while self.queue:
            self._process(*self.queue.pop(0))
        assert request.is_finished()
        return request

    def hits(self, tokens: Sequence[int]) -> int:
        """Tokens that a request for these finds in the engine's own cache."""
        request = self.run(self.add(tokens))
        return self.connector.local[request.request_id]

    def preempt(self, request: Request) -> None:
        self.scheduler.running.remove(request)
        self.scheduler._preempt_request(request, 0.0)

    def close(self) -> None:
        self.scheduler.shutdown()
