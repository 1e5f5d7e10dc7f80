"""L1Cache is silent about every page that the sidecar's view does not vouch for, and keeps none that is too late."""

from __future__ import annotations

import pytest

from cache_l1.cache import L1Cache
from kv_types.events import LogStarted, Selected, WeightsAnnounced
from kv_types.ids import PageKey
from kv_types.selectors import EVERYTHING, Selector
from tests.cache_l1.bench import SIZE, SPACE, Bench, chain
from tests.cache_l1.fakes import ByteMemory, FakeHeader
from tests.conformance.harness import payload
from tests.kv_types.samples import namespace as some_namespace


def page_and_above(key: PageKey) -> Selected:
    return Selected(Selector(key=key))


# --- validity ---


def test_hidden_pages_go_with_what_stands_on_them_and_nothing_else() -> None:
    bench = Bench(12)
    trunk, fork, other = chain(4), chain(4, branch=(0, 5)), chain(3, root=9)
    for keys in (trunk, fork, other):
        bench.insert(keys)
    bench.header.publish(page_and_above(fork[2]))
    assert bench.found(fork) == 2
    assert bench.found(trunk) == 4
    assert bench.found(other) == 3
    bench.header.publish(page_and_above(trunk[0]))
    assert bench.found(trunk) == bench.found(fork) == 0
    assert bench.found(other) == 3
    assert bench.insert(trunk) == 4, "the same prefix can be stored again at once (I9)"
    assert bench.found(trunk) == 4
    assert bench.header.applied[-1] == bench.header.view_now
    bench.check()


def test_hiding_a_namespace_spares_other_caches() -> None:
    mine, other = Bench(namespace=SPACE), Bench(namespace=some_namespace(model="other"))
    for bench in (mine, other):
        bench.insert(chain(2))
        bench.header.publish(Selected(Selector(namespace=SPACE.id)))
    assert mine.found(chain(2)) == 0
    assert other.found(chain(2)) == 2


@pytest.mark.parametrize("how", ["everything", "log", "origin", "unknown", "overrun", "restart"])
def test_what_cannot_be_told_drops_all(how: str) -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys)
    match how:
        case "everything":
            bench.header.publish(Selected(EVERYTHING))
        case "log":
            bench.header.publish(LogStarted())
        case "origin":
            bench.header.publish(Selected(Selector(producer=b"worker 3")))
        case "unknown":
            bench.header.publish_raw(77, b"?")
        case "overrun":
            bench.header.ring_records = 1
            bench.header.publish(page_and_above(keys[2]))
            bench.header.publish(page_and_above(keys[2]))
        case "restart":
            bench.header.restart()
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["dropped_pages"] == 3
    assert bench.insert(keys) == 3
    bench.check()


def test_announced_weights_leave_pages_alone() -> None:
    bench = Bench(namespace=SPACE)
    bench.insert(chain(3))
    bench.header.publish(WeightsAnnounced(SPACE.model, "2"))
    assert bench.found(chain(3)) == 3, "what is named by the old version is still right under its name"
    assert bench.header.applied[-1] == bench.header.view_now
    bench.check()


def test_a_stale_header_serves_nothing_and_heals() -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys)
    bench.header.freshness = bench.clock.now_ns() + 1  # now, when the look-up comes
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["missed_pages_stale"] == 3
    bench.header.freshness = bench.clock.now_ns() + 100
    assert bench.found(keys) == 3
    bench.check()


def test_without_a_sidecar_nothing_is_served_or_kept() -> None:
    bench = Bench()
    keys = chain(3)
    view = bench.view()
    bench.insert(keys[:2])
    life, view_now, freshness = bench.header.life_now, bench.header.view_now, bench.header.freshness
    bench.header.detach()
    assert bench.cache.observe() is None
    assert bench.found(keys) == 0
    assert bench.insert(keys, 2, view=view) == 0
    assert bench.cache.statistics()["missed_pages_unreachable"] == 3
    bench.header.life_now, bench.header.view_now, bench.header.freshness = life, view_now, freshness
    assert bench.found(keys) == 2, "the same life came back and vouches again"
    bench.check()


def test_a_cache_that_follows_nobody_serves_nothing() -> None:
    cache = L1Cache(capacity_pages=2, page_bytes=SIZE, memory=ByteMemory(2, SIZE))
    assert cache.match(chain(1)) == []
    assert cache.insert(chain(1), 0, [bytes(SIZE)], view=None) == 0
    assert cache.observe() is None


