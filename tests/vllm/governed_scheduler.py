"""vLLM's real scheduler, cache manager and block pool under a governor, with a real arena; no model runs: outputs are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

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
from tests.vllm.real_scheduler import BLOCK, greedy_request, output_of, real_scheduler

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
        self.scheduler, self.hasher = real_scheduler(
            folder, depth=depth, blocks=blocks,
            kv_transfer_config={
                "kv_connector": "GovernedConnector", "kv_connector_module_path": __name__, "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
            },
        )  # fmt: skip
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
        request = greedy_request(self.count, tokens, max_tokens, self.hasher)
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
        sampled = []
        for request_id in made.num_scheduled_tokens:
            request = self.scheduler.requests.get(request_id)
            is_ready = request is None or request.num_computed_tokens >= request.num_prompt_tokens
            sampled.append([7] if is_ready else [])
        output = KVConnectorOutput(invalid_block_ids=set(invalid)) if invalid else None
        self.scheduler.update_from_output(made, output_of(made, sampled, output))
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
        """Unmaps the arena as well: the engine keeps the governor, and with it what that reads."""
        self.scheduler.shutdown()
        self.governor.end()
        self.native.reader.close()
        self.native.arena.close()
