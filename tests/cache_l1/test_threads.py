"""Threads of one worker on one L1: they look up, gather, release, insert and invalidate; nobody ever reads another's bytes."""

from __future__ import annotations

import queue
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from cache_l1.cache import L1Cache
from cache_l1.policies import POLICIES
from kv_policy.losing_cost import LosingCosts
from kv_types.errors import InvalidArgumentError
from kv_types.events import LogStarted, Selected
from kv_types.ids import LifeId, PageKey
from kv_types.selectors import Selector
from kv_types.validity import Instances
from tests.cache_l1.bench import SIZE, SPACE, chain
from tests.cache_l1.fakes import ByteMemory, FakeHeader
from tests.conformance.harness import payload

CAPACITY = 24
TURNS = 1200
SECRETS = [chain(6, root=root, branch=(0, 0, leaf)) for root in range(6) for leaf in range(3)]
"""Chains that share their front, so that threads meet on the same pages; more than fit."""


class Worker:
    """What one thread does, drawn from a seed of its own."""

    def __init__(self, cache: L1Cache, header: FakeHeader, seed: int, turns: queue.SimpleQueue[bool]) -> None:
        self._cache, self._header, self._turns = cache, header, turns
        self._draw = random.Random(seed)
        self.errors: list[str] = []

    def run(self, begin: threading.Barrier) -> None:
        begin.wait(timeout=60)
        acts: Sequence[Callable[[list[PageKey]], None]] = (
            self._read,
            self._read,
            self._store,
            self._fill,
            self._ask,
        )
        try:
            for _ in range(TURNS):
                self._draw.choice(acts)(self._draw.choice(SECRETS))
                self._turns.put(True)
        except Exception as error:  # told by the test's thread
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            self._turns.put(False)

    def _read(self, keys: list[PageKey]) -> None:
        """A look-up and a gather: what is pinned keeps its bytes, whatever is hidden or evicted meanwhile."""
        pages = self._cache.match(keys[: self._draw.randint(1, len(keys))])
        into = [bytearray(SIZE) for _ in pages]
        self._cache.instances(pages)
        self._cache.read(pages, into)
        self._check(keys, into)
        again = [bytearray(SIZE) for _ in pages]
        self._cache.read(pages, again)
        self._check(keys, again)
        self._cache.release(pages)

    def _check(self, keys: list[PageKey], into: list[bytearray]) -> None:
        for key, got in zip(keys, into, strict=False):
            if bytes(got) != payload(key, SIZE):
                self.errors.append(f"foreign bytes under {key.hex()[:8]}")

    def _store(self, keys: list[PageKey]) -> None:
        view = self._cache.observe()
        found = self._cache.match(keys)
        sources = [payload(key, SIZE) for key in keys[len(found) :]]
        told = Instances(self._header.life_now, tuple(_number(key) for key in keys))
        self._cache.insert(keys, len(found), sources, view=view, instances=told)
        self._cache.release(found)

    def _fill(self, keys: list[PageKey]) -> None:
        """Some callers fill their places and never publish them."""
        with self._cache.filling(keys, 0, view=self._cache.observe()) as filling:
            for index, page in filling.pages.items():
                self._cache._memory.write(page, payload(keys[index], SIZE))
            if self._draw.random() < 0.7:
                filling.publish()

    def _ask(self, keys: list[PageKey]) -> None:
        counts = self._cache.statistics()
        if counts["free_pages"] + counts["resident_pages"] > counts["capacity_pages"]:
            self.errors.append(f"more than all: {counts}")
        self._cache.set_losing_costs(LosingCosts(self._draw.choice((0.125, 0.5, 1.0))))


def _number(key: PageKey) -> int:
    return int.from_bytes(key[:6], "little") + 1


def _in_l2(instance: int, life: LifeId) -> bool:
    return instance % 3 != 0


@pytest.fixture(autouse=True)
def often_switched() -> Iterator[None]:
    """Threads change places within a call, and not only while one waits."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def be_the_sidecar(header: FakeHeader, turns: queue.SimpleQueue[bool], *, workers: int) -> None:
    """Publish at most one event a turn of a worker: one that publishes as fast as it can leaves the workers no time but to
    follow."""
    draw = random.Random(99)
    while workers:
        if not turns.get(timeout=60):  # that worker is at its end
            workers -= 1
            continue
        keys = draw.choice(SECRETS)
        starts_anew = draw.random() < 0.02
        header.publish(LogStarted() if starts_anew else Selected(Selector(key=draw.choice(keys))))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_share_an_l1(policy: str, threads: int) -> None:
    header = FakeHeader()
    memory = ByteMemory(CAPACITY, SIZE)
    cache = L1Cache(
        capacity_pages=CAPACITY, page_bytes=SIZE, memory=memory, policy=policy, namespace=SPACE, in_l2=_in_l2
    )
    cache.synchronise(header)
    turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
    workers = [Worker(cache, header, seed, turns) for seed in range(threads)]
    begin = threading.Barrier(threads + 1)
    running = [threading.Thread(target=one.run, args=(begin,)) for one in workers]
    for thread in running:
        thread.start()
    begin.wait(timeout=60)
    be_the_sidecar(header, turns, workers=threads)
    for thread in running:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in running)
    assert [error for one in workers for error in one.errors] == []
    counts = cache.statistics()
    assert counts["pinned_pages"] == counts["shared_pages"] == 0
    assert counts["free_pages"] + counts["resident_pages"] == CAPACITY
    missed = sum(pages for name, pages in counts.items() if name.startswith("missed_pages_"))
    assert counts["requested_pages"] == counts["hit_pages"] + missed
    assert min(counts["hit_pages"], counts["evicted_pages"], counts["dropped_pages"]) > 0, (
        "all of it has happened"
    )


def test_a_release_too_many_is_refused_whoever_asks() -> None:
    cache = L1Cache(capacity_pages=2, page_bytes=SIZE, memory=ByteMemory(2, SIZE))
    cache.synchronise(FakeHeader())
    cache.insert(chain(1), 0, [payload(chain(1)[0], SIZE)], view=cache.observe())
    pages = cache.match(chain(1))
    cache.release(pages)
    with pytest.raises(InvalidArgumentError, match="released already"):
        cache.release(pages)
