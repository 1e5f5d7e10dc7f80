"""Invalidation by producer, tag and time through clients: what rests on a selected page goes, and nothing else.

One node in this process: real shared memory, a real attach socket, real records. Each worker has a client and an L1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cache_l1.cache import L1Cache
from inference_worker.client import Client, ClientSettings, Request
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import STORED, Hit, Miss, MissReason, PutOutcome, Refused, RefuseReason, Tier
from kv_types.selectors import Selector
from kv_types.validity import UNKNOWN_INSTANCE
from tests.inference_worker.worlds import chain, namespace, pages_under, room_for
from tests.support.attach_site import AttachSite
from tests.support.puts import put_fresh

SPACE = namespace("lineage")
A, B = Selector(producer=b"a"), Selector(producer=b"b")


def tensors(pages: list[bytes]) -> list[Any]:
    return [torch.frombuffer(bytearray(page), dtype=torch.uint8) for page in pages]


class Worker:
    """A client that computes chains: look up in L1, then in L2, compute the rest, store it, keep it."""

    def __init__(self, site: AttachSite, name: str, *, l1_pages: int = 64) -> None:
        settings = ClientSettings(name=name, prefault=False, deadline_s=10.0)
        self.client = Client.connect(site.path.parent, settings=settings)
        self.space = self.client.register(SPACE)
        self.l1 = L1Cache(capacity_pages=l1_pages, page_bytes=self.space.page_bytes, namespace=SPACE)
        self.l1.synchronise(self.client.validity)
        self.during: Callable[[], object] = lambda: None

    def serve(self, keys: bytes, **terms: Any) -> tuple[int, int, list[PutOutcome]]:
        """(pages from L1, pages from L2, outcomes of the others)."""
        with self.client.begin(self.space) as request:
            view = self.l1.observe()
            local = self._from_l1(request, keys)
            rest = keys[local * KEY_BYTES :]
            found = request.get(keys, room_for(rest, self.space.page_bytes), start=local)
            remote = found.pages if isinstance(found, Hit) else 0
            self.during()
            fresh = keys[(local + remote) * KEY_BYTES :]
            outcomes = request.put(
                keys, pages_under(fresh, self.space.page_bytes), start=local + remote, **terms
            )
            sources = tensors(pages_under(keys, self.space.page_bytes))
            self.l1.insert(keys, 0, sources, view=view, instances=request.instances(keys))
            return local, remote, outcomes

    def _from_l1(self, request: Request, keys: bytes) -> int:
        pages = self.l1.match(keys)
        request.reused(keys[: len(pages) * KEY_BYTES], self.l1.instances(pages))
        self.l1.release(pages)
        return len(pages)

    def resident(self, keys: bytes) -> int:
        found = self.client.match(self.space, keys)
        return found.pages if isinstance(found, Hit) else 0

    def in_l1(self, keys: bytes) -> tuple[int, ...]:
        pages = self.l1.match(keys)
        known = self.l1.instances(pages)
        self.l1.release(pages)
        return known.numbers


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@pytest.fixture
def workers(site: AttachSite) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(name: str, **settings: Any) -> Worker:
        made.append(Worker(site, name, **settings))
        return made[-1]

    yield make
    for worker in made:
        worker.client.close()


def hide(site: AttachSite, selector: Selector) -> int:
    return site.call(lambda store: store.hide(selector))


def part(keys: bytes, pages: int) -> bytes:
    return keys[: pages * KEY_BYTES]


def test_c40_purging_one_producer_takes_what_rests_on_its_pages_and_leaves_the_rest(
    site: AttachSite, workers: Callable[..., Worker]
) -> None:
    a, b, c = workers("a"), workers("b"), workers("c")
    shared, own = chain(SPACE, 8, seed=1), chain(SPACE, 6, seed=2)
    assert a.serve(part(shared, 3))[2] == [STORED] * 3
    assert b.serve(part(shared, 5)) == (0, 3, [STORED] * 2)
    assert c.serve(shared) == (0, 5, [STORED] * 3)
    assert b.serve(part(own, 4))[2] == [STORED] * 4
    assert c.serve(own) == (0, 4, [STORED] * 2)
    assert c.serve(shared)[0] == 8, "and L1 has it all"

    assert hide(site, B) == 5 + 6, "its own, and what the third computed on them"
    assert (c.resident(shared), c.resident(own)) == (3, 0)
    assert c.serve(shared) == (0, 3, [STORED] * 5), "what an L1 can't tell apart it drops"
    assert hide(site, A) == 8
    assert c.serve(shared)[2] == [STORED] * 8, "and everything can be computed anew at once (I9)"
    assert hide(site, A) == hide(site, B) == 0


def test_tags_and_times_select_what_rests_on_them(site: AttachSite, workers: Callable[..., Worker]) -> None:
    a, b = workers("a"), workers("b")
    keys, others = chain(SPACE, 4, seed=1), chain(SPACE, 4, seed=2)
    a.serve(part(keys, 2), tags=[b"eval"])
    b.serve(keys)
    b.serve(others, tags=[b"train"])
    assert hide(site, Selector(tag=b"eval")) == 4
    assert (b.resident(keys), b.resident(others)) == (0, 4)
    assert hide(site, Selector(tag=b"eval", producer=b"b")) == 0
    assert hide(site, Selector(until_ms=1)) == 0, "nothing is that old"
    assert hide(site, Selector(since_ms=1)) == 4


def test_pages_of_two_tiers_are_one_history(site: AttachSite, workers: Callable[..., Worker]) -> None:
    """The usual case of a conversation that moves between workers: nothing of it is marked."""
    a, b = workers("a"), workers("b")
    keys = chain(SPACE, 9, seed=1)
    a.serve(part(keys, 3))
    b.serve(part(keys, 6))
    assert a.serve(keys) == (3, 3, [STORED] * 3)
    numbers = a.in_l1(keys)
    assert len(numbers) == 9
    assert UNKNOWN_INSTANCE not in numbers
    assert hide(site, Selector(producer=b"nobody")) == 0
    assert hide(site, B) == 6
    assert a.resident(keys) == 3


def lose(site: AttachSite, keys: bytes) -> None:
    """Take a chain out of L2 without a word to anybody, as eviction does."""

    def hide_in_the_arena(store: Any) -> None:
        cursor, _ = store._arena.hide_step(
            key=keys[:KEY_BYTES], namespaces=None, provenances=None, since_ms=0, until_ms=2**64 - 1,
            since_revision=0, until_revision=2**64 - 1, cursor=0, work_max=1000,
        )  # fmt: skip
        assert cursor == -1

    site.call(hide_in_the_arena)


def compute_anew(site: AttachSite, keys: bytes, other: Worker) -> None:
    """L2 loses a chain, and another worker computes it."""
    lose(site, keys)
    assert other.resident(keys) == 0
    other.serve(keys)


def test_what_rests_on_a_page_that_l2_has_lost_goes_with_any_producer(
    site: AttachSite, workers: Callable[..., Worker]
) -> None:
    """A page of L1 whose place in L2 another one has: who computed the older one can't be told there any more."""
    a, b, c = workers("a"), workers("b"), workers("c")
    keys = chain(SPACE, 6, seed=1)
    a.serve(part(keys, 2))
    c.serve(part(keys, 3))  # has the pages of a in its L1
    compute_anew(site, part(keys, 3), b)
    local, _, outcomes = c.serve(keys)
    assert (local, outcomes) == (3, [STORED] * 3)
    assert hide(site, A) == 3, "what c computed on pages of a, though they stand on pages of b now"
    assert c.resident(keys) == 3
    assert hide(site, Selector(producer=b"c")) == 0


