"""Stored pages tell what they were computed on: what rests on a selected page goes, nothing else, and what can't be told goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.connectors.vllm.page_origins import PageOrigins
from kv_types.ids import KEY_BYTES, LifeId, PageKey, new_life_id
from kv_types.selectors import Selector
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, Instances
from tests.connectors.vllm.worker_world import WorkerWorld
from tests.connectors.vllm.workers import first

A, B, NOBODY = Selector(producer=b"a"), Selector(producer=b"b"), Selector(producer=b"nobody")
LIFE = new_life_id()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WorkerWorld]:
    with WorkerWorld(tmp_path) as made:
        yield made


def test_what_is_computed_on_loaded_pages_goes_with_them(world: WorkerWorld) -> None:
    a, b = world.engine("a", seed=1), world.engine("b", seed=2)
    keys, own = a.chain(4), a.chain(3, seed=7)
    assert a.save(a.save_job(first(keys, 2), [0, 1], computed_from=0)) == [2]
    assert b.step(loads=(b.load_job(first(keys, 2), [0, 1], request="x"),)).failed == set()
    assert b.save(b.save_job(keys, [2, 3], start=2, request="x", computed_from=2)) == [2]
    assert b.save(b.save_job(own, [4, 5, 6], request="y", computed_from=0)) == [3]
    world.hide(NOBODY)
    assert (b.resident(keys), b.resident(own)) == (4, 3)
    world.hide(A)
    assert (b.resident(keys), b.resident(own)) == (0, 3)


def test_what_was_loaded_stays_when_what_rests_on_it_goes(world: WorkerWorld) -> None:
    a, b = world.engine("a", seed=1), world.engine("b", seed=2)
    keys = a.chain(4)
    a.save(a.save_job(first(keys, 2), [0, 1], computed_from=0))
    b.step(loads=(b.load_job(first(keys, 2), [0, 1], request="x"),))
    b.save(b.save_job(keys, [2, 3], start=2, request="x", computed_from=2))
    world.hide(B)
    assert b.resident(keys) == 2


def test_a_hit_in_the_engines_own_cache_tells_what_the_blocks_were(world: WorkerWorld) -> None:
    a, b = world.engine("a", seed=1), world.engine("b", seed=2)
    keys = a.chain(6)
    a.save(a.save_job(first(keys, 2), [0, 1], computed_from=0))
    b.step(loads=(b.load_job(first(keys, 2), [0, 1], request="x"),))
    b.save(b.save_job(first(keys, 4), [2, 3], start=2, request="x", computed_from=2))
    # Another request finds all four in b's blocks.
    b.save(b.save_job(keys, [4, 5], start=4, request="y", computed_from=4))
    world.hide(NOBODY)
    assert b.resident(keys) == 6
    world.hide(A)
    assert b.resident(keys) == 0


def test_a_load_behind_a_local_hit_joins_both(world: WorkerWorld) -> None:
    a, b = world.engine("a", seed=1), world.engine("b", seed=2)
    keys = a.chain(5)
    a.save(a.save_job(first(keys, 3), [0, 1, 2], computed_from=0))
    b.step(loads=(b.load_job(first(keys, 1), [0], request="x"),))
    b.step(loads=(b.load_job(first(keys, 3), [1, 2], start=1, request="y"),))
    b.save(b.save_job(keys, [3, 4], start=3, request="y", computed_from=3))
    world.hide(NOBODY)
    assert b.resident(keys) == 5


def test_pages_that_somebody_else_stored_first_are_not_ours(world: WorkerWorld) -> None:
    a, b = world.engine("a", seed=1), world.engine("b", seed=2)
    keys = a.chain(3)
    a.save(a.save_job(first(keys, 2), [0, 1], computed_from=0))
    # b has computed the same pages by itself: its blocks are not the pages that are there.
    assert b.save(b.save_job(first(keys, 2), [0, 1], request="x", computed_from=0)) == [2]
    b.save(b.save_job(keys, [2], start=2, request="x", computed_from=0))
    world.hide(NOBODY)
    assert b.resident(keys) == 3  # of one request that computed all: known exactly
    longer = a.chain(4)
    b.save(b.save_job(longer, [3], start=3, request="y", computed_from=3))
    assert b.resident(longer) == 4
    world.hide(NOBODY)
    assert b.resident(longer) == 3  # whose blocks another request used: anything


@pytest.mark.parametrize("told", [True, False])
def test_pages_that_are_stored_again_are_of_unknown_origin(world: WorkerWorld, told: bool) -> None:
    a, b = world.engine("a", seed=1), world.engine("b", seed=2)
    keys = a.chain(2)
    a.save(a.save_job(keys, [0, 1], computed_from=0))
    b.step(loads=(b.load_job(keys, [0, 1], request="x"),))
    world.hide(A)
    # The scheduler would taint such a request; origins alone must be right as well.
    b.save(b.save_job(keys, [0, 1], request="x", computed_from=2 if told else None))
    assert b.resident(keys) == 2
    world.hide(NOBODY)
    assert b.resident(keys) == 0


def test_what_was_computed_on_a_page_that_another_has_replaced_is_of_unknown_origin(
    world: WorkerWorld,
) -> None:
    a, b, c = (world.engine(name, seed=at) for at, name in enumerate("abc"))
    keys = a.chain(2)
    a.save(a.save_job(first(keys, 1), [0], computed_from=0))
    b.step(loads=(b.load_job(first(keys, 1), [0], request="x"),))
    world.hide(Selector(namespace=a.base.id, key=PageKey(keys[:KEY_BYTES])))
    c.save(c.save_job(first(keys, 1), [0], computed_from=0))
    b.save(b.save_job(keys, [1], start=1, request="x", computed_from=1))
    assert b.resident(keys) == 2
    world.hide(NOBODY)
    assert b.resident(keys) == 1


# --- the table alone ------------------------------------------------------------------------------------------------


def packed(pages: int) -> bytes:
    return b"".join(bytes([page]) * KEY_BYTES for page in range(1, pages + 1))


def rests_on(origins: PageOrigins, pages: int, *, request: str = "new", life: LifeId = LIFE) -> int:
    reused = origins.reused_for(request, packed(pages + 1), pages)
    return reused.rests_on(packed(pages + 1), first=pages, life=life)


def loaded(origins: PageOrigins, start: int, numbers: list[int], *, on: int, request: str = "old") -> None:
    instances = Instances(LIFE, tuple(numbers))
    origins.loaded(request, packed(start + len(numbers)), start, instances, stands_on=on)


def test_nothing_reused_rests_on_nothing() -> None:
    assert rests_on(PageOrigins(), 0) == NO_INSTANCE
    assert rests_on(PageOrigins(), 1) == UNKNOWN_INSTANCE


def test_runs_that_stand_on_each_other_are_one() -> None:
    origins = PageOrigins()
    loaded(origins, 0, [11, 12], on=NO_INSTANCE)
    assert [rests_on(origins, pages) for pages in (1, 2)] == [11, 12]
    loaded(origins, 2, [13], on=12)
    assert rests_on(origins, 3) == 13
    assert rests_on(origins, 3, life=new_life_id()) == UNKNOWN_INSTANCE
    loaded(origins, 0, [11, 12], on=NO_INSTANCE)  # the same again
    assert rests_on(origins, 3) == 13


def test_a_run_that_stands_on_another_page_makes_all_behind_it_unknown() -> None:
    origins = PageOrigins()
    loaded(origins, 0, [11, 12], on=NO_INSTANCE)
    loaded(origins, 2, [13], on=99)
    assert rests_on(origins, 2) == 12
    assert rests_on(origins, 3) == UNKNOWN_INSTANCE
    assert rests_on(origins, 3, request="old") == UNKNOWN_INSTANCE


def test_two_computations_of_one_page_are_told_apart_by_nobody() -> None:
    origins = PageOrigins()
    loaded(origins, 0, [11, 12], on=NO_INSTANCE)
    loaded(origins, 0, [11, 22], on=NO_INSTANCE, request="r")
    assert rests_on(origins, 2) == UNKNOWN_INSTANCE
    assert rests_on(origins, 2, request="r") == 22  # what was loaded for it is in its own blocks
    assert rests_on(origins, 1) == 11
    loaded(origins, 0, [11, 12], on=NO_INSTANCE)
    assert rests_on(origins, 2) == UNKNOWN_INSTANCE
    origins.forget_request("r")
    assert rests_on(origins, 2, request="r") == UNKNOWN_INSTANCE


def test_what_was_not_stored_is_unknown_and_so_is_what_was_forgotten() -> None:
    origins = PageOrigins(pages_max=3)
    loaded(origins, 0, [11, 12], on=NO_INSTANCE)
    origins.not_stored(packed(2), 1, 2)
    assert rests_on(origins, 1) == 11
    assert rests_on(origins, 2) == UNKNOWN_INSTANCE
    loaded(origins, 2, [13, 14, 15], on=12)
    assert len(origins) == 3
    assert rests_on(origins, 1) == UNKNOWN_INSTANCE
