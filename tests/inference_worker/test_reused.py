"""What a request says that its pages rest on: one instance that stands for all it reused, or unknown."""

from __future__ import annotations

import pytest

from inference_worker.reused import ReusedPages, Run
from kv_types.ids import NO_LIFE, LifeId
from kv_types.limits import REUSED_RUNS_MAX
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, Instances
from tests.cache_l1.bench import chain

LIFE, OTHER_LIFE = LifeId(b"l" * 16), LifeId(b"m" * 16)
U = UNKNOWN_INSTANCE
KEYS = b"".join(chain(10))


def run(start: int, *numbers: int, stands_on: int = U, life: LifeId = LIFE) -> Run:
    return Run(life, start, len(numbers), numbers[-1] if numbers else NO_INSTANCE, numbers, stands_on)


def rests_on(reused: ReusedPages, first: int, keys: bytes = KEYS, life: LifeId = LIFE) -> int:
    return reused.rests_on(keys, first=first, life=life)


def test_who_reused_nothing_rests_on_nothing() -> None:
    reused = ReusedPages()
    assert rests_on(reused, 0) == rests_on(reused, 7) == NO_INSTANCE
    reused.found(KEYS, run(0))
    assert rests_on(reused, 0) == NO_INSTANCE, "a look-up that found nothing"
    assert reused.instances(KEYS[:64]).numbers == (U, U)


def test_the_last_page_of_a_look_up_stands_for_all_of_them() -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11, 12, 13))
    assert rests_on(reused, 3) == 13
    assert rests_on(reused, 8) == 13, "pages between were computed, and others had stored them already"
    assert reused.instances(KEYS[: 4 * 32]).numbers == (11, 12, 13, U)
    assert reused.instances(KEYS).life == LIFE


@pytest.mark.parametrize("numbers", [(U, 12, 13), (11, U, 13), (11, NO_INSTANCE, 13), (11, 12), (11, 12, U)])
def test_one_unknown_page_of_those_that_the_caller_had_makes_all_unknown(numbers: tuple[int, ...]) -> None:
    """L2's tree tells of what lies below the last; what the caller has there may be something else."""
    reused = ReusedPages.of(KEYS[: 3 * 32], Instances(LIFE, numbers))
    assert rests_on(reused, 3) == U
    assert rests_on(ReusedPages.of(KEYS[: 3 * 32], Instances(LIFE, (11, 12, 13))), 3) == 13
    assert rests_on(ReusedPages.of(b"", Instances(LIFE, numbers)), 3) == NO_INSTANCE


@pytest.mark.parametrize("numbers", [(U, U, U), (11, 12, 13)])
def test_what_is_stored_again_of_a_chain_that_was_cut_is_of_unknown_lineage(numbers: tuple[int, ...]) -> None:
    """The pages were reused though the look-up went on behind those that are stored."""
    reused = ReusedPages()
    reused.found(KEYS, run(0, *numbers))
    for pages in (1, 2):
        assert rests_on(reused, pages - 1, KEYS[: pages * 32]) == U
    other = b"".join(chain(2, root=1))
    assert rests_on(reused, 1, other) == NO_INSTANCE, "another chain's pages were not"


@pytest.mark.parametrize(("again", "expected"), [(11, 11), (91, U)])
def test_a_shorter_look_up_is_one_history_with_a_longer_one_if_it_found_the_same_page(
    again: int, expected: int
) -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11, 12, 13))
    reused.found(KEYS[:32], run(0, again))
    fork = KEYS[:32] + b"".join(chain(10, branch=(1,)))[32:64]
    assert rests_on(reused, 1, fork) == expected


def test_pages_of_l2_on_those_of_l1_are_one_history_if_they_stand_on_them_there() -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11, 12))
    reused.found(KEYS, run(2, 13, 14, stands_on=12))
    assert rests_on(reused, 4) == 14
    assert reused.instances(KEYS[: 5 * 32]).numbers == (11, 12, 13, 14, U)


@pytest.mark.parametrize("below", [92, U, NO_INSTANCE])
def test_pages_of_l2_on_another_page_than_l1_had_are_of_unknown_lineage(below: int) -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11, 12))
    reused.found(KEYS, run(2, 93, 94, stands_on=below))
    assert rests_on(reused, 4) == U
    assert reused.instances(KEYS[: 4 * 32]).numbers == (11, 12, U, U)


@pytest.mark.parametrize("front", [[], [U], [11, U]])
def test_pages_that_were_not_told_of_are_unknown(front: list[int]) -> None:
    reused = ReusedPages()
    if front:
        reused.found(KEYS, run(0, *front))
    reused.found(KEYS, run(2, 13, stands_on=12))
    assert rests_on(reused, 3) == U


def test_a_second_look_up_of_the_same_pages_changes_nothing() -> None:
    reused = ReusedPages()
    for _ in range(2):
        reused.found(KEYS, run(0, 11, 12, 13))
    reused.found(KEYS, run(0, 11, 12, 13, 14))
    reused.found(KEYS, run(0, 11, 12))
    assert rests_on(reused, 4) == 14


def test_pages_that_were_computed_anew_between_two_look_ups_are_unknown() -> None:
    longer = ReusedPages()
    longer.found(KEYS, run(0, 11, 12))
    longer.found(KEYS, run(0, 91, 92, 93))
    assert rests_on(longer, 3) == U
    shorter = ReusedPages()
    shorter.found(KEYS, run(0, 11, 12, 13))
    shorter.found(KEYS[:64], run(0, 91, 92))
    assert rests_on(shorter, 3) == U, (
        "what was found last lies below what was found first, in another history"
    )
    assert shorter.instances(KEYS[:96]).numbers == (U, U, 13)


