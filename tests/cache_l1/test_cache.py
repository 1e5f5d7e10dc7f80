"""L1Cache: bounded, prefix-closed, exact about pins, and equal to a model of what may be served."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from cache_l1.cache import L1Cache
from kv_types.errors import BufferMismatchError, ClosedError, InvalidArgumentError, InvalidIdentifierError
from kv_types.events import Selected
from kv_types.ids import PageKey
from kv_types.selectors import Selector
from tests.cache_l1.bench import SIZE, Bench, chain
from tests.cache_l1.fakes import ByteMemory, FakeHeader
from tests.conformance.harness import payload


def test_what_was_inserted_is_served() -> None:
    bench = Bench()
    keys = chain(5)
    assert bench.found(keys) == 0
    assert bench.insert(keys[:3]) == 3
    assert bench.found(keys) == 3
    assert bench.insert(keys, 3) == 2
    assert bench.insert(keys) == 0
    assert bench.found(keys) == 5
    assert bench.cache.statistics()["known_pages"] == 5
    bench.check()


def test_packed_keys_are_as_good() -> None:
    bench = Bench()
    keys = chain(2)
    assert bench.cache.insert(b"".join(keys), 0, [payload(key, SIZE) for key in keys], view=bench.view()) == 2
    pages = bench.cache.match(b"".join(keys))
    assert len(pages) == 2
    bench.cache.release(pages)
    bench.check()


def test_torch_pages_on_the_cpu() -> None:
    cache = L1Cache(capacity_pages=4, page_bytes=SIZE)
    header = FakeHeader()
    cache.synchronise(header)
    keys = chain(3)
    sources = torch.arange(3 * 32, dtype=torch.int16).reshape(3, 32)
    assert cache.insert(keys, 0, list(sources), view=cache.observe()) == 3
    pages = cache.match(keys)
    into = torch.zeros_like(sources)
    cache.read(pages, list(into))
    cache.release(pages)
    assert torch.equal(into, sources)


# --- room ---


def test_tails_of_the_oldest_chain_go_first() -> None:
    bench = Bench(6)
    old, young = chain(3, root=1), chain(3, root=2)
    bench.insert(old)
    bench.insert(young)
    assert bench.found(old) == 3  # now the young one is the older
    assert bench.insert(chain(2, root=3)) == 2
    assert bench.found(young) == 1
    assert bench.found(old) == 3
    assert bench.cache.statistics()["evicted_pages"] == 2
    bench.check()


def test_c12_a_chain_larger_than_the_cache_keeps_its_head() -> None:
    bench = Bench(4)
    keys = chain(10)
    assert bench.insert(keys) == 4
    assert bench.found(keys) == 4
    for part in range(4, 10, 2):
        assert bench.insert(keys[: part + 2], part) == 0
    assert bench.found(keys) == 4
    counts = bench.cache.statistics()
    assert counts["refused_pages_full"] == 6 + 2, "the rest of the whole chain, then of its first part"
    assert counts["refused_pages_parent_absent"] == 4
    bench.check()


def test_pinned_pages_are_not_evicted() -> None:
    bench = Bench(3)
    keys, others = chain(3, root=1), chain(3, root=2)
    bench.insert(keys)
    pages = bench.cache.match(keys[:2])
    assert bench.insert(others) == 1
    assert bench.cache.statistics()["pinned_pages"] == 2
    assert bench.found(keys) == 2
    bench.cache.release(pages)
    assert bench.insert(others) == 2
    assert bench.found(keys) == 0
    bench.check()


def test_a_page_without_its_parent_is_not_kept() -> None:
    bench = Bench()
    keys = chain(4)
    assert bench.insert(keys, 2) == 0
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["refused_pages_parent_absent"] == 2
    bench.check()


# --- pins ---


def test_c11_double_release_is_refused_and_frees_nothing() -> None:
    bench = Bench(3)
    keys = chain(3)
    bench.insert(keys)
    first, second = bench.cache.match(keys), bench.cache.match(keys)
    bench.cache.release(first)
    with pytest.raises(InvalidArgumentError, match="released already"):
        bench.cache.release([*second, second[0]])
    bench.cache.read(second, [bytearray(SIZE) for _ in second])
    bench.cache.release(second)
    with pytest.raises(InvalidArgumentError):
        bench.cache.release(second)
    with pytest.raises(InvalidArgumentError):
        bench.cache.read(second[:1], [bytearray(SIZE)])
    assert bench.found(keys) == 3
    bench.check()


# --- time to live ---


def test_pages_expire_with_what_stands_on_them() -> None:
    bench = Bench(ttl_ns=100)
    keys = chain(3)
    bench.insert(keys[:2])
    bench.clock.advance(60)
    bench.insert(keys, 2)
    bench.clock.advance(35)
    assert bench.found(keys) == 3
    bench.clock.advance(10)
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["expired_pages"] == 3
    assert bench.insert(keys) == 3
    bench.check()


def test_an_expired_page_that_is_pinned_is_not_served_again() -> None:
    bench = Bench(ttl_ns=100)
    keys = chain(3)
    bench.insert(keys)
    pages = bench.cache.match(keys[:2])
    bench.clock.advance(200)
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["missed_pages_expired"] == 3
    assert bench.insert(keys) == 0
    assert bench.cache.statistics()["refused_pages_busy"] == 3
    bench.cache.release(pages)
    assert bench.insert(keys) == 3
    assert bench.found(keys) == 3
    bench.check()


# --- bad input ---


def test_sources_of_the_wrong_size_insert_nothing() -> None:
    bench = Bench()
    keys = chain(3)
    with pytest.raises(BufferMismatchError):
        bench.cache.insert(keys, 0, [bytes(SIZE), bytes(SIZE), bytes(SIZE - 1)], view=bench.view())
    assert bench.found(keys) == 0
    bench.check()


@pytest.mark.parametrize(("start", "sources"), [(-1, 4), (4, 0), (0, 2), (1, 3)])
def test_sources_are_one_a_page(start: int, sources: int) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgumentError):
        bench.cache.insert(chain(3), start, [bytes(SIZE)] * sources, view=bench.view())
    bench.check()


def test_keys_and_destinations_are_checked() -> None:
    bench = Bench()
    with pytest.raises(InvalidIdentifierError):
        bench.cache.match(b"short")
    with pytest.raises(InvalidIdentifierError):
        bench.cache.insert(b"short", 0, [], view=bench.view())
    bench.insert(chain(1))
    pages = bench.cache.match(chain(1))
    for into in ([], [bytearray(SIZE - 1)]):
        with pytest.raises(BufferMismatchError):
            bench.cache.read(pages, into)
    bench.cache.release(pages)
    bench.check()


@pytest.mark.parametrize(
    "changes",
    [{"capacity_pages": 0}, {"capacity_pages": 3}, {"page_bytes": SIZE + 1}, {"ttl_ns": 0}, {"ttl_ns": -5}],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"capacity_pages": 2, "page_bytes": SIZE, "memory": ByteMemory(2, SIZE)}
    with pytest.raises(InvalidArgumentError):
        L1Cache(**(settings | changes))


# --- against a model, and from many threads ---


@pytest.mark.parametrize("seed", range(10))
def test_it_serves_nothing_that_a_model_calls_hidden(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    bench = Bench(10)
    resident: dict[PageKey, PageKey | None] = {}  # what may be served: inserted since it was last hidden
    pins: list[list[int]] = []
    for _ in range(400):
        keys = chain(
            draw.randint(1, 6), root=draw.randrange(2), branch=tuple(draw.randrange(2) for _ in range(5))
        )
        action = draw.random()
        if action < 0.45:
            start = draw.randrange(len(keys))
            added = bench.insert(keys, start)
            here = bench.found(keys)
            assert here >= added
            if added:
                resident |= {key: keys[at - 1] if at else None for at, key in enumerate(keys[:here])}
        elif action < 0.7:
            served = bench.found(keys)
            assert all(key in resident for key in keys[:served])
        elif action < 0.78:
            pins.append(bench.cache.match(keys))
        elif action < 0.88 and pins:
            bench.cache.release(pins.pop(draw.randrange(len(pins))))
        elif action < 0.97:
            gone = {draw.choice(keys)}
            bench.header.publish(Selected(Selector(key=next(iter(gone)))))
            while grown := {key for key, parent in resident.items() if parent in gone} - gone:
                gone |= grown
            resident = {key: parent for key, parent in resident.items() if key not in gone}
        else:
            bench.header.restart()
            resident.clear()
    for pages in pins:
        bench.cache.release(pages)
    assert bench.cache.statistics()["hit_pages"] > 200
    bench.check()


def test_many_threads_never_read_foreign_bytes() -> None:
    bench = Bench(24)
    chains = [chain(5, root=root, branch=(turn,)) for root in range(3) for turn in range(3)]
    errors: list[BaseException] = []
    served = [0] * 4

    def work(number: int) -> None:
        draw = random.Random(number)
        try:
            for turn in range(250):
                keys = draw.choice(chains)
                view = bench.view()
                here = bench.cache.match(keys)
                into = [bytearray(SIZE) for _ in here]
                bench.cache.read(here, into)
                assert [bytes(one) for one in into] == [payload(key, SIZE) for key in keys[: len(here)]]
                bench.cache.insert(
                    keys, len(here), [payload(key, SIZE) for key in keys[len(here) :]], view=view
                )
                bench.cache.release(here)
                served[number] += len(here)
                if number == 0 and turn % 25 == 0:
                    bench.header.publish(Selected(Selector(key=draw.choice(keys))))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors
    assert all(count > 0 for count in served)
    bench.check()


# --- places that the caller fills itself ---


def test_places_are_seen_when_they_are_published() -> None:
    bench = Bench()
    keys = chain(5)
    bench.insert(keys[:2])
    with bench.cache.filling(keys, 1, view=bench.view()) as filling:
        assert list(filling.pages) == [2, 3, 4], "the second page is here already"
        for index, page in filling.pages.items():
            bench.memory.write(page, payload(keys[index], SIZE))
        assert bench.found(keys) == 2
        counts = bench.cache.statistics()
        assert (counts["pinned_pages"], counts["known_pages"]) == (5, 1)
        assert filling.publish() == 3
    assert bench.found(keys) == 5
    counts = bench.cache.statistics()
    assert (counts["inserted_pages"], counts["copied_in_pages"], counts["copied_out_pages"]) == (5, 5, 2 + 5)
    bench.check()


def test_places_that_are_left_unpublished_are_free_again() -> None:
    bench = Bench()
    keys = chain(5)
    bench.insert(keys[:2])
    with pytest.raises(ZeroDivisionError), bench.cache.filling(keys, 0, view=bench.view()):
        raise ZeroDivisionError
    assert bench.cache.statistics()["free_pages"] == 6
    assert bench.found(keys) == 2
    bench.check()


def test_an_event_while_places_are_filled_forbids_them() -> None:
    bench = Bench()
    keys = chain(4)
    with bench.cache.filling(keys, 0, view=bench.view()) as filling:
        bench.header.publish(Selected(Selector(key=keys[2])))
        assert filling.publish() == 0
    assert bench.cache.statistics()["refused_pages_invalidated"] == 4
    assert bench.found(keys) == 0
    bench.check()


def test_what_is_in_use_and_what_is_scattered_is_told() -> None:
    bench = Bench(8)
    one, other = chain(3, root=1), chain(3, root=2)
    bench.insert(one)
    bench.insert(other)
    pages = bench.cache.match(one)
    counts = bench.cache.statistics()
    assert (counts["shared_pages"], counts["scattered_pages"], counts["used_pages_peak"]) == (3, 0, 6)
    bench.cache.release(pages)
    bench.header.publish(Selected(Selector(key=other[1])))
    bench.insert(
        [*one, *chain(5, root=1)[3:]]
    )  # behind them are the places of the other chain, but not the next one
    assert bench.found(chain(5, root=1)) == 5
    assert bench.cache.statistics()["scattered_pages"] == 1
    with pytest.raises(InvalidArgumentError):
        bench.cache.note_copied_out([0])
    bench.check()


def test_places_that_were_left_are_published_no_more() -> None:
    """They are free by then, or another prompt's: what is there is no page of this one."""
    bench = Bench(4)
    keys, others = chain(3), chain(4, root=1)
    with bench.cache.filling(keys, 0, view=bench.view()) as filling:
        pass
    with pytest.raises(ClosedError):
        filling.publish()
    assert bench.found(keys) == 0
    assert bench.insert(others) == 4
    with pytest.raises(ClosedError):
        filling.publish()
    assert bench.found(keys) == 0
    assert bench.found(others) == 4
    bench.check()
