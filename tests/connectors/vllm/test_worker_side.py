"""Pages travel between the blocks of two engines byte for byte, whatever their layout, ids and what is in place already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.connectors.vllm.plan import IN_PLACE, Variant
from inference_worker.connectors.vllm.settings import LoadMode
from kv_types.computation import Adapter
from tests.connectors.vllm.blocks import KINDS
from tests.connectors.vllm.worker_world import WorkerWorld
from tests.connectors.vllm.workers import Engine, first
from tests.support.polling import wait_until

MODES = (LoadMode.SYNC, LoadMode.LAYERWISE, LoadMode.ASYNC)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WorkerWorld]:
    with WorkerWorld(tmp_path) as made:
        yield made


def load(engine: Engine, keys: bytes, block_ids: list[int], *, mode: LoadMode, start: int = 0) -> set[int]:
    """Load, and return the blocks that failed."""
    is_async = mode is LoadMode.ASYNC
    step = engine.step(loads=(engine.load_job(keys, block_ids, start=start, is_async=is_async),))
    failed = set(step.failed)
    received = set(step.received)

    def arrived() -> bool:
        more = engine.step()
        received.update(more.received)
        failed.update(more.failed)
        return "r" in received

    if is_async and "r" not in received:
        wait_until(arrived, what="the load's end")
    assert received == ({"r"} if is_async else set())
    return failed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_c08_pages_travel_between_engines(world: WorkerWorld, kind: str, mode: LoadMode) -> None:
    ours, theirs = world.engine(kind=kind, seed=1), world.engine("other", kind, seed=2, blocks=40, mode=mode)
    keys = ours.chain(4)
    assert ours.save(ours.save_job(keys, [5, 3, 9, 0])) == [4]
    wanted = ours.bytes_of([5, 3, 9, 0])
    before = theirs.bytes_of(range(40))
    assert load(theirs, keys, [39, 7, 0, 21], mode=mode) == set()
    assert theirs.bytes_of([39, 7, 0, 21]) == wanted
    rest = [block for block in range(40) if block not in (39, 7, 0, 21)]
    assert theirs.bytes_of(rest) == [before[block] for block in rest]


@pytest.mark.parametrize("mode", [LoadMode.SYNC, LoadMode.LAYERWISE])
@pytest.mark.parametrize("in_place", range(4))
def test_c08_a_load_begins_behind_what_is_in_place(world: WorkerWorld, in_place: int, mode: LoadMode) -> None:
    ours = world.engine(seed=1, blocks_per_page=2)
    theirs = world.engine("other", seed=2, blocks_per_page=2, mode=mode)
    keys = ours.chain(3)
    assert ours.save(ours.save_job(keys, [0, 1, 2, 3, 4, 5])) == [3]
    before = theirs.bytes_of(range(24))
    # Blocks of the first pages are there; of the page in which the engine's own hit ends, too.
    start, skipped = in_place // 2, in_place % 2
    blocks = [IN_PLACE] * skipped + list(range(10 + in_place, 16))
    assert load(theirs, keys, blocks, mode=mode, start=start) == set()
    want = ours.bytes_of([0, 1, 2, 3, 4, 5])
    got = theirs.bytes_of([10, 11, 12, 13, 14, 15])
    layers = len(ours.caches)
    size = len(want[0]) // (2 * layers)
    for page in range(start, 3):
        for layer in range(layers):
            for block in range(2):
                at = (2 * layer + block) * size
                is_skipped = page == start and block < skipped
                other = before[5 + page] if is_skipped else want[page]
                assert got[page][at : at + size] == other[at : at + size]
    assert got[:start] == before[5 : 5 + start]


def test_what_is_known_is_not_copied_again(world: WorkerWorld) -> None:
    ours, theirs = world.engine(seed=1), world.engine("other", seed=2)
    keys = ours.chain(5)
    assert ours.save(ours.save_job(first(keys, 3), [0, 1, 2])) == [3]
    assert theirs.save(theirs.save_job(keys, [0, 1, 2, 3, 4])) == [5]
    figures = theirs.side.statistics()
    assert (figures["known_pages"], figures["stored_pages"]) == (3, 2)
    third = world.engine("third", seed=3)
    assert load(third, keys, [4, 3, 2, 1, 0], mode=LoadMode.SYNC) == set()
    assert third.bytes_of([4, 3, 2]) == ours.bytes_of([0, 1, 2])
    assert third.bytes_of([1, 0]) == theirs.bytes_of([3, 4])


def test_variants_never_meet(world: WorkerWorld) -> None:
    ours = world.engine(seed=1)
    variants = [
        Variant(),
        Variant(weights_version="2"),
        Variant(tenant="t"),
        Variant(adapter=Adapter("a", bytes(32))),
    ]
    for number, variant in enumerate(variants):
        keys = ours.chain(1, variant=variant)
        assert ours.save(ours.save_job(keys, [number], variant=variant)) == [1]
    for number, variant in enumerate(variants):
        job = ours.load_job(ours.chain(1, variant=variant), [10 + number], variant=variant)
        assert ours.step(loads=(job,)).failed == set()
        assert ours.bytes_of([10 + number]) == ours.bytes_of([number])


def test_more_variants_than_a_client_may_have_namespaces(world: WorkerWorld) -> None:
    ours = world.engine(seed=1, blocks=80)
    for number in range(40):
        variant = Variant(tenant=str(number))
        assert ours.save(ours.save_job(ours.chain(1, variant=variant), [number], variant=variant)) == [1]
    variant = Variant(tenant="0")
    job = ours.load_job(ours.chain(1, variant=variant), [79], variant=variant)
    assert ours.step(loads=(job,)).failed == set()
    assert ours.bytes_of([79]) == ours.bytes_of([0])


def test_a_rank_that_does_not_store_tells_its_jobs_as_done(world: WorkerWorld) -> None:
    second = world.engine(rank=1, tensor_size=2)  # of a model with one KV head
    keys = second.chain(2)
    assert second.save(second.save_job(keys, [0, 1])) == [2]
    assert second.resident(keys) == 0


def test_blocks_of_a_finished_request_are_freed_when_they_are_stored(world: WorkerWorld) -> None:
    ours = world.engine()
    job = ours.save_job(ours.chain(2), [0, 1])
    sent = ours.step(saves=(job,), freed=frozenset({"r", "other"})).sent
    assert "other" in sent

    def freed() -> bool:
        sent.update(ours.step().sent)
        return "r" in sent

    wait_until(freed, what="the request's end")
    assert ours.saved[job.number] == [2]
    assert not ours.step().sent


def test_blocks_to_recompute_are_reported_as_failed(world: WorkerWorld) -> None:
    ours = world.engine()
    assert ours.step(recompute_block_ids=frozenset({3, 4})).failed == {3, 4}
    assert ours.step().failed == set()


def test_without_a_client_everything_is_a_miss() -> None:
    alone = Engine(None)
    keys = alone.chain(2)
    step = alone.step(
        loads=(
            alone.load_job(keys, [0, 1]),
            alone.load_job(keys, [IN_PLACE, 3], start=0, request="s", is_async=True),
        )
    )
    assert step.failed == {0, 1, 3}
    assert step.received == {"s"}
    assert step.report.failed_loads == {"r": 0, "s": 0}
    assert alone.step(freed=frozenset({"r"})).sent == {"r"}
    alone.side.shutdown()


def test_weights_versions_are_written_on_the_board(world: WorkerWorld) -> None:
    ours = world.engine()
    assert ours.step().report.version_numbers == (0,)
    ours.side.set_weights_version("v2")
    assert ours.step().report.version_numbers == (1,)


def test_each_step_says_behind_which_of_the_engines_work_copies_come(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = world.engine()
    shard = ours.side._shard
    assert shard is not None
    told: list[int] = []
    monkeypatch.setattr(type(shard.layout.copies), "follow_engine", lambda _: told.append(1))
    ours.step()
    ours.step()
    assert len(told) == 2