def test_pages_of_l2_on_another_history_than_that_of_l1_are_of_unknown_lineage(
    site: AttachSite, workers: Callable[..., Worker]
) -> None:
    a, b, c = workers("a"), workers("b"), workers("c")
    keys = chain(SPACE, 6, seed=1)
    a.serve(part(keys, 2))
    c.serve(part(keys, 2))
    compute_anew(site, part(keys, 4), b)
    assert c.serve(keys) == (2, 2, [STORED] * 2), "two pages of a, two of b"
    numbers = c.in_l1(keys)
    assert UNKNOWN_INSTANCE not in numbers[:2]
    assert set(numbers[2:]) == {UNKNOWN_INSTANCE}
    assert hide(site, A) == 2
    assert c.resident(keys) == 4


def test_a_chain_that_is_sent_again_from_its_root_is_nobodys_own(
    site: AttachSite, workers: Callable[..., Worker]
) -> None:
    a, c = workers("a"), workers("c")
    keys = chain(SPACE, 5, seed=1)
    a.serve(part(keys, 3))
    c.serve(part(keys, 3))
    with c.client.begin(c.space) as request:
        c._from_l1(request, part(keys, 3))
        lose(site, keys)
        fresh = pages_under(keys[3 * KEY_BYTES :], c.space.page_bytes)
        assert request.put(keys, fresh, start=3)[0] == Refused(RefuseReason.PARENT_ABSENT)
        assert request.put(keys, pages_under(keys, c.space.page_bytes)) == [STORED] * 5
    assert c.resident(keys) == 5
    assert hide(site, A) == 5, "three pages that a computed, and two on top of them"


