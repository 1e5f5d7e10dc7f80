"""Cases of validity through clients of one node, in both of their tiers, against a live store behind its attach socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cache_l1.cache import L1Cache
from inference_worker.client import Client, RegisteredNamespace
from kv_types.ids import KEY_BYTES
from kv_types.namespace import Namespace, Weights
from kv_types.outcomes import STORED, Hit, MissReason, Refused, RefuseReason, Tier
from kv_types.page_keys import page_keys
from kv_types.selectors import Selector
from kv_types.validity import ObservedView
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import PAGE_TOKENS, chain, namespace, pages_under, room_for
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until

V1 = namespace("m", weights=Weights(version="v1"))
V2 = namespace("m", weights=Weights(version="v2"))
OLD_WEIGHTS = Selector(model="m", weights_version="v1")


def tensors(keys: bytes, page_bytes: int) -> list[Any]:
    return [torch.frombuffer(bytearray(page), dtype=torch.uint8) for page in pages_under(keys, page_bytes)]


class Tiers:
    """One worker: a client, and an L1 a namespace."""

    def __init__(self, client: Client, *spaces: Namespace) -> None:
        self.client = client
        self.handles: dict[Namespace, RegisteredNamespace] = {}
        self.l1: dict[Namespace, L1Cache] = {}
        for space in spaces:
            handle = self.handles[space] = client.register(space)
            self.l1[space] = L1Cache(capacity_pages=64, page_bytes=handle.page_bytes, namespace=space)
            self.l1[space].synchronise(client.validity)

    def keep(self, space: Namespace, keys: bytes, view: ObservedView | None = None) -> int:
        """Insert into L1; returns the pages added."""
        l1 = self.l1[space]
        view = l1.observe() if view is None else view
        return l1.insert(keys, 0, tensors(keys, self.handles[space].page_bytes), view=view)

    def store(self, space: Namespace, keys: bytes) -> None:
        """Compute a chain into both tiers."""
        with self.client.begin(self.handles[space]) as request:
            view = self.l1[space].observe()
            pages = pages_under(keys, self.handles[space].page_bytes)
            assert request.put(keys, pages) == [STORED] * len(pages)
            assert self.keep(space, keys, view) == len(pages)

    def found(self, space: Namespace, keys: bytes) -> tuple[int, int]:
        """Pages that L1 and L2 would serve now."""
        pages = self.l1[space].match(keys)
        self.l1[space].release(pages)
        outcome = self.client.match(self.handles[space], keys)
        return len(pages), outcome.pages if isinstance(outcome, Hit) else 0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@pytest.fixture
def tiers(site: AttachSite, connect: MakeClient) -> Callable[..., Tiers]:
    return lambda *spaces: Tiers(connect(site.path.parent, prefault=False, deadline_s=10.0), *spaces)


def hide(site: AttachSite, selector: Selector) -> int:
    return site.call(lambda store: store.hide(selector))


def test_c15_after_the_weights_were_changed_the_first_look_up_misses_in_every_tier(
    site: AttachSite, tiers: Callable[..., Tiers]
) -> None:
    one, two = tiers(V1, V2), tiers(V1, V2)
    old, new = chain(V1, 4), chain(V2, 4)
    one.store(V1, old)
    one.store(V2, new)
    assert two.keep(V1, old) == two.keep(V2, new) == 4
    assert one.found(V1, old) == two.found(V1, old) == (4, 4)
    assert hide(site, OLD_WEIGHTS) == 4
    for worker in (one, two):
        assert worker.found(V1, old) == (0, 0)
        assert worker.found(V2, new) == (4, 4), "what has the new weights stays"
        with worker.client.lease(worker.handles[V1], old) as lease:
            assert (lease.pages, lease.reason) == (0, MissReason.ABSENT)


def test_c16_what_was_begun_under_the_old_weights_is_never_visible(
    site: AttachSite, tiers: Callable[..., Tiers]
) -> None:
    worker, other = tiers(V1), tiers(V1)
    keys = chain(V1, 6)
    pages = pages_under(keys, worker.handles[V1].page_bytes)
    with worker.client.begin(worker.handles[V1]) as request:
        view = worker.l1[V1].observe()
        assert request.put(keys[: 3 * KEY_BYTES], pages[:3]) == [STORED] * 3
        assert hide(site, OLD_WEIGHTS) == 3
        assert request.put(keys, pages) == [Refused(RefuseReason.INVALIDATED)] * 6
        assert worker.keep(V1, keys, view) == 0
        assert request.put(keys[: 3 * KEY_BYTES], pages[:3])[0] == Refused(RefuseReason.INVALIDATED)
    assert worker.found(V1, keys) == other.found(V1, keys) == (0, 0)
    worker.store(V1, keys)  # whoever computes it anew may store it at once (I9)
    assert worker.found(V1, keys) == (6, 6)


def test_c36_leased_pages_and_puts_in_flight_are_hidden_at_once_and_freed_at_the_last_release(
    site: AttachSite, tiers: Callable[..., Tiers]
) -> None:
    worker = tiers(V1, V2)
    keys, other = chain(V1, 4), chain(V2, 2)
    page_bytes = worker.handles[V1].page_bytes
    worker.store(V1, keys)
    worker.store(V2, other)
    in_l1 = worker.l1[V1].match(keys)
    with (
        worker.client.lease(worker.handles[V1], keys) as first,
        worker.client.lease(worker.handles[V1], keys[: 2 * KEY_BYTES]) as second,
    ):
        with worker.client.begin(worker.handles[V1]) as request:
            longer = chain(V1, 6)
            assert request.get(longer, room_for(longer, page_bytes)) == Hit(4, Tier.L2, MissReason.ABSENT)
            assert hide(site, OLD_WEIGHTS) == 4
            assert worker.found(V1, keys) == (0, 0)
            late = request.put(longer, pages_under(longer[4 * KEY_BYTES :], page_bytes), start=4)
            assert all(isinstance(one, Refused) for one in late)
        assert bytes(first[3]) == pages_under(keys, page_bytes)[3], "who has it reads on"
        assert site.statistic("entries_hidden_leased") == 4
        worker.store(V1, keys)
        assert worker.found(V1, keys) == (4, 4)
        second.release()
        assert site.statistic("entries_hidden_leased") == 4
    wait_until(lambda: site.statistic("entries_hidden_leased") == 0, what="the memory to be free")
    worker.l1[V1].release(in_l1)
    assert worker.found(V2, other) == (2, 2)


def test_c37_tenants_never_meet_in_any_tier(site: AttachSite, tiers: Callable[..., Tiers]) -> None:
    spaces = [namespace("m", tenant=tenant) for tenant in ("", "a", "b")]
    worker, other = tiers(*spaces), tiers(*spaces)
    tokens = list(range(4 * PAGE_TOKENS))
    keys = {space: page_keys(space.id, tokens, page_tokens=PAGE_TOKENS) for space in spaces}
    worker.store(spaces[1], keys[spaces[1]])
    for at in (worker, other):
        for space in (spaces[0], spaces[2]):
            assert at.found(space, keys[space]) == (0, 0), "the same tokens, and another salt"
    assert worker.found(spaces[1], keys[spaces[1]]) == (4, 4)
    assert other.found(spaces[1], keys[spaces[1]]) == (0, 4)
    for space in (spaces[0], spaces[2]):
        worker.store(space, keys[space])
    assert hide(site, Selector(tenant="a")) == 4
    assert worker.found(spaces[1], keys[spaces[1]]) == (0, 0)
    assert worker.found(spaces[0], keys[spaces[0]]) == worker.found(spaces[2], keys[spaces[2]]) == (4, 4)
    assert hide(site, Selector(tenant="")) == 4, "no tenant is one of its own"
    assert worker.found(spaces[2], keys[spaces[2]]) == (4, 4)


def test_c40_purging_one_prefix_leaves_all_else(site: AttachSite, tiers: Callable[..., Tiers]) -> None:
    worker = tiers(V1)
    trunk, other = chain(V1, 8), chain(V1, 3, seed=1)
    worker.store(V1, trunk)
    worker.store(V1, other)
    purged = Selector(key=trunk[5 * KEY_BYTES : 6 * KEY_BYTES])  # type: ignore[arg-type]
    assert hide(site, purged) == 3
    assert worker.found(V1, trunk) == (5, 5)
    assert worker.found(V1, other) == (3, 3)
