"""Whatever befalls a load or a save, the engine is told which blocks lack their bytes, and nothing is left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.vllm import saves, worker_side
from inference_worker.connectors.vllm.plan import StepPlan, Variant
from inference_worker.connectors.vllm.settings import LoadMode
from kv_types.ids import NO_LIFE, PageKey, Stamp, new_life_id, new_log_incarnation
from kv_types.selectors import EVERYTHING, Selector
from tests.connectors.vllm.test_worker_side import MODES, load
from tests.connectors.vllm.worker_world import WorkerWorld
from tests.connectors.vllm.workers import Engine, first
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess, sidecar_process


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WorkerWorld]:
    with WorkerWorld(tmp_path) as made:
        yield made


def key_of(keys: bytes, page: int) -> PageKey:
    return PageKey(keys[32 * page : 32 * page + 32])


@pytest.mark.parametrize("mode", MODES)
def test_a_page_that_goes_between_look_up_and_load_is_told(world: WorkerWorld, mode: LoadMode) -> None:
    ours = world.engine(mode=mode)
    keys = ours.chain(4)
    assert ours.save(ours.save_job(keys, [0, 1, 2, 3])) == [4]
    world.hide(Selector(namespace=ours.base.id, key=key_of(keys, 2)))
    assert load(ours, keys, [10, 11, 12, 13], mode=mode) == {12, 13}
    assert ours.bytes_of([10, 11]) == ours.bytes_of([0, 1])
    assert load(ours, keys, [14, 15], mode=mode, start=2) == {14, 15}
    assert ours.side.statistics()["load_jobs"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_load_of_another_life_fails(world: WorkerWorld, mode: LoadMode) -> None:
    ours = world.engine(mode=mode)
    keys = ours.chain(2)
    ours.save(ours.save_job(keys, [0, 1]))
    job = ours.load_job(keys, [5, 6])
    assert ours.step(loads=(job,), life=new_life_id()).failed == {5, 6}
    assert ours.side.statistics()["load_jobs_failed_life"] == 1


def test_a_view_that_is_none_of_this_life_fails(world: WorkerWorld) -> None:
    ours = world.engine()
    keys = ours.chain(1)
    ours.save(ours.save_job(keys, [0]))
    assert ours.client is not None
    plan = ours.plan(loads=(ours.load_job(keys, [5]),))
    assert ours.step(replace(plan, view=plan.view + 100)).failed == {5}


def test_saves_that_no_fence_would_wait_for_are_dropped(world: WorkerWorld) -> None:
    ours = world.engine()
    job = ours.save_job(ours.chain(1), [0])
    ours.step(saves=(job,), life=new_life_id())
    ours.wait_saved(job)
    assert ours.saved[job.number] == [0]
    assert ours.side.statistics()["save_jobs_dropped_not_held"] == 1


def test_c16_a_stamp_that_an_invalidation_overtook_is_refused_with_its_reason(world: WorkerWorld) -> None:
    ours = world.engine()
    keys = ours.chain(3)
    job = ours.save_job(keys, [0, 1, 2])
    world.hide(EVERYTHING)
    assert ours.save(job) == [0]
    figures = ours.side.statistics()
    assert sum(count for name, count in figures.items() if name.startswith("refused_pages_")) == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_load_that_is_late_fails_and_writes_nothing_afterwards(
    world: WorkerWorld, mode: LoadMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine(mode=mode)
    keys = ours.chain(2)
    ours.save(ours.save_job(keys, [0, 1]))
    before = ours.bytes_of([5, 6])
    loader = ours.side._loader
    assert loader is not None
    monkeypatch.setattr(loader, "_deadline_s", 0.0)
    assert load(ours, keys, [5, 6], mode=mode) == {5, 6}
    assert ours.bytes_of([5, 6]) == before
    assert ours.side.statistics()["load_jobs_failed_deadline"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_load_that_fails_in_an_unforeseen_way_is_told(
    world: WorkerWorld, mode: LoadMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine(mode=mode)
    keys = ours.chain(2)
    ours.save(ours.save_job(keys, [0, 1]))
    assert load(ours, keys, [5, 5000], mode=mode) == {5, 5000}
    assert load(ours, keys, [5, 6], mode=mode) == set()


@pytest.mark.parametrize("mode", [LoadMode.LAYERWISE, LoadMode.ASYNC])
def test_a_load_that_no_thread_can_be_had_for_is_told(
    world: WorkerWorld, mode: LoadMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine(mode=mode)
    keys = ours.chain(2)
    ours.save(ours.save_job(keys, [0, 1]))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        assert load(ours, keys, [5, 6], mode=mode) == {5, 6}
    assert load(ours, keys, [5, 6], mode=mode) == set()
    assert ours.side.statistics()["load_jobs_failed_no_thread"] == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_load_whose_end_fails_is_told(
    world: WorkerWorld, mode: LoadMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine(mode=mode)
    keys = ours.chain(2)
    ours.save(ours.save_job(keys, [0, 1]))
    shard = ours.side._shard
    assert shard is not None
    with monkeypatch.context() as patched:
        patched.setattr(shard.origins, "loaded", _no_thread)
        assert load(ours, keys, [5, 6], mode=mode) == {5, 6}
    assert load(ours, keys, [5, 6], mode=mode) == set()


def test_a_save_that_no_thread_can_be_had_for_is_over(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine()
    keys = ours.chain(2)
    job = ours.save_job(keys, [0, 1])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        assert ours.save(job) == [0]
    assert ours.side.statistics()["save_jobs_dropped_no_thread"] == 1
    assert ours.save(ours.save_job(keys, [0, 1])) == [2]


def _no_thread(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def test_an_asynchronous_load_is_told_once_though_its_request_was_aborted(world: WorkerWorld) -> None:
    ours = world.engine(mode=LoadMode.ASYNC)
    keys = ours.chain(2)
    ours.save(ours.save_job(keys, [0, 1]))
    jobs = tuple(
        ours.load_job(keys, [4 + 2 * at, 5 + 2 * at], request=f"r{at}", is_async=True) for at in range(8)
    )
    received = list(ours.step(loads=jobs).received)

    def all_told() -> bool:
        received.extend(ours.step(interrupted=frozenset({"r1"})).received)
        return len(received) >= len(jobs)

    wait_until(all_told, what="all loads' end")
    assert sorted(received) == [f"r{at}" for at in range(8)]
    assert not ours.step().received


class Gate:
    """Holds the thread that stores at its next put until it is opened."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        assert engine.client is not None
        put: Callable[..., Any] = engine.client.put_computed

        def wait(*arguments: Any, **terms: Any) -> Any:
            self.entered.set()
            assert self.opened.wait(30), "nobody opened the gate"
            return put(*arguments, **terms)

        monkeypatch.setattr(engine.client, "put_computed", wait)