def test_puts_outside_of_a_request(site: AttachSite, workers: Callable[..., Worker]) -> None:
    a, b = workers("a"), workers("b")
    promised, stamped = chain(SPACE, 3, seed=1), chain(SPACE, 3, seed=2)
    for keys in (promised, stamped):
        a.serve(part(keys, 1))
    fresh = pages_under(promised[KEY_BYTES:], b.space.page_bytes)
    assert put_fresh(b.client, b.space, promised, fresh, start=1) == [STORED] * 2
    stamp = b.client.stamp()
    assert b.client.put(b.space, stamped, fresh, start=1, stamp=stamp) == [STORED] * 2
    assert hide(site, Selector(producer=b"nobody")) == 2, "outside of a request, it may rest on anything"
    assert b.resident(promised) == 3
    assert hide(site, A) == 1 + 2 + 1, "a page goes with what stands on it in any case"


def test_many_rows_of_one_request_rest_each_on_its_own(
    site: AttachSite, workers: Callable[..., Worker]
) -> None:
    a, b, c = workers("a"), workers("b"), workers("c")
    rows = [chain(SPACE, 4, seed=seed) for seed in range(3)]
    a.serve(part(rows[0], 2))
    b.serve(part(rows[1], 2))
    with c.client.begin(c.space) as request:
        for keys in rows:
            with request.lease(keys) as lease:
                assert lease.pages == (0 if keys is rows[2] else 2)
        for keys in rows:
            fresh = pages_under(keys, c.space.page_bytes)
            assert STORED in request.put(keys, fresh)
    assert hide(site, A) == 4
    assert [c.resident(keys) for keys in rows] == [0, 4, 4]
    assert hide(site, B) == 4
    assert hide(site, Selector(producer=b"c")) == 4


def test_a_put_in_flight_that_rests_on_what_is_selected_meanwhile_is_refused(
    site: AttachSite, workers: Callable[..., Worker]
) -> None:
    """C36 by producer: the page is hidden while the request that reused it computes; another chain goes on."""
    a, c = workers("a"), workers("c")
    keys, other = chain(SPACE, 4, seed=1), chain(SPACE, 3, seed=2)
    a.serve(part(keys, 2))
    c.during = lambda: hide(site, A)
    assert c.serve(keys)[2][0] in (Refused(RefuseReason.INVALIDATED), Refused(RefuseReason.PARENT_ABSENT))
    c.during = lambda: None
    assert c.client.match(c.space, keys) == Miss(MissReason.ABSENT)
    c.during = lambda: hide(site, A)
    assert c.serve(other) == (0, 0, [STORED] * 3), "what reused nothing rests on nobody's page"
    assert c.client.match(c.space, other) == Hit(3, Tier.L2)
