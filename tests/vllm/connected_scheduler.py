"""vLLM's real scheduler with our scheduler's side and a real sidecar, over a worker that knows what each block holds.

No model runs. A slot of a block holds a digest of all tokens up to its own; a step writes it if all slots before hold the
right ones, else what no computation gives. So it shows at once when wrong KV is computed on, stored, or loaded.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.vllm.connector import _Report
from inference_worker.connectors.vllm.identity import WorkerIdentity
from inference_worker.connectors.vllm.plan import IN_PLACE, LoadJob, SaveJob, StepPlan, WorkerReport
from inference_worker.connectors.vllm.scheduler_side import SchedulerSide
from inference_worker.connectors.vllm.variants import VariantNamespaces
from kv_types.ids import KEY_BYTES
from tests.support.polling import wait_until
from tests.support.spaces import space_of
from tests.vllm.engines import connector
from tests.vllm.real_scheduler import BLOCK, greedy_request, output_of, real_scheduler

PAGE_BLOCKS = 2
PAGE = BLOCK * PAGE_BLOCKS
PAGE_BYTES = 4096
WRONG = -1


def digests(tokens: Sequence[int]) -> list[int]:
    """What the slot of each token holds when it was computed right."""
    held, made = 17, []
    for token in tokens:
        held = hash((held, token)) & 0x7FFF_FFFF
        made.append(held)
    return made


@dataclass
class Worker:
    """Carries out plans on blocks whose content is known. `violations`: what must never be.

    `fails`: of a load job, the first page that does not come. `delay`: steps that a save takes.
    """

    client: Client
    base: Any
    blocks: dict[int, list[int]] = field(default_factory=dict)
    stored: dict[bytes, list[int]] = field(default_factory=dict)
    saving: list[tuple[int, SaveJob]] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    fails: Callable[[LoadJob], int | None] = lambda job: None
    delay: Callable[[], int] = lambda: 0

    def __post_init__(self) -> None:
        self.spaces = VariantNamespaces(self.client, [self.base], page_bytes=PAGE_BYTES)

    def of(self, block: int) -> list[int]:
        return self.blocks.setdefault(block, [WRONG] * BLOCK)

    def run(self, engine: ConnectedScheduler, made: Any) -> ModelRunnerOutput:
        plan: StepPlan = made.kv_connector_metadata.plan
        report, output = WorkerReport(step=plan.step, version_numbers=(0,)), KVConnectorOutput()
        for at, job in [one for one in self.saving if one[1].request_id in plan.interrupted]:
            self.saving.remove((at, job))
            report.saved[job.number] = [0]
        for job in plan.saves:
            self.saves.append(job)
            if job.request_id in plan.interrupted:
                report.saved[job.number] = [0]
            else:
                self._read(job, "when it is ordered")
                self.saving.append((self.delay(), job))
        self.freed |= plan.freed
        failed = set(plan.recompute_block_ids)
        received = {job.request_id for job in plan.loads if job.is_async}
        for load in plan.loads:
            self._load(load, report, failed)
        sampled = self._compute(engine, made)
        self._save(report)
        sent = {one for one in self.freed if all(job.request_id != one for _, job in self.saving)}
        self.freed -= sent
        output.finished_sending, output.finished_recving = sent or None, received or None
        output.invalid_block_ids = failed
        output.kv_connector_worker_meta = _Report(report)
        return output_of(made, sampled, output)

    def _read(self, job: SaveJob, when: str) -> None:
        keys = [job.keys[0][at : at + KEY_BYTES] for at in range(0, len(job.keys[0]), KEY_BYTES)]
        for index, key in enumerate(keys[job.start :]):
            held = [self.of(one) for one in job.block_ids[index * PAGE_BLOCKS : (index + 1) * PAGE_BLOCKS]]
            content = [slot for block in held for slot in block]
            if WRONG in content or self.stored.setdefault(key, content) != content:
                self.violations.append(f"{job.request_id}: page {job.start + index} is wrong {when}")

    def _save(self, report: WorkerReport) -> None:
        for at, job in [*self.saving]:
            self.saving.remove((at, job))
            if at:
                self.saving.append((at - 1, job))
                continue
            self._read(job, "when it is copied")
            shards = self.spaces.get(job.variant)
            assert shards is not None
            space = shards[0].registered
            pages = job.pages - job.start
            outcomes = self.client.put(
                space, job.keys[0], [bytes(PAGE_BYTES)] * pages, stamp=job.stamp, start=job.start
            )
            report.saved[job.number] = [len([one for one in outcomes if "REFUSED" not in repr(one).upper()])]

    def _load(self, job: LoadJob, report: WorkerReport, failed: set[int]) -> None:
        self.loads.append(job)
        stop = self.fails(job)
        for page in range(job.start, job.pages):
            key = job.keys[0][page * KEY_BYTES : (page + 1) * KEY_BYTES]
            ids = job.block_ids[(page - job.start) * PAGE_BLOCKS : (page + 1 - job.start) * PAGE_BLOCKS]
            if (stop is not None and page >= stop) or key not in self.stored:
                report.failed_loads.setdefault(job.request_id, page)
                failed.update(one for one in ids if one != IN_PLACE)
                for one in ids:
                    if one != IN_PLACE:
                        self.blocks[one] = [WRONG] * BLOCK
                stop = page
                continue
            for part, block in enumerate(ids):
                if block != IN_PLACE:
                    self.blocks[block] = self.stored[key][part * BLOCK : (part + 1) * BLOCK]

    def _compute(self, engine: ConnectedScheduler, made: Any) -> list[list[int]]:
        starts = {one.req_id: one.num_computed_tokens for one in made.scheduled_new_reqs}
        starts |= dict(
            zip(
                made.scheduled_cached_reqs.req_ids,
                made.scheduled_cached_reqs.num_computed_tokens,
                strict=True,
            )
        )
        jobs = []
        for name, count in made.num_scheduled_tokens.items():
            request = engine.scheduler.requests[name]
            known = self.tokens.setdefault(name, list(request.all_token_ids))
            if not engine.queue or starts[name] < self.ends.get(name, 0):  # what was sampled last was dropped
                known[:] = request.all_token_ids
            self.ends[name] = starts[name] + count
            table = engine.scheduler.kv_cache_manager.get_block_ids(name)[0]
            right = digests(known)
            for place in range(starts[name], starts[name] + count):
                self.of(table[place // BLOCK])[place % BLOCK] = right[place]  # all of a pass is written first
            jobs.append((starts[name], count, table, right, known))
        sampled = []
        for start, count, table, right, known in jobs:
            before = [self.of(table[place // BLOCK])[place % BLOCK] for place in range(start)]
            is_right = before == right[:start]
            if not is_right:
                for place in range(start, start + count):
                    self.of(table[place // BLOCK])[place % BLOCK] = WRONG
            ends = start + count == len(known)
            sampled.append([right[-1] % 997 + 1 if is_right else 0] if ends else [])
            if ends:
                known.append(sampled[-1][0])
        return sampled


class ConnectedScheduler:
    """One scheduler, `depth` steps deep."""

    def __init__(
        self, folder: Path, endpoint: Path, *, depth: int = 1, blocks: int = 128, batched: int = 1024,
        engine: dict[str, Any] | None = None, **extra: Any,
    ) -> None:  # fmt: skip
        self.scheduler, self.hasher = real_scheduler(
            folder,
            depth=depth,
            blocks=blocks,
            batched=batched,
            **(engine or {}),
            **connector(endpoint, **extra),
        )
        self.connector = self.scheduler.connector
        self.side: SchedulerSide = self.connector._planner.side
        base = space_of(PAGE_BYTES)
        identity = WorkerIdentity(
            base=base,
            page_bytes=PAGE_BYTES,
            blocks_per_page=PAGE_BLOCKS,
            block_tokens=BLOCK,
            model=base.model,
        )
        self.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): SimpleNamespace(identity=identity)})
        self.client = Client.connect(endpoint, settings=ClientSettings(deadline_s=10.0))
        assert self.client.wait_ready(deadline_s=10.0)
        assert self.side._client.wait_ready(deadline_s=10.0)
        self.worker = Worker(self.client, base)
        self.depth = depth
        self.queue: list[tuple[Any, Any]] = []
        self.count = 0
        self.requests: list[Request] = []

    def add(
        self, tokens: Sequence[int], max_tokens: int = 1, salt: str | None = None, priority: int = 0
    ) -> Request:
        self.count += 1
        request = greedy_request(
            self.count, tokens, max_tokens, self.hasher, cache_salt=salt, priority=priority
        )
        self.scheduler.add_request(request)
        self.requests.append(request)
        return request

    def pump(self, between: Callable[[], None] = lambda: None) -> None:
        """Schedule until as many steps are in flight as may be, do something `between`, and process the oldest."""
        while len(self.queue) < self.depth and self.scheduler.has_requests():
            made = self.scheduler.schedule()
            self.queue.append((made, self.worker.run(self, made)))
            if not made.total_num_scheduled_tokens:
                break
        between()
        if self.queue:
            self.scheduler.update_from_output(*self.queue.pop(0))

    def store_all(self) -> None:
        """Nothing that a request has counts as known: all of it is stored (again), so that all of it is looked at."""
        vars(self.side._saves)["_resident"] = lambda state, keys: 0

    def abort(self, request: Request) -> None:
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)

    def run(self, *requests: Request) -> None:
        """Until these have finished, all saves are over, and nothing is in flight."""
        for _ in range(500):
            if not self.queue and not self.scheduler.has_requests():
                break
            self.pump()
        assert all(one.is_finished() for one in requests), [str(one.status) for one in requests]
        assert not self.scheduler.requests
        self.wait_taken_over()

    def wait_taken_over(self) -> None:
        """Until the sidecar has what was stored: who looks for it before that waits, but not long."""
        wait_until(
            lambda: not self.client.statistics()["posted_pages"], what="the sidecar to take pages over"
        )

    def reset(self, *, running: bool = False) -> bool:
        self.wait_taken_over()
        return bool(self.scheduler.reset_prefix_cache(reset_running_requests=running))

    def check(self) -> None:
        """Nothing wrong was stored or given out, and nothing is kept of what has ended."""
        assert not self.worker.violations, self.worker.violations
        for request in self.requests:
            known = list(request.prompt_token_ids or ())
            for token in request.output_token_ids:
                assert token == digests(known)[-1] % 997 + 1, (
                    f"{request.request_id}: a token of a wrong computation"
                )
                known.append(token)

    def check_nothing_is_left(self) -> None:
        side = self.side
        assert not side._states
        assert not side._leaving
        assert not side._progressed
        assert not side._governor._requests
        assert side._client.statistics()["leases_held"] == 0
        used = self.scheduler.kv_cache_manager.block_pool
        assert used.num_gpu_blocks - used.get_num_free_blocks() == 1

    def close(self) -> None:
        self.scheduler.shutdown()
        self.client.close()


def tokens(seed: int, count: int) -> list[int]:
    return [random.Random(seed * 100_003 + index).randrange(1, 1000) for index in range(count)]


def walk(engine: ConnectedScheduler, seed: int, *, moves: int = 150, resets: bool = True) -> None:
    """Whatever may happen to requests, at random: shared prompts, aborts, failed loads, slow saves, resets."""
    chance = random.Random(seed)
    roots = [tokens(1000 * seed + number, 6 * PAGE) for number in range(3)]
    engine.worker.fails = lambda job: chance.randrange(job.pages + 1) if chance.random() < 0.3 else None
    engine.worker.delay = lambda: chance.choice((0, 0, 1, 4))
    if chance.random() < 0.5:
        engine.store_all()

    def abort_one() -> None:
        live = [one for one in engine.requests if not one.is_finished()]
        if live and chance.random() < 0.3:
            engine.abort(chance.choice(live))

    for _ in range(moves):
        move = chance.random()
        if move < 0.3:
            root = chance.choice(roots)
            prompt = root[: chance.randrange(1, len(root))]
            if chance.random() < 0.5:
                prompt = prompt[: len(prompt) // PAGE * PAGE] or prompt
            more = chance.choice(([], [chance.randrange(1, 999)]))
            engine.add(
                [*prompt, *more],
                chance.choice((1, 1, 3, 40, 90)),
                chance.choice((None, "b")),
                chance.randrange(3),
            )
        elif move < 0.33 and resets:
            engine.reset()
        elif move < 0.35 and resets:
            with contextlib.suppress(
                RuntimeError
            ):  # asynchronous loads are under way: the engine's own limit
                engine.reset(running=True)
        else:
            engine.pump(abort_one)
        engine.check()
    engine.worker.delay = lambda: 0
    engine.worker.fails = lambda job: None
    engine.run()
    engine.check()
    engine.check_nothing_is_left()
