"""Puts without a request, as an engine's workers make them: what they rest on is told page by page, and lineage is exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference_worker.client import Client, ClientSettings
from inference_worker.reused import ReusedPages
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import KNOWN, STORED, PutOutcome, RefuseReason
from kv_types.selectors import Selector
from kv_types.validity import UNKNOWN_INSTANCE, Instances
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.attach_site import AttachSite

SPACE = namespace("put computed")
KEYS = chain(SPACE, 8)


class Shard:
    """A worker of an engine: it is told what to load and what to store, and remembers which pages of L2 its blocks are."""

    def __init__(self, site: AttachSite, name: str) -> None:
        settings = ClientSettings(name=name, prefault=False, deadline_s=10.0)
        self.client = Client.connect(site.path.parent, settings=settings)
        self.space = self.client.register(SPACE)
        self.blocks = Instances(self.client.validity.life, ())

    def load(self, pages: int) -> None:
        """The scheduler has looked the pages up, and counted that."""
        with self.client.lease(self.space, KEYS[: pages * KEY_BYTES], counted=False) as lease:
            assert lease.pages == pages
            self.blocks = lease.instances

    def store(self, pages: int) -> list[PutOutcome]:
        """Store what was computed behind the blocks that are there, up to so many pages."""
        start, packed = len(self.blocks.numbers), KEYS[: pages * KEY_BYTES]
        stamped = self.client.validity.stamped_view()
        assert stamped is not None
        reused = ReusedPages.of(packed[: start * KEY_BYTES], self.blocks)
        outcomes = self.client.put_computed(
            self.space, packed, pages_under(packed[start * KEY_BYTES :], self.space.page_bytes),
            start=start, stamp=stamped[1], ttl_s=None, tags=(), deadline_s=None,
            computed_from_ms=time.time_ns() // 1_000_000, refused=RefuseReason.NONE, reused=reused,
        )  # fmt: skip
        self.blocks = reused.instances(packed)
        return outcomes

    def resident(self) -> int:
        with self.client.lease(self.space, KEYS, counted=False) as lease:
            return lease.pages


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@pytest.fixture
def shards(site: AttachSite) -> Iterator[Callable[[str], Shard]]:
    made: list[Shard] = []

    def make(name: str) -> Shard:
        made.append(Shard(site, name))
        return made[-1]

    yield make
    for shard in made:
        shard.client.close()


def purge(site: AttachSite, producer: bytes) -> int:
    return site.call(lambda store: store.hide(Selector(producer=producer)))


@pytest.mark.parametrize(("producer", "left"), [(b"a", 0), (b"b", 2), (b"c", 5), (b"d", 8)])
def test_a_purge_by_producer_takes_what_rests_on_it_and_spares_the_rest(
    site: AttachSite, shards: Callable[[str], Shard], producer: bytes, left: int
) -> None:
    a, b, c = shards("a"), shards("b"), shards("c")
    assert a.store(2) == [STORED] * 2
    b.load(2)
    assert b.store(4) == [STORED] * 2
    assert b.store(5) == [STORED], "a put rests on what the one before has stored"
    c.load(5)
    assert c.store(8) == [STORED] * 3
    assert purge(site, producer) == 8 - left
    assert c.resident() == left


def test_pages_of_unknown_origin_go_with_any_producer(
    site: AttachSite, shards: Callable[[str], Shard]
) -> None:
    a, b = shards("a"), shards("b")
    assert a.store(3) == [STORED] * 3
    b.load(3)
    b.blocks = Instances(b.blocks.life, (*b.blocks.numbers[:1], UNKNOWN_INSTANCE, *b.blocks.numbers[2:]))
    assert b.store(5) == [STORED] * 2
    assert b.blocks.numbers[3:] != (UNKNOWN_INSTANCE,) * 2, "what was stored is known, whatever it rests on"
    assert purge(site, b"nobody") == 2
    assert b.resident() == 3


def test_what_another_has_stored_is_known_and_has_no_instance(
    site: AttachSite, shards: Callable[[str], Shard]
) -> None:
    a, b = shards("a"), shards("b")
    assert a.store(3) == [STORED] * 3
    assert b.store(3) == [KNOWN] * 3
    assert b.blocks.numbers == (UNKNOWN_INSTANCE,) * 3, "its blocks are its own work, not what L2 has"
    assert b.store(4) == [STORED]
    assert purge(site, b"nobody") == 1


def test_blocks_of_another_life_are_of_unknown_origin(
    site: AttachSite, shards: Callable[[str], Shard]
) -> None:
    a, b = shards("a"), shards("b")
    assert a.store(2) == [STORED] * 2
    b.blocks = Instances(type(b.blocks.life)(b"x" * 16), a.blocks.numbers)
    assert b.store(3) == [STORED]
    assert purge(site, b"nobody") == 1
