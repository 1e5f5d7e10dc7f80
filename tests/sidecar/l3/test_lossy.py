"""A page of a lossy namespace on its way through real sidecars and a real Redis: as it was here, within its bound elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from grpc import RpcError

from kv_types.namespace import KvDtype, Namespace, StoredAs
from kv_types.outcomes import STORED, Hit
from kv_types.page_layout import PageLayout
from kv_types.scale_groups import error_bound
from kv_wire.gen import cache_pb2
from tests.cache_l3.test_lossy import as_bytes, as_numbers
from tests.kv_types.samples import geometry, namespace
from tests.support.redis_servers import redis_servers
from tests.support.sharing_nodes import SharingNode, sharing_nodes
from tests.support.spaces import fresh_chain

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[SharingNode]]:
    """A writer and a reader on one server."""
    with redis_servers() as made:
        server = made.start()
        with sharing_nodes(2, server.url, server) as nodes:
            yield nodes


def space(stored_as: StoredAs | None, **changes: Any) -> Namespace:
    return namespace(kv_dtype=KvDtype.BF16, geometry=geometry(head_dim=64), stored_as=stored_as, **changes)


SIZE = PageLayout.of(space(None)).page_bytes


def page(*, number: float = 0.0) -> memoryview:
    values = np.random.default_rng(3).standard_normal(SIZE // 2).astype(np.float32)
    values[100] += number
    return memoryview(as_bytes(values, KvDtype.BF16))


def through(pair: list[SharingNode], of: Namespace, data: memoryview) -> tuple[bytes, bytes]:
    """What the node has that stored it, and another that got it from L3."""
    (key,) = fresh_chain(1)
    found: list[bytes] = []
    for node in pair:
        node.store.register(of)
    writer = pair[0].store
    assert writer.put(of.id, [key], [data], stamp=writer.stamp()) == [STORED]
    pair[0].wait_idle()
    for node in pair:
        into = memoryview(bytearray(SIZE))
        assert isinstance(node.store.get(of.id, [key], [into]), Hit)
        found.append(bytes(into))
    return found[0], found[1]


def metrics(node: SharingNode) -> list[str]:
    with urlopen(f"http://{node.store.status().metrics_address}/metrics", timeout=10) as answer:
        told: list[str] = answer.read().decode().splitlines()
    return told


@pytest.mark.parametrize("stored_as", StoredAs)
def test_a_lossy_page_is_as_it_was_here_and_within_its_bound_elsewhere(
    pair: list[SharingNode], stored_as: StoredAs
) -> None:
    here, there = through(pair, space(stored_as), page())
    assert here == page(), "the arena has what was computed"
    before, after = as_numbers(here, KvDtype.BF16), as_numbers(there, KvDtype.BF16)
    lost = np.abs(before - after).max()
    assert 0 < lost <= error_bound(stored_as, KvDtype.BF16) * np.abs(before).max()
    lines = metrics(pair[0])
    label = f'namespace="model@{space(stored_as).id.hex()[:12]}"'
    assert f'stratakv_l3_lossy_pages_total{{{label},outcome="lossy"}} 1.0' in lines


def test_what_is_not_finite_and_what_nobody_allowed_comes_back_bit_for_bit(pair: list[SharingNode]) -> None:
    broken = page(number=float("inf"))
    assert through(pair, space(StoredAs.FP8_E4M3, model="broken"), broken) == (bytes(broken), bytes(broken))
    assert through(pair, space(None), page()) == (bytes(page()), bytes(page()))


def test_a_page_in_which_int8_drowns_is_kept_and_trips_what_the_alert_looks_at(
    pair: list[SharingNode],
) -> None:
    """One value of each token that is hundreds of times the others: by the metrics that deploy/prometheus-rules.yml names."""
    values = np.random.default_rng(0).standard_normal(SIZE // 2).astype(np.float32)
    values[::64] = 300.0
    drowned = memoryview(as_bytes(values, KvDtype.BF16))
    of = space(StoredAs.INT8, model="outliers")
    assert through(pair, of, drowned) == (bytes(drowned), bytes(drowned))
    lines, label = metrics(pair[0]), f'namespace="outliers@{of.id.hex()[:12]}"'
    assert f'stratakv_l3_lossy_pages_total{{{label},outcome="error_limit"}} 1.0' in lines
    (largest,) = (line for line in lines if line.startswith(f"stratakv_l3_lossy_error_largest{{{label}}}"))
    assert float(largest.split()[-1]) > 0.1
    rules = (ROOT / "deploy" / "prometheus-rules.yml").read_text(encoding="utf-8")
    assert 'stratakv_l3_lossy_pages_total{outcome="error_limit"}' in rules


def test_a_namespace_that_cannot_be_stored_as_it_says_is_refused_when_it_is_registered(
    pair: list[SharingNode],
) -> None:
    engines = space(StoredAs.INT8, layout="an engine's own")
    request = cache_pb2.RegisterNamespaceRequest(canonical=engines.canonical, page_bytes=SIZE + 2)
    with pytest.raises(RpcError, match="stored_as"):
        pair[0].store.calls.register_namespace(request, timeout=10)
