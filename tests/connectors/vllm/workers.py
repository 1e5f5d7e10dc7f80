"""Workers of pretended engines: KV tensors of their own, blocks handed out by a test, and a scheduler's orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from inference_worker.client import Client
from inference_worker.connectors.vllm.block_layout import BlockLayout
from inference_worker.connectors.vllm.engine_facts import LayerFacts
from inference_worker.connectors.vllm.identity import namespace_of
from inference_worker.connectors.vllm.plan import LoadJob, SaveJob, StepPlan, Variant, WorkerReport
from inference_worker.connectors.vllm.settings import ConnectorSettings, LoadMode
from inference_worker.connectors.vllm.worker_side import WorkerSide
from kv_types.ids import KEY_BYTES, NO_LIFE
from kv_types.namespace import Namespace, Uncacheable
from kv_types.outcomes import Hit
from kv_types.page_keys import page_keys
from tests.connectors.vllm.blocks import filled, page_of
from tests.inference_worker.worlds import namespace
from tests.support.polling import wait_until

BLOCK_TOKENS = 8
PLAIN = Variant()


@dataclass(frozen=True)
class Identity:
    base: Namespace | Uncacheable
    blocks_per_page: int


class Engine:
    """A worker of one pretended engine. Blocks hold random bytes until something is loaded into them."""

    def __init__(
        self,
        client: Client | None,
        kind: str = "cpu",
        *,
        blocks: int = 24,
        blocks_per_page: int = 1,
        seed: int = 0,
        model: str = "engine",
        rank: int = 0,
        tensor_size: int = 1,
        mode: LoadMode = LoadMode.SYNC,
        store_deadline_s: float = 5.0,
        may_sleep: bool = False,
    ) -> None:
        self.kind = kind
        self.client = client
        self.blocks_per_page = blocks_per_page
        self.caches: Mapping[str, torch.Tensor] = filled(kind, blocks=blocks, seed=seed)
        self._model = model
        self._rank = rank
        self._step = 0
        self._number = 0
        settings = ConnectorSettings(load_mode=mode, store_deadline_s=store_deadline_s)
        self.side = WorkerSide(
            client, self._identify, rank=rank, settings=settings, tensor_size=tensor_size, may_sleep=may_sleep
        )
        order = tuple(self.caches)
        facts = LayerFacts(
            layer_order=order,
            attention_name="tests",
            isa="any",
            block_tokens=BLOCK_TOKENS,
            num_blocks=blocks,
            groups=1,
        )
        self.identity = self.side.register_kv_caches(self.caches, facts)
        self.saved: dict[int, list[int]] = {}

    def _identify(self, layout: BlockLayout | Uncacheable, board: tuple[int, int]) -> Identity:
        if isinstance(layout, Uncacheable):
            return Identity(layout, 1)
        base = namespace(self._model, layout=layout.name, page_tokens=BLOCK_TOKENS * self.blocks_per_page)
        return Identity(base, self.blocks_per_page)

    @property
    def base(self) -> Namespace:
        base = self.identity.base
        assert isinstance(base, Namespace)
        return base

    def chain(self, pages: int, *, seed: int = 0, variant: Variant = PLAIN) -> bytes:
        """Keys of so many pages of random tokens."""
        name = namespace_of(self.base, variant)
        tokens = np.random.default_rng(seed).integers(0, 50_000, 64 * self.base.page_tokens, dtype=np.uint32)
        return page_keys(name.id, tokens[: pages * self.base.page_tokens], page_tokens=self.base.page_tokens)

    def bytes_of(self, block_ids: Sequence[int]) -> list[bytes]:
        """What pages hold in these blocks."""
        k = self.blocks_per_page
        return [page_of(self.kind, self.caches, block_ids[at : at + k]) for at in range(0, len(block_ids), k)]

    def load_job(
        self, keys: bytes, block_ids: Sequence[int], *, start: int = 0, request: str = "r", is_async: bool = False,
        variant: Variant = PLAIN,
    ) -> LoadJob:  # fmt: skip
        return LoadJob(
            request_id=request, variant=variant, keys=self._ranks(keys), start=start, block_ids=tuple(block_ids),
            is_async=is_async,
        )  # fmt: skip

    def save_job(
        self, keys: bytes, block_ids: Sequence[int], *, start: int = 0, request: str = "r", **terms: Any
    ) -> SaveJob:
        assert self.client is not None
        stamp = terms.pop("stamp", None) or self.client.stamp()
        assert stamp is not None
        self._number += 1
        return SaveJob(
            number=self._number, request_id=request, variant=terms.pop("variant", PLAIN), keys=self._ranks(keys), start=start,
            block_ids=tuple(block_ids), stamp=stamp, **terms,
        )  # fmt: skip

    def _ranks(self, keys: bytes) -> tuple[bytes, ...]:
        return (bytes(len(keys)),) * self._rank + (keys,)

    def plan(self, **terms: Any) -> StepPlan:
        """Orders of the next step, at the header's present view."""
        self._step += 1
        if self.client is not None:
            life, view = self.client.validity.life, self.client.validity.view
            terms = {"life": life, "view": view if life != NO_LIFE else 0, **terms}
        return StepPlan(step=self._step, **terms)

    def step(self, plan: StepPlan | None = None, **terms: Any) -> Step:
        """One step as the engine takes it, with a pass that looks at each layer."""
        side = self.side
        plan = self.plan(**terms) if plan is None else plan
        side.handle_preemptions(plan)
        side.begin_step(plan)
        side.start_loads()
        for name in self.caches:
            side.wait_for_layer(name)
        side.end_step()
        sent, received = side.finished()
        failed = side.failed_block_ids()
        report = side.report()
        assert report is not None
        self.saved |= report.saved
        return Step(sent or set(), received or set(), failed, report)

    def save(self, *jobs: SaveJob) -> list[int]:
        """Order saves and step on until they are over; pages that stand of each."""
        self.step(saves=jobs)
        self.wait_saved(*jobs)
        return [self.saved[job.number][0] for job in jobs]

    def wait_saved(self, *jobs: SaveJob) -> None:
        def over() -> bool:
            self.step()
            return all(job.number in self.saved for job in jobs)

        wait_until(over, what="the saves' end")

    def resident(self, keys: bytes, variant: Variant = PLAIN) -> int:
        """Pages that could be served now."""
        shard = self.side._shard
        assert shard is not None
        with shard.spaces.using(variant) as space:
            found = shard.client.match(space, keys)
        return found.pages if isinstance(found, Hit) else 0


@dataclass(frozen=True)
class Step:
    sent: set[str]
    received: set[str]
    failed: set[int]
    report: WorkerReport


def first(keys: bytes, pages: int) -> bytes:
    """The first pages of a chain."""
    return keys[: pages * KEY_BYTES]