def test_another_source_drops_all() -> None:
    bench = Bench()
    bench.insert(chain(2))
    bench.cache.synchronise(bench.header)
    assert bench.found(chain(2)) == 2
    other = FakeHeader()
    bench.cache.synchronise(other)
    assert bench.found(chain(2)) == 0
    bench.check()


def test_an_event_between_collecting_and_serving_is_seen() -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys)
    looks = 0

    def publish_at_the_second_look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            bench.header.publish(page_and_above(keys[1]))

    bench.header.on_look = publish_at_the_second_look
    assert bench.found(keys) == 1
    assert looks >= 3
    bench.check()


def test_a_view_that_never_rests_is_a_miss() -> None:
    bench = Bench()
    keys = chain(2)
    bench.insert(keys)
    bench.header.on_look = lambda: bench.header.publish(page_and_above(PageKey(b"z" * 32)))
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["missed_pages_raced"] == 2
    bench.header.on_look = None
    assert bench.found(keys) == 2
    bench.check()


def test_a_restart_while_the_header_is_read_serves_nothing() -> None:
    bench = Bench()
    bench.insert(chain(2))

    def restart() -> None:
        bench.header.on_look = None
        bench.header.restart()

    bench.header.on_look = restart
    assert bench.found(chain(2)) == 0
    assert bench.found(chain(2)) == 0
    bench.check()


# --- inserts against the view ---


def test_c16_an_insert_begun_before_the_event_is_refused() -> None:
    bench = Bench()
    keys, others = chain(3), chain(3, root=5)
    view = bench.view()
    bench.header.publish(page_and_above(keys[1]))
    assert bench.insert(keys, view=view) == 0
    assert bench.insert(others, view=view) == 3, "what was not selected is kept"
    assert bench.insert(keys) == 3
    assert bench.cache.statistics()["refused_pages_invalidated"] == 3
    bench.check()


def test_an_insert_that_comes_too_late_evicts_nothing() -> None:
    bench = Bench(3)
    keys, late = chain(3, root=1), chain(3, root=2)
    view = bench.view()
    bench.insert(keys)
    bench.header.publish(page_and_above(late[0]))
    assert bench.insert(late, view=view) == 0
    assert bench.found(keys) == 3
    bench.check()


def test_an_insert_whose_ancestor_was_hidden_is_refused() -> None:
    bench = Bench()
    keys = chain(4)
    view = bench.view()
    bench.insert(keys[:2], view=view)
    bench.header.publish(page_and_above(keys[0]))
    bench.insert(keys[:2])  # somebody computes the ancestors again
    assert bench.insert(keys, 2, view=view) == 0, "the old request stood on the old ancestors"
    assert bench.insert(keys, 2) == 2
    bench.check()


@pytest.mark.parametrize("event", ["pages", "everything", "restart"])
def test_an_event_during_the_copy_refuses_the_insert(event: str) -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys[:1])
    view = bench.view()

    def happen(_: int) -> None:
        bench.memory.on_write = None
        match event:
            case "pages":
                bench.header.publish(page_and_above(keys[2]))
            case "everything":
                bench.header.publish(Selected(EVERYTHING))
            case "restart":
                bench.header.restart()

    bench.memory.on_write = happen
    assert bench.insert(keys, 1, view=view) == 0
    assert bench.found(keys) == (1 if event == "pages" else 0)
    bench.check()


def test_a_view_of_another_life_is_refused_though_its_number_fits() -> None:
    bench = Bench()
    view = bench.view()
    bench.header.restart()
    assert bench.view().view == view.view
    assert bench.insert(chain(2), view=view) == 0
    bench.check()


def test_pages_hidden_while_pinned_stay_readable_and_are_freed_at_release() -> None:
    bench = Bench(3)
    keys = chain(3)
    bench.insert(keys)
    pages = bench.cache.match(keys)
    bench.header.publish(Selected(EVERYTHING))
    assert bench.found(keys) == 0
    into = [bytearray(SIZE) for _ in pages]
    bench.cache.read(pages, into)
    assert [bytes(one) for one in into] == [payload(key, SIZE) for key in keys]
    assert bench.insert(chain(3, root=4)) == 0, "their memory is still in use"
    bench.cache.release(pages)
    assert bench.insert(chain(3, root=4)) == 3
    bench.check()
