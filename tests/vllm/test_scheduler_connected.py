"""Our scheduler's side under vLLM's real schedulers, over a worker that knows what each block holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from inference_worker.connectors.vllm.prefill_steps import PrefillWatch
from tests.support.sidecar_process import SidecarProcess
from tests.vllm.connected_scheduler import PAGE, ConnectedScheduler, tokens, walk

Make = Callable[..., ConnectedScheduler]


@pytest.fixture
def make(tmp_path: Path, sidecar: SidecarProcess) -> Iterator[Make]:
    made: list[ConnectedScheduler] = []

    def one(**more: Any) -> ConnectedScheduler:
        made.append(ConnectedScheduler(tmp_path, sidecar.runtime, **more))
        return made[-1]

    yield one
    for each in made:
        each.close()


def test_pages_come_back_after_a_reset(make: Make) -> None:
    engine = make()
    prompt = tokens(1, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 40))
    assert engine.reset()
    engine.run(engine.add(prompt, 40))
    assert [(job.start, job.pages) for job in engine.worker.loads] == [(0, 4)]
    engine.check()
    engine.check_nothing_is_left()


def test_requests_that_a_reset_preempts_are_loaded_anew(make: Make) -> None:
    engine = make()
    prompt = tokens(2, 4 * PAGE + 5)
    running = engine.add(prompt, 60)
    for _ in range(8):
        engine.pump()
    assert engine.reset(running=True)
    engine.run(running)
    assert [(job.start, job.pages) for job in engine.worker.loads] == [(0, 4)]
    engine.check()
    engine.check_nothing_is_left()


def test_an_asynchronous_load_that_brings_nothing_is_computed(make: Make) -> None:
    engine = make(load_mode="async")
    prompt = tokens(3, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 4))
    assert engine.reset()
    engine.worker.fails = lambda job: 0
    engine.run(engine.add(prompt, 4))
    assert len(engine.worker.loads) == 1, "what fails once fails again"
    engine.check()
    engine.check_nothing_is_left()


@pytest.mark.parametrize("page", [0, 2])
def test_blocks_of_a_failed_load_are_nobodys_hit(make: Make, page: int) -> None:
    engine = make()
    prompt = tokens(4, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 40))
    assert engine.reset()
    engine.worker.fails = lambda job: page
    engine.store_all()  # pages that failed are not in L2 any more
    aborted = engine.add([*prompt, 5, 6])
    engine.pump(lambda: engine.abort(aborted))
    engine.run(engine.add([*prompt, 7, 8], 40))
    engine.check()
    engine.check_nothing_is_left()


@pytest.mark.parametrize("batched", [96, 1024])
def test_who_shares_blocks_of_a_failed_load_stores_nothing_wrong(make: Make, batched: int) -> None:
    engine = make(batched=batched, engine={"long_prefill_token_threshold": 48} if batched < 100 else None)
    prompt = tokens(5, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 40))
    assert engine.reset()
    engine.worker.fails = lambda job: 1
    engine.store_all()
    first, second = engine.add([*prompt, 5, 6], 40), engine.add([*prompt, 7, 8], 40)
    engine.run(first, second)
    engine.check()
    engine.check_nothing_is_left()


def test_who_shares_blocks_of_a_failed_load_outlives_its_owner(make: Make) -> None:
    engine = make()
    prompt = tokens(6, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 40))
    assert engine.reset()
    engine.worker.fails = lambda job: 1
    first, second = engine.add([*prompt, 5, 6], 40), engine.add([*prompt, 7, 8], 40)
    engine.pump()
    engine.abort(first)
    engine.run(second)
    engine.check()
    engine.check_nothing_is_left()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_aborts_while_a_load_is_under_way_leave_nothing(make: Make, mode: str) -> None:
    engine = make(load_mode=mode)
    prompt = tokens(7, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 4))
    assert engine.reset()
    request = engine.add(prompt, 4)
    engine.pump(lambda: engine.abort(request))
    engine.run()
    engine.check()
    engine.check_nothing_is_left()


def test_a_load_that_fails_two_steps_deep(make: Make) -> None:
    engine = make(depth=2)
    prompt = tokens(8, 4 * PAGE + 5)
    engine.run(engine.add(prompt, 40))
    assert engine.reset()
    engine.worker.fails = lambda job: 1
    engine.run(engine.add(prompt, 20))
    engine.check()
    engine.check_nothing_is_left()


def test_more_tenants_than_a_client_may_have_namespaces(make: Make) -> None:
    engine = make(blocks=24)
    requests = [engine.add(tokens(9, 2 * PAGE + 1), 4, salt=f"tenant {number}") for number in range(70)]
    engine.run(*requests)
    engine.check()
    engine.check_nothing_is_left()
    again = engine.add(tokens(9, 2 * PAGE + 1), 4, salt="the last one")
    engine.run(again)
    assert engine.reset()
    engine.run(engine.add(tokens(9, 2 * PAGE + 1), 4, salt="the last one"))
    assert engine.worker.loads[-1].pages == 2


def test_the_engines_cache_can_be_reset_while_finished_requests_are_stored(make: Make) -> None:
    engine = make()
    engine.worker.delay = lambda: 5
    prompt = tokens(10, 4 * PAGE + 5)
    request = engine.add(prompt, 3)
    while not request.is_finished():
        engine.pump()
    assert engine.scheduler.requests, "its blocks are held"
    assert engine.reset()
    assert engine.reset(running=True)
    engine.run(engine.add(prompt))
    engine.check()
    engine.check_nothing_is_left()


WALKS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "tight": {"blocks": 34},
    "chunks": {"blocks": 40, "batched": 96},
    "shares": {"blocks": 60, "batched": 96, "engine": {"long_prefill_token_threshold": 40}},
    "priority": {"blocks": 34, "engine": {"scheduling_policy": "priority"}},
    "uncached": {"blocks": 40, "engine": {"enable_prefix_caching": False}},
    "async": {"blocks": 40, "load_mode": "async"},
    "ahead": {"blocks": 40, "depth": 2},
}


@pytest.mark.parametrize("kind", WALKS)
def test_a_random_walk(make: Make, kind: str) -> None:
    for seed in range(int(os.environ.get("WALK_FROM", "0")), int(os.environ.get("WALK_UNTIL", "2"))):
        engine = make(**WALKS[kind])
        try:
            walk(engine, seed)
        except BaseException:
            print("SEED", seed)
            raise


def test_without_l3_nothing_comes_from_there(make: Make) -> None:
    engine = make()
    prompt = tokens(11, 4 * PAGE + 5)
    late = engine.add(prompt, 60)  # finds what its own first life stored
    for _ in range(8):
        engine.pump()
    assert engine.reset(running=True)
    engine.run(late)
    counts = engine.connector.statistics
    assert (counts["external_tokens_l2"], counts["external_tokens_l3"]) == (4 * PAGE, 0)


@dataclass
class Told:
    """Takes down what is told of prompts' speed; its clock goes by one with each look at it."""

    samples: list[tuple[int, int, float]] = field(default_factory=list)
    now_s: float = 0.0

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        self.samples.append((tokens, start, seconds))

    def clock(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.mark.parametrize("depth", [1, 2])
def test_the_speed_of_prompts_is_told_step_by_step(make: Make, depth: int) -> None:
    engine = make(depth=depth, batched=300)
    told = Told()
    engine.side._prefill = PrefillWatch(told, told.clock)
    engine.run(engine.add(tokens(40, 300)))  # in which an engine gets ready
    engine.run(engine.add(tokens(41, 900), 30))
    engine.run(engine.add(tokens(42, 290), 30), engine.add(tokens(43, 60), 30))
    one, *chunks, shared = told.samples
    assert one[:2] == (300, 0)
    assert [(count, start) for count, start, _ in chunks] == [(300, 300), (300, 600)]
    assert (shared[0], shared[1]) == (300, 0)
    # One step at a time: made, ended. Two: the next one may be made in between.
    assert all(1.0 <= seconds <= depth for _, _, seconds in told.samples)
    engine.check()


@pytest.mark.parametrize("depth", [1, 2])
def test_pages_of_l3_are_asked_for_by_the_speed_that_was_measured(make: Make, depth: int) -> None:
    engine = make(depth=depth)
    client = engine.side._client
    assert client.prefill_tokens_per_s == 0.0
    engine.run(*[engine.add(tokens(50 + number, 400)) for number in range(12)])
    assert client.prefill_tokens_per_s > 0.0
    assert engine.connector.statistics["prefill_tokens_per_s"] == client.prefill_tokens_per_s
    told = make(depth=depth, prefill_tokens_per_s=1234)
    told.run(*[told.add(tokens(70 + number, 400)) for number in range(12)])
    assert told.side._client.prefill_tokens_per_s == 1234


HOOKS = {
    "arrive": "side", "match": "side", "admit": "side", "plan_step": "side", "take_report": "side", "finish": "side",
    "boundary": "governor", "gate": "governor", "looked_up": "governor", "may_hash": "governor", "hashed": "governor",
    "lease": "client", "step_begun": "governor",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_an_exception_in_any_hook_ends_our_part_and_not_the_engine(
    make: Make, hook: str, late: bool, mode: str
) -> None:
    engine = make(load_mode=mode)
    prompts = [[*tokens(12, 3 * PAGE), *tokens(20 + number, PAGE + number)] for number in range(6)]
    engine.run(*[engine.add(prompt, 3) for prompt in prompts])
    assert engine.reset()
    engine.worker.delay = lambda: 3
    running = [engine.add(prompt, 20) for prompt in prompts[:3]]
    for _ in range(4):
        engine.pump()
    owner = {"side": engine.side, "governor": engine.side._governor, "client": engine.side._client}[
        HOOKS[hook]
    ]
    right, calls = getattr(owner, hook), [0]

    def broken(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if late and calls[0] == 2:
            right(*given, **named)
        if not late or calls[0] >= 2:
            raise RuntimeError("planted")
        return right(*given, **named)

    # not all of what is patched has a __dict__ that setattr could change for one instance only
    object.__setattr__(owner, hook, broken)
    requests = [engine.add(prompt, 20) for prompt in prompts]
    engine.pump()
    engine.abort(requests[-1])
    engine.pump()
    engine.run(*running, *requests, *[engine.add(prompt, 2) for prompt in prompts])
    engine.check()
    assert engine.connector.statistics["fuse_blown"] == 1.0
    pool = engine.scheduler.kv_cache_manager.block_pool
    assert pool.num_gpu_blocks - pool.get_num_free_blocks() == 1
    assert engine.side._client.statistics()["leases_held"] == 0
    assert not engine.side._governor._hold.is_held
