"""The connector where pages come from L3: what it reuses, and that load failures change no token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference_worker.client import Client, ClientSettings
from inference_worker.connectors.transformers import TransformersConnector
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import MissReason
from kv_types.page_keys import page_keys
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import PAGE_TOKENS, shared_model, tokens
from tests.support.l3_site import L3Site

ROW = tokens(60)[None]
PAGES = 60 // PAGE_TOKENS
SETTINGS: dict[str, Any] = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[L3Site]:
    with L3Site(tmp_path) as started:
        yield started


def connect(client: Any, **settings: Any) -> TransformersConnector:
    return TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True, **settings
    )


@pytest.fixture
def worker(site: L3Site) -> Iterator[TransformersConnector]:
    with Client.connect(site.path.parent, settings=ClientSettings(prefault=False, deadline_s=10.0)) as client:
        yield connect(client, look_up_deadline_s=5.0, store_deadline_s=5.0)


def shelve(site: L3Site, row: torch.Tensor) -> list[bytes]:
    """Have another node compute a prompt; returns the keys of its pages, which are in L3 then."""
    sidecar = FakeSidecar()
    other = connect(FakeClient(sidecar))
    other.prefill(row[None])
    assert other.namespace is not None
    keys = page_keys(other.namespace.id, row.numpy().astype("uint32"), page_tokens=PAGE_TOKENS)
    names = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
    site.shelve(other.namespace, keys, [sidecar.pages[other.namespace.id, name] for name in names])
    return names


def oracle(rows: torch.Tensor = ROW) -> torch.Tensor:
    text: torch.Tensor = shared_model("llama").generate(
        rows, attention_mask=torch.ones_like(rows), **SETTINGS
    )
    return text


def test_pages_of_another_node_are_reused_and_told_apart(site: L3Site, worker: TransformersConnector) -> None:
    shelve(site, ROW[0])
    done = worker.generate(ROW, **SETTINGS)
    assert torch.equal(done.sequences, oracle())
    (row,) = done.report.rows
    assert (row.pages_l1, row.pages_l2, row.pages_l3, row.ended_by) == (0, 0, PAGES, MissReason.NONE)
    assert row.reused == PAGES * PAGE_TOKENS
    assert (done.report.bytes_from_l2, done.report.bytes_from_l3 > 0) == (0, True)
    again = worker.generate(ROW, **SETTINGS).report.rows[0]
    assert (again.pages_l1, again.pages_l3) == (PAGES, 0)


def _stop(site: L3Site, names: list[bytes]) -> None:
    site.call(lambda _: site.records.stop())


def _hold(site: L3Site, names: list[bytes]) -> None:
    site.hold("load")


def _shed(site: L3Site, names: list[bytes]) -> None:
    site.call(lambda _: site.records.fail("load", MissReason.OVERLOADED, calls=PAGES))


def _damage(change: Callable[[bytes], bytes]) -> Callable[[L3Site, list[bytes]], None]:
    def damage(site: L3Site, names: list[bytes]) -> None:
        namespace = site.call(lambda store: next(iter(store.namespace_counts())))
        name = next(one for one in site.shelf.names() if (one.namespace, one.key) == (namespace, names[3]))
        site.call(lambda _: site.shelf.corrupt(name, change))

    return damage


FAULTS: dict[str, tuple[Callable[[L3Site, list[bytes]], None], int, set[MissReason]]] = {
    "refused": (_stop, 0, {MissReason.L3_UNAVAILABLE}),
    "late": (_hold, 0, {MissReason.DEADLINE}),
    "shed": (_shed, 0, {MissReason.OVERLOADED}),
    "wrong checksum": (
        _damage(lambda record: record[:-1] + bytes([record[-1] ^ 1])),
        3,
        {MissReason.CORRUPT},
    ),
    "short": (_damage(lambda record: record[:-100]), 3, {MissReason.CORRUPT}),
    "foreign": (_damage(lambda record: bytes(len(record))), 3, {MissReason.CORRUPT}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_c07_whatever_fails_in_l3_the_greedy_text_is_that_without_a_cache(
    site: L3Site, worker: TransformersConnector, fault: str
) -> None:
    names = shelve(site, ROW[0])
    break_it, pages, reasons = FAULTS[fault]
    worker.prefill(tokens(5, seed=9)[None])  # its namespace is known to the sidecar
    break_it(site, names)
    if fault == "late":
        worker._look_up_deadline_s = 0.2
    done = worker.generate(ROW, **SETTINGS)
    assert torch.equal(done.sequences, oracle())
    (row,) = done.report.rows
    assert (row.pages_l2 + row.pages_l3, row.reused) == (pages, pages * PAGE_TOKENS)
    assert row.ended_by in reasons


def test_while_one_row_waits_the_others_are_on_their_way(site: L3Site, worker: TransformersConnector) -> None:
    rows = torch.stack([tokens(60, seed=seed) for seed in range(3)])
    for row in rows:
        shelve(site, row)
    worker.prefill(tokens(5, seed=9)[None])
    done = worker.generate(rows, **SETTINGS)
    assert torch.equal(done.sequences, oracle(rows))
    assert [row.pages_l2 + row.pages_l3 for row in done.report.rows] == [PAGES] * 3
    client = worker._client
    assert isinstance(client, Client)
    assert client.statistics()["prefetches_sent"] == 2
    assert client.statistics()["prefetches_in_flight"] == 0
    assert site.asked("load") == 3 * PAGES, "each page once, by whomever it is asked for"


def test_prefetches_are_called_off_when_the_look_ups_are_over() -> None:
    client = FakeClient(FakeSidecar())
    rows = torch.stack([tokens(60, seed=seed) for seed in range(3)])
    connect(client).prefill(rows)
    assert len(client.prefetches) == 2
    assert all(prefetch.is_over for prefetch in client.prefetches)
    connect(client).prefill(rows)
    assert len(client.prefetches) == 2, "all is there"