def test_other_chains_of_the_request_do_not_matter() -> None:
    reused = ReusedPages()
    one, other = chain(10), chain(4, root=5)
    reused.found(b"".join(one), run(0, *range(11, 17)))
    reused.found(b"".join(other), run(0, 31))
    assert rests_on(reused, 6) == 16
    assert rests_on(reused, 1, keys=b"".join(other)) == 31
    assert rests_on(reused, 0, keys=b"".join(chain(4, root=6))) == NO_INSTANCE


TRUNK = chain(10)
FORK = b"".join(TRUNK[:3] + chain(10, branch=(0, 0, 7))[3:])


def test_pages_on_the_front_of_another_chain_rest_on_what_was_reused_of_that() -> None:
    reused = ReusedPages()
    reused.found(b"".join(TRUNK), run(0, *range(11, 17)))
    assert rests_on(reused, 3, keys=FORK) == rests_on(reused, 5, keys=FORK) == 13
    assert rests_on(reused, 2, keys=FORK) == U, "stored again, what was reused is somebody else's"
    assert reused.instances(FORK[: 4 * 32]).numbers == (11, 12, 13, U)
    only_last = ReusedPages()
    only_last.found(b"".join(TRUNK), Run(LIFE, 0, 6, 16))
    assert rests_on(only_last, 3, keys=FORK) == U, "where the chains part is not told"


@pytest.mark.parametrize(("front", "expected"), [((11, 12), 13), ((11, 92), U)])
def test_a_fork_and_its_trunk_are_one_history_if_both_found_the_same_pages(
    front: tuple[int, ...], expected: int
) -> None:
    for fork_first in (False, True):
        reused = ReusedPages()
        found = [(TRUNK, run(0, *range(11, 17))), (TRUNK[:2], run(0, *front))]
        for keys, what in reversed(found) if fork_first else found:
            reused.found(b"".join(keys), what)
        assert rests_on(reused, 3, keys=FORK) == expected


def test_rows_of_a_batch_that_share_a_front_rest_on_it_each() -> None:
    reused = ReusedPages()
    rows = [TRUNK[:3] + chain(6, branch=(0, 0, row))[3:] for row in range(10, 50)]
    for number, keys in enumerate(rows):
        reused.found(b"".join(keys), run(0, 11, 12, 13, 100 + number))
    assert [rests_on(reused, 4, keys=b"".join(keys)) for keys in rows] == [100 + n for n in range(len(rows))]
    assert rests_on(reused, 3, keys=FORK) == 13


def test_own_pages_of_a_trunk_carry_a_fork() -> None:
    reused = ReusedPages()
    reused.stored(b"".join(TRUNK), run(0, 51, 52, 53, 54))
    assert rests_on(reused, 3, keys=FORK) == 53
    assert rests_on(reused, 1, keys=FORK) == NO_INSTANCE, "sent again, own pages rest on what they rested on"


def test_own_pages_carry_on() -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11, 12))
    reused.stored(KEYS, run(2, 53, 54))
    assert rests_on(reused, 4) == 54
    assert rests_on(reused, 3) == 12, "sent again, own pages rest on what they rested on"
    assert reused.instances(KEYS[: 4 * 32]).numbers == (11, 12, 53, 54)
    reused.found(KEYS, run(4, 65, stands_on=54))
    assert rests_on(reused, 5) == 65


def test_own_pages_on_nothing() -> None:
    reused = ReusedPages()
    reused.stored(KEYS, run(0, 51, 52))
    assert rests_on(reused, 2) == 52
    assert rests_on(reused, 0) == NO_INSTANCE


def test_what_was_reused_and_is_stored_again_is_not_own_work() -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11, 12, 13))
    assert rests_on(reused, 0) == rests_on(reused, 2) == U
    reused.stored(KEYS, run(0, 51, 52, 53, 54))  # as of unknown lineage, which is marked in L2
    assert rests_on(reused, 4) == 54


def test_another_life_knows_none_of_these_numbers() -> None:
    reused = ReusedPages()
    reused.found(KEYS, run(0, 11))
    assert rests_on(reused, 1, life=OTHER_LIFE) == rests_on(reused, 1, life=NO_LIFE) == U
    reused.found(KEYS, run(1, 12, stands_on=11, life=OTHER_LIFE))
    assert rests_on(reused, 2) == rests_on(reused, 2, life=OTHER_LIFE) == U


def test_a_look_up_that_tells_only_its_last_page() -> None:
    reused = ReusedPages()
    reused.found(KEYS, Run(LIFE, 0, 3, 13))
    assert rests_on(reused, 3) == 13
    assert reused.instances(KEYS[:96]).numbers == (U, U, 13)


def test_more_runs_than_are_remembered_make_all_unknown() -> None:
    reused = ReusedPages()
    for number in range(REUSED_RUNS_MAX):
        reused.found(b"".join(chain(1, root=number)), run(0, number + 1))
    assert rests_on(reused, 1, keys=b"".join(chain(1, root=7)) + bytes(32)) == 8
    reused.found(b"".join(chain(1, root=REUSED_RUNS_MAX)), run(0, 5))
    assert rests_on(reused, 0) == U
    assert reused.instances(KEYS[:32]).numbers == (U,)