def test_a_preemption_drops_what_waits_and_what_has_not_been_read(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine()
    gate = Gate(ours, monkeypatch)
    keys, others = ours.chain(2), ours.chain(2, seed=5)
    begun = ours.save_job(keys, [0, 1], request="a")
    waiting = ours.save_job(others, [2, 3], request="a")
    kept = ours.save_job(ours.chain(1, seed=6), [4], request="b")
    ours.step(saves=(begun, waiting, kept))
    assert gate.entered.wait(10)
    ours.side.handle_preemptions(ours.plan(interrupted=frozenset({"a"})))  # returns though the put goes on
    gate.opened.set()
    ours.wait_saved(begun, waiting, kept)
    assert [ours.saved[job.number] for job in (begun, waiting, kept)] == [[0], [0], [1]]
    assert (ours.resident(keys), ours.resident(others)) == (0, 0)
    assert ours.side.statistics()["save_jobs_dropped_interrupted"] == 2


def test_a_preemption_waits_for_what_is_being_read(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine()
    keys = ours.chain(1)
    job = ours.save_job(keys, [0])
    entered, opened, preempted = threading.Event(), threading.Event(), threading.Event()
    copies = ours.side._shard.layout.copies  # type: ignore[union-attr]
    sources = copies.sources

    def copy_slowly(*arguments: Any, **terms: Any) -> Any:
        entered.set()
        assert opened.wait(30), "nobody opened"
        return sources(*arguments, **terms)

    monkeypatch.setattr(copies, "sources", copy_slowly)
    ours.step(saves=(job,))
    assert entered.wait(10)

    def preempt() -> None:
        ours.side.handle_preemptions(ours.plan(interrupted=frozenset({"r"})))
        preempted.set()

    thread = threading.Thread(target=preempt)
    thread.start()
    saver = ours.side._saver
    assert saver is not None
    wait_until(lambda: saver._now is not None and saver._now.is_cancelled, what="the preemption")
    assert not preempted.is_set()
    opened.set()
    thread.join(10)
    assert preempted.is_set()
    ours.wait_saved(job)
    assert ours.resident(keys) == 0


def test_an_engine_that_may_sleep_has_nothing_read_behind_a_step(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_side, "ENGINE_SETTLE_S_MAX", 0.1)
    ours = world.engine(may_sleep=True)
    hung, waiting = (ours.save_job(ours.chain(1, seed=at), [at]) for at in (5, 6))
    gate = Gate(ours, monkeypatch)
    assert ours.step(saves=(hung, waiting)).report.saved == {waiting.number: [0]}
    gate.opened.set()
    ours.wait_saved(hung)
    assert ours.saved[hung.number] == [0]
    job = ours.save_job(ours.chain(3), [0, 1, 2])
    assert ours.step(saves=(job,)).report.saved == {job.number: [3]}


def test_a_queue_that_is_full_drops(world: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "SAVE_JOBS_QUEUED_MAX", 2)
    ours = world.engine()
    gate = Gate(ours, monkeypatch)
    jobs = [ours.save_job(ours.chain(1, seed=at), [at]) for at in range(5)]
    ours.step(saves=(jobs[0],))
    assert gate.entered.wait(10)
    ours.step(saves=tuple(jobs[1:]))
    gate.opened.set()
    ours.wait_saved(*jobs)
    assert [ours.saved[job.number] for job in jobs] == [[1], [1], [1], [0], [0]]
    assert ours.side.statistics()["save_jobs_dropped_queue_full"] == 2


def test_pages_that_no_segment_holds_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with WorkerWorld(tmp_path, segment_bytes=64 * 1024, arena_bytes=1024 * 1024) as world:
        ours = world.engine(blocks=64, blocks_per_page=32)
        assert ours.side._shard is not None
        assert ours.side._shard.page_bytes > 64 * 1024
        for seed in range(2):
            assert ours.save(ours.save_job(ours.chain(1, seed=seed), range(32))) == [0]
    assert caplog.text.count("--segment-size") == 1
    assert ours.side.statistics()["refused_pages_too_large"] == 2


def test_what_waits_is_stored_before_the_end(world: WorkerWorld) -> None:
    ours, theirs = world.engine(), world.engine("other", seed=4)
    keys = ours.chain(20)
    ours.step(saves=tuple(ours.save_job(first(keys, n + 1), [n], start=n) for n in range(20)))
    ours.side.shutdown()
    assert theirs.resident(keys) == 20


def test_drained_waits_for_a_pass_and_for_what_waits_to_be_stored(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine()
    gate = Gate(ours, monkeypatch)

    def oldest() -> set[int]:
        return {row.oldest_view for row in world.site.call(lambda store: store.clients())} - {0}

    plan = ours.plan()
    ours.side.begin_step(plan)
    assert oldest() == {plan.view}
    ours.side.report()
    assert oldest() == set()
    job = ours.save_job(ours.chain(1), [0])
    ours.step(saves=(job,))
    assert gate.entered.wait(10)
    world.hide(Selector(namespace=ours.base.id, key=key_of(ours.chain(1, seed=9), 0)))
    later = ours.plan()
    assert later.view > plan.view
    ours.step(later)
    assert oldest() == {plan.view}
    gate.opened.set()
    ours.wait_saved(job)
    assert oldest() == set()


# --- the sidecar goes -----------------------------------------------------------------------------------------------


@pytest.fixture
def sidecar() -> Iterator[SidecarProcess]:
    with sidecar_process(flags=("--freshness-lease", "1s")) as made:
        yield made


def attached(sidecar: SidecarProcess, **terms: Any) -> Engine:
    client = Client.connect(sidecar.runtime, settings=ClientSettings(name="engine", prefault=False))
    assert client.wait_ready(deadline_s=10.0)
    return Engine(client, **terms)


def test_c20_a_sidecar_that_dies_and_returns(sidecar: SidecarProcess) -> None:
    ours = attached(sidecar)
    assert ours.client is not None
    keys = ours.chain(3)
    wait_until(lambda: ours.save(ours.save_job(keys, [0, 1, 2])) == [3], what="a store")
    planned: StepPlan = ours.plan(loads=(ours.load_job(keys, [10, 11, 12]),))
    sidecar.kill()
    wait_until(lambda: ours.client is not None and ours.client.validity.life == NO_LIFE, what="the loss")
    assert ours.step(planned).failed == {10, 11, 12}
    lost = ours.save_job(keys, [0, 1, 2], stamp=Stamp(new_log_incarnation(), 1))
    ours.step(saves=(lost,))
    ours.wait_saved(lost)
    assert ours.saved[lost.number] == [0]
    sidecar.start()
    assert ours.client.wait_ready(deadline_s=20.0)
    assert ours.step(replace(planned, step=100)).failed == {10, 11, 12}  # orders of the former life
    wait_until(
        lambda: ours.client is not None and ours.client.stamp() is not None and _stores(ours, keys),
        timeout_s=20,
        what="stores in the next life",
    )
    assert ours.step(loads=(ours.load_job(keys, [10, 11, 12]),)).failed == set()
    assert ours.bytes_of([10, 11, 12]) == ours.bytes_of([0, 1, 2])
    ours.side.shutdown()


def test_a_sidecar_that_dies_under_a_load_leaves_it_whole(
    sidecar: SidecarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = attached(sidecar, mode=LoadMode.LAYERWISE)
    keys = ours.chain(3)
    wait_until(lambda: ours.save(ours.save_job(keys, [0, 1, 2])) == [3], what="a store")
    loader = ours.side._loader
    assert loader is not None
    copy = loader.copy_layers
    killed: list[int] = []

    def kill_first(*arguments: Any, **terms: Any) -> None:
        if not killed:
            killed.append(1)
            sidecar.kill()
        copy(*arguments, **terms)

    monkeypatch.setattr(loader, "copy_layers", kill_first)
    assert ours.step(loads=(ours.load_job(keys, [10, 11, 12]),)).failed == set()
    assert ours.bytes_of([10, 11, 12]) == ours.bytes_of([0, 1, 2])
    ours.side.shutdown()


def _stores(engine: Engine, keys: bytes) -> bool:
    return engine.save(engine.save_job(keys, [0, 1, 2])) == [3]


@pytest.mark.parametrize("mode", [LoadMode.SYNC, LoadMode.LAYERWISE])
def test_c09_a_step_waits_once_for_a_sidecar_that_hangs(sidecar: SidecarProcess, mode: LoadMode) -> None:
    """Namespaces that a worker hasn't used yet are told to the sidecar first: a new tenant's, say."""
    client = Client.connect(sidecar.runtime, settings=ClientSettings(name="engine", prefault=False))
    ours = Engine(client, mode=mode)
    tenants = [Variant(tenant=f"t{at}") for at in range(8)]
    keys = ours.chain(1)
    assert ours.save(ours.save_job(keys, [0])) == [1]
    sidecar.pause()
    jobs = [
        ours.load_job(ours.chain(1, variant=one), [8 + at], variant=one, request=one.tenant)
        for at, one in enumerate(tenants)
    ]
    began = time.perf_counter()
    step = ours.step(loads=(*jobs, ours.load_job(keys, [3])))
    assert time.perf_counter() - began < 1.5
    assert step.failed == {*range(8, 16)}
    assert ours.bytes_of([3]) == ours.bytes_of([0])
    began = time.perf_counter()
    assert ours.step(loads=(*jobs, ours.load_job(keys, [4]))).failed == {*range(8, 16)}
    assert time.perf_counter() - began < 0.2, "it is left alone for a while"
    assert ours.bytes_of([4]) == ours.bytes_of([0])
    sidecar.signal(signal.SIGCONT)
    ours.side.shutdown()


def test_loads_over_grpc_alone(sidecar: SidecarProcess) -> None:
    ours = attached(sidecar, seed=1)
    keys = ours.chain(3)
    wait_until(lambda: _stores(ours, keys), what="a store")
    settings = ClientSettings(name="far", shared_memory=False, deadline_s=5.0)
    far = Engine(Client.connect(sidecar.runtime, settings=settings), seed=2)
    longer = far.chain(4)
    assert far.step(loads=(far.load_job(longer, [3, 4, 5, 6]),)).failed == {6}
    assert far.bytes_of([3, 4, 5]) == ours.bytes_of([0, 1, 2])
    far.side.shutdown()
    ours.side.shutdown()
