"""L1Cache: bounded, prefix-closed, and silent about every page that the sidecar's view does not vouch for."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from cache_l1.cache import L1Cache
from kv_types.clock import ManualClock
from kv_types.errors import BufferMismatchError, InvalidArgumentError, InvalidIdentifierError
from kv_types.events import EverythingHidden, NamespaceHidden, PagesHidden
from kv_types.ids import NamespaceId, PageKey
from kv_types.page_keys import page_keys, unpack_keys
from kv_types.validity import ObservedView
from tests.cache_l1.fakes import ByteMemory, FakeHeader
from tests.conformance.harness import payload

SPACE = NamespaceId(b"\x07" * 32)
SIZE = 64


class Bench:
    """A cache, its header, clock and memory, and short ways to say what tests do."""

    def __init__(
        self, capacity: int = 8, *, ttl_ns: int | None = None, namespace: NamespaceId | None = None
    ) -> None:
        self.header = FakeHeader()
        self.clock = ManualClock()
        self.memory = ByteMemory(capacity, SIZE)
        self.cache = L1Cache(
            capacity_pages=capacity, page_bytes=SIZE, memory=self.memory, clock=self.clock,
            ttl_ns=ttl_ns, namespace=namespace,
        )  # fmt: skip
        self.cache.synchronise(self.header)

    def view(self) -> ObservedView:
        observed = self.cache.observe()
        assert observed is not None
        return observed

    def insert(self, keys: list[PageKey], start: int = 0, *, view: ObservedView | None = None) -> int:
        self.clock.advance(1)
        sources = [payload(key, SIZE) for key in keys[start:]]
        return self.cache.insert(keys, start, sources, view=self.view() if view is None else view)

    def found(self, keys: list[PageKey]) -> int:
        """Pages served, their bytes checked."""
        self.clock.advance(1)
        pages = self.cache.match(keys)
        into = [bytearray(SIZE) for _ in pages]
        self.cache.read(pages, into)
        assert [bytes(one) for one in into] == [payload(key, SIZE) for key in keys[: len(pages)]]
        self.cache.release(pages)
        return len(pages)

    def check(self) -> None:
        """Nothing is pinned, lost or counted twice."""
        counts = self.cache.statistics()
        assert counts["pinned_pages"] == 0
        assert counts["free_pages"] + counts["resident_pages"] == counts["capacity_pages"]
        missed = sum(pages for name, pages in counts.items() if name.startswith("missed_pages_"))
        assert counts["requested_pages"] == counts["hit_pages"] + missed


def chain(length: int, *, root: int = 0, branch: tuple[int, ...] = ()) -> list[PageKey]:
    tokens = [root, *(branch[page - 1] if page - 1 < len(branch) else 0 for page in range(1, length))]
    return unpack_keys(page_keys(SPACE, tokens, page_tokens=1))


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
    for call in (
        lambda: bench.cache.release(second),
        lambda: bench.cache.read(second[:1], [bytearray(SIZE)]),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    assert bench.found(keys) == 3
    bench.check()


# --- validity ---


def test_hidden_pages_go_with_what_stands_on_them_and_nothing_else() -> None:
    bench = Bench(12)
    trunk, fork, other = chain(4), chain(4, branch=(0, 5)), chain(3, root=9)
    for keys in (trunk, fork, other):
        bench.insert(keys)
    bench.header.publish(PagesHidden((fork[2],)))
    assert bench.found(fork) == 2
    assert bench.found(trunk) == 4
    assert bench.found(other) == 3
    bench.header.publish(PagesHidden((trunk[0],)))
    assert bench.found(trunk) == bench.found(fork) == 0
    assert bench.found(other) == 3
    assert bench.insert(trunk) == 4, "the same prefix can be stored again at once (I9)"
    assert bench.found(trunk) == 4
    assert bench.header.applied[-1] == bench.header.view_now
    bench.check()


def test_hiding_a_namespace_spares_other_caches() -> None:
    mine, other = Bench(namespace=SPACE), Bench(namespace=NamespaceId(b"\x08" * 32))
    for bench in (mine, other):
        bench.insert(chain(2))
        bench.header.publish(NamespaceHidden(SPACE))
    assert mine.found(chain(2)) == 0
    assert other.found(chain(2)) == 2


@pytest.mark.parametrize("how", ["everything", "unknown", "overrun", "restart"])
def test_what_cannot_be_told_drops_all(how: str) -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys)
    match how:
        case "everything":
            bench.header.publish(EverythingHidden())
        case "unknown":
            bench.header.publish_raw(77, b"?")
        case "overrun":
            bench.header.ring_records = 1
            bench.header.publish(PagesHidden((keys[2],)))
            bench.header.publish(PagesHidden((keys[2],)))
        case "restart":
            bench.header.restart()
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["dropped_pages"] == 3
    assert bench.insert(keys) == 3
    bench.check()


def test_a_stale_header_serves_nothing_and_heals() -> None:
    bench = Bench()
    keys = chain(3)
    bench.insert(keys)
    bench.header.freshness = bench.clock.now_ns()
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
            bench.header.publish(PagesHidden((keys[1],)))

    bench.header.on_look = publish_at_the_second_look
    assert bench.found(keys) == 1
    assert looks >= 3
    bench.check()


def test_a_view_that_never_rests_is_a_miss() -> None:
    bench = Bench()
    keys = chain(2)
    bench.insert(keys)
    bench.header.on_look = lambda: bench.header.publish(PagesHidden((PageKey(b"z" * 32),)))
    assert bench.found(keys) == 0
    assert bench.cache.statistics()["missed_pages_raced"] == 2
    bench.header.on_look = None
    assert bench.found(keys) == 2
    bench.check()


def test_freshness_of_an_ended_life_vouches_for_no_other() -> None:
    bench = Bench()
    bench.insert(chain(2))

    def restart() -> None:
        bench.header.on_look = None
        bench.header.restart()
        bench.header.freshness = 0

    bench.header.on_look = restart
    assert bench.found(chain(2)) == 0
    bench.check()


# --- inserts against the view ---


def test_c16_an_insert_begun_before_the_event_is_refused() -> None:
    bench = Bench()
    keys, others = chain(3), chain(3, root=5)
    view = bench.view()
    bench.header.publish(PagesHidden((keys[1],)))
    assert bench.insert(keys, view=view) == 0
    assert bench.insert(others, view=view) == 3, "what was not selected is kept"
    assert bench.insert(keys) == 3
    assert bench.cache.statistics()["refused_pages_invalidated"] == 3
    bench.check()


def test_an_insert_whose_ancestor_was_hidden_is_refused() -> None:
    bench = Bench()
    keys = chain(4)
    view = bench.view()
    bench.insert(keys[:2], view=view)
    bench.header.publish(PagesHidden((keys[0],)))
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
                bench.header.publish(PagesHidden((keys[2],)))
            case "everything":
                bench.header.publish(EverythingHidden())
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
    bench.header.publish(EverythingHidden())
    assert bench.found(keys) == 0
    into = [bytearray(SIZE) for _ in pages]
    bench.cache.read(pages, into)
    assert [bytes(one) for one in into] == [payload(key, SIZE) for key in keys]
    assert bench.insert(chain(3, root=4)) == 0, "their memory is still in use"
    bench.cache.release(pages)
    assert bench.insert(chain(3, root=4)) == 3
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
            bench.header.publish(PagesHidden(tuple(gone)))
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
                    bench.header.publish(PagesHidden((draw.choice(keys),)))
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
