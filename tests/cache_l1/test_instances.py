"""What an L1 knows of its pages' place in L2: passed on only while the page below is the one that it rests on there."""

from __future__ import annotations

import pytest

from kv_types.errors import InvalidArgumentError
from kv_types.events import Selected
from kv_types.ids import new_life_id
from kv_types.selectors import EVERYTHING, Selector
from kv_types.validity import NO_INSTANCE, NO_INSTANCES, UNKNOWN_INSTANCE, Instances
from tests.cache_l1.bench import Bench, chain

U = UNKNOWN_INSTANCE


def told(bench: Bench, *numbers: int) -> Instances:
    return Instances(bench.header.life_now, numbers)


def test_what_was_told_at_insert_is_told_at_look_up() -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys, instances=told(bench, 11, 12, 13))
    assert bench.instances(keys) == (11, 12, 13)
    assert bench.instances(keys[:2]) == (11, 12)
    pages = bench.cache.match(keys)
    assert bench.cache.instances(pages).life == bench.header.life_now
    bench.cache.release(pages)


def test_pages_that_nobody_told_anything_of_are_unknown() -> None:
    bench = Bench()
    bench.insert(chain(3))
    assert bench.instances(chain(3)) == (U, U, U)
    short = chain(3, root=1)
    bench.insert(short, instances=told(bench, 21))
    assert bench.instances(short) == (21, U, U), "beyond what was told nothing is known"
    none = chain(1, root=2)
    bench.insert(none, instances=told(bench, NO_INSTANCE))
    assert bench.instances(none) == (U,), "a page is never no page"


def test_a_page_on_another_history_than_its_own_is_unknown_and_so_is_what_follows() -> None:
    """The caller got page 2 from L2, on a page 1 that was computed anew there; here stands the older one."""
    bench = Bench()
    keys = chain(4)
    bench.insert(keys[:2], instances=told(bench, 11, 12))
    bench.insert(keys, instances=told(bench, 11, 92, 93, 94))
    assert bench.instances(keys) == (11, 12, U, U)


def test_a_page_on_an_unknown_one_is_unknown_though_both_say_so() -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys[:1])
    bench.insert(keys, instances=told(bench, U, 12, 13))
    assert bench.instances(keys) == (U, U, U), "what is reused below it has no known history"


def test_a_page_on_the_history_that_is_here_is_known() -> None:
    bench = Bench()
    keys = chain(4)
    bench.insert(keys[:2], instances=told(bench, 11, 12))
    bench.insert(keys, 2, instances=told(bench, 11, 12, 13, 14))
    assert bench.instances(keys) == (11, 12, 13, 14)
    other = chain(3, branch=(5, 6))
    bench.insert(other, instances=told(bench, 11, 22, 23))
    assert bench.instances(other) == (11, 22, 23)


def test_numbers_of_another_life_say_nothing() -> None:
    bench = Bench()
    bench.insert(chain(2), instances=Instances(new_life_id(), (11, 12)))
    assert bench.instances(chain(2)) == (U, U)


def test_a_page_whose_place_is_given_to_another_one_says_nothing_of_it() -> None:
    bench = Bench(2)
    bench.insert(chain(2), instances=told(bench, 11, 12))
    bench.insert(chain(2, root=1))
    assert bench.instances(chain(2, root=1)) == (U, U)


@pytest.mark.parametrize("how", ["page", "everything", "restart"])
def test_a_page_that_was_dropped_while_pinned_is_unknown(how: str) -> None:
    bench = Bench()
    keys = chain(2)
    bench.insert(keys, instances=told(bench, 11, 12))
    pages = bench.cache.match(keys)
    match how:
        case "page":
            bench.header.publish(Selected(Selector(key=keys[1])))
        case "everything":
            bench.header.publish(Selected(EVERYTHING))
        case "restart":
            bench.header.restart()
    bench.view()
    assert bench.cache.instances(pages).numbers == ((11, U) if how == "page" else (U, U))
    bench.cache.release(pages)
    bench.check()


def test_only_pinned_pages_of_a_cache_that_follows_somebody_are_told() -> None:
    bench = Bench()
    bench.insert(chain(1), instances=told(bench, 11))
    pages = bench.cache.match(chain(1))
    bench.cache.release(pages)
    with pytest.raises(InvalidArgumentError, match="released already"):
        bench.cache.instances(pages)
    assert bench.cache.instances([]) == told(bench)
    assert NO_INSTANCES.at(0) == UNKNOWN_INSTANCE
