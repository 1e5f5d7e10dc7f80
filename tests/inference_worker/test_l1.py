"""An L1 over a client: it serves while the sidecar vouches for its view, and drops all when the life is another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cache_l1.cache import L1Cache
from inference_worker.client import Client, RegisteredNamespace
from kv_types.ids import NO_LIFE, new_life_id
from kv_types.outcomes import STORED, Hit, Miss, MissReason, Refused, RefuseReason, Tier
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, ValiditySource
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess


@pytest.fixture
def client(sidecar: SidecarProcess, connect: MakeClient) -> Client:
    sidecar.start()
    return connect(sidecar.runtime)


@pytest.fixture
def ns(client: Client) -> RegisteredNamespace:
    return client.register(namespace("l1"))


@pytest.fixture
def l1(client: Client, ns: RegisteredNamespace) -> L1Cache:
    cache = L1Cache(capacity_pages=16, page_bytes=ns.page_bytes)
    source: ValiditySource = client.validity
    cache.synchronise(source)
    return cache


def tensors(pages: list[bytes]) -> list[Any]:
    import torch

    return [torch.frombuffer(bytearray(page), dtype=torch.uint8) for page in pages]


def test_l1_serves_in_one_life_and_drops_all_in_the_next(
    sidecar: SidecarProcess, client: Client, ns: RegisteredNamespace, l1: L1Cache
) -> None:
    keys = chain(ns.identified, 3)
    pages = pages_under(keys, ns.page_bytes)
    life = client.validity.life
    assert life != NO_LIFE
    assert client.validity.view >= 1
    assert l1.insert(keys, 0, tensors(pages), view=l1.observe()) == 3
    found = l1.match(keys)
    assert len(found) == 3
    l1.release(found)
    sidecar.pause()
    wait_until(lambda: not l1.match(keys), what="freshness to run out: L1 serves nothing stale")
    sidecar.kill()
    wait_until(lambda: client.validity.life == NO_LIFE, what="the loss to be noticed")
    assert client.validity.events_since(0) is None
    assert client.validity.freshness_ns == 0
    assert l1.match(keys) == []
    sidecar.start()
    assert client.wait_ready(deadline_s=10.0)
    assert client.validity.life not in (life, NO_LIFE)
    assert l1.match(keys) == [], "views of two lives are never compared"
    assert l1.insert(keys, 0, tensors(pages), view=l1.observe()) == 3
    assert len(l1.match(keys)) == 3


def test_l1_pages_are_counted_once_with_the_look_up_that_they_begin(
    client: Client, ns: RegisteredNamespace, l1: L1Cache
) -> None:
    keys = chain(ns.identified, 5)
    pages = pages_under(keys, ns.page_bytes)
    with client.begin(ns) as request:
        view = l1.observe()
        request.put(keys[: 4 * 32], pages[:4])
        assert l1.insert(keys[: 2 * 32], 0, tensors(pages[:2]), view=view) == 2
    found = l1.match(keys)
    with client.lease(ns, keys, start=len(found)) as lease:
        assert (len(found), lease.pages) == (2, 2)
    l1.release(found)
    counts = client.namespace_counts()[ns.label]
    assert (counts.requested, counts.l1, counts.l2, sum(counts.missed.values())) == (5, 2, 2, 1)


def test_an_l1_can_ask_whether_l2_has_a_page_still(tmp_path: Path, connect: MakeClient) -> None:
    with AttachSite(tmp_path) as site:
        client = connect(tmp_path)
        ns = client.register(namespace("weights"))
        keys = chain(ns.identified, 3)
        with client.begin(ns) as request:
            assert request.put(keys, pages_under(keys, ns.page_bytes)) == [STORED] * 3
            told = request.instances(keys)
        wait_until(lambda: client.match(ns, keys) == Hit(3, Tier.L2, MissReason.NONE), what="the pages")
        assert [client.has_page(number, life=told.life) for number in told.numbers] == [True] * 3
        assert not client.has_page(told.numbers[0], life=new_life_id()), "a number of another life"
        assert not client.has_page(told.numbers[0] + (1 << 32), life=told.life), "another page in its place"
        for number in (NO_INSTANCE, UNKNOWN_INSTANCE):
            assert not client.has_page(number, life=told.life)
        assert client.statistics()["leases_held"] == 0
        site.call(lambda store: store.hide_all())
        assert [client.has_page(number, life=told.life) for number in told.numbers] == [False] * 3
        client.close()
        assert not client.has_page(told.numbers[0], life=told.life)


def test_c15_no_look_up_after_the_acknowledgement_finds_what_was_hidden(
    tmp_path: Path, connect: MakeClient
) -> None:
    """One node: workers that look up all the time, in both tiers, while everything is hidden again and again."""
    with AttachSite(tmp_path) as site:
        client = connect(tmp_path)
        ns = client.register(namespace("weights"))
        enough, acknowledged, wrong = threading.Event(), [0], []
        looked, hits = [0], [0, 0]

        def look(other: Client, cache: L1Cache) -> None:
            handle = other.register(namespace("weights"))
            while not enough.is_set():
                hidden = acknowledged[0]
                for seed in (hidden, hidden + 1):
                    keys = chain(handle.identified, 4, seed=seed)
                    view, outcome = cache.observe(), other.match(handle, keys)
                    found = cache.match(keys)
                    cache.release(found)
                    hits[0] += len(found)
                    hits[1] += outcome.pages if isinstance(outcome, Hit) else 0
                    if seed == hidden and seed and (found or outcome != Miss(MissReason.ABSENT)):
                        wrong.append((seed, outcome, len(found)))
                    if isinstance(outcome, Hit) and not found:
                        cache.insert(keys, 0, tensors(pages_under(keys, handle.page_bytes)), view=view)
                looked[0] += 1

        threads = []
        for _ in range(2):
            other = connect(tmp_path)
            cache = L1Cache(capacity_pages=16, page_bytes=ns.page_bytes)
            cache.synchronise(other.validity)
            threads.append(threading.Thread(target=look, args=(other, cache)))
            threads[-1].start()
        try:
            for seed in range(1, 41):
                keys = chain(ns.identified, 4, seed=seed)
                with client.begin(ns) as old:
                    assert put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)) == [STORED] * 4
                    before = looked[0]
                    wait_until(lambda before=before: looked[0] > before + 2, what="look-ups that find it")  # type: ignore[misc]
                    assert site.call(lambda store: store.hide_all()) == 4
                    acknowledged[0] = seed
                    assert client.match(ns, keys) == Miss(MissReason.ABSENT)
                    late = old.put(keys, pages_under(keys, ns.page_bytes))
                    assert late[0] == Refused(RefuseReason.INVALIDATED), "computed under the old weights"
        finally:
            enough.set()
            for thread in threads:
                thread.join()
        assert wrong == []
        assert min(hits) > 0, "both tiers served while nothing was hidden"
