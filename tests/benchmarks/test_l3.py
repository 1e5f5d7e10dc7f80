"""The measurement of L3 moves the pages that it says it moves, by every side of it, and its page tells what was missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis._parsers import _RESP2Parser

from benchmarks import l3, l3_beside
from benchmarks.l3_sides import PAGE_BYTES, Address, Ours, Pages, Plain, RedisPy, Server, Side, key_of, place
from benchmarks.own_cluster import own_cluster, primary_of
from benchmarks.own_redis import own_redis
from benchmarks.raw_peer import raw_peer

PAGES = 5


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest) -> Iterator[Address]:
    with own_redis() as made:
        yield made.socket_path if request.param == "unix" else made.port


def _memory(side: Any) -> memoryview:
    memory: memoryview = side._memory
    return memory


@pytest.mark.parametrize("other", [partial(RedisPy, parser=_RESP2Parser), Server], ids=["redis-py", "plain"])
def test_each_side_loads_what_another_one_stored(server: Address, other: Callable[..., Side]) -> None:
    pages = Pages(PAGES, (0,) * PAGES)
    ours = Ours([server], pages, connections=2)
    theirs = other([server], pages, connections=2)
    try:
        ours.store(PAGES)
        theirs.load(PAGES)
        assert _memory(theirs) == _memory(ours)
        place(_memory(theirs), 3)[:] = b"t" * PAGE_BYTES
        theirs.store(PAGES)
        ours.load(PAGES)
        assert _memory(theirs) == _memory(ours)
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_plain_sockets_move_each_page_once(tmp_path: Path, over: str) -> None:
    with raw_peer(tmp_path, name="p", pages=PAGES, page_bytes=PAGE_BYTES) as peer:
        address: Address = peer.socket_path if over == "unix" else peer.port
        one, other = (
            Plain([address], Pages(PAGES, (0,) * PAGES), connections=connections) for connections in (3, 2)
        )
        try:
            one.store(PAGES)
            _memory(other)[:] = bytes(len(_memory(other)))
            other.load(PAGES)
            assert _memory(one) == _memory(other)
            _memory(one)[:] = bytes(len(_memory(one)))
            one.load(1)
            assert place(_memory(one), 0) == place(_memory(other), 0)
            assert not any(_memory(one)[PAGE_BYTES:])
        finally:
            one.close()
            other.close()


def test_a_cluster_of_ones_own_has_every_key_where_it_is_said_to_be() -> None:
    with own_cluster(3) as nodes:
        found = {primary_of(key_of(page), 3) for page in range(l3.PAGES)}
        assert found == {0, 1, 2}
        for page in range(l3.PAGES):
            nodes[primary_of(key_of(page), 3)].client.set(key_of(page), b"x")
        assert sum(node.client.dbsize() for node in nodes) == l3.PAGES


def test_the_page_tells_every_budget_and_whether_it_is_met() -> None:
    row = {
        "over": "TCP", "verb": "load", "pages": 32, "by": "stratakv", "p50_ms": 8.0, "p99_ms": 9.0, "x_floor": 1.2
    }  # fmt: skip
    keys = {key: 1.0 if budget is None else budget for key, _, budget in l3.BUDGETS}
    results = l3.Results(keys=keys, rows=[row])
    told = "\n".join(l3.lines(results))
    assert all(key in told for key, _, _ in l3.BUDGETS)
    assert "| TCP | load | 32 × 1 MiB | stratakv | 8.00 | 9.00 | 1.20 |" in told
    assert "missed" not in told
    results.keys["l3_store_x_floor"] = 1.26
    assert "\n".join(l3.lines(results)).count("**missed**") == 1


def test_a_run_has_all_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l3, "COUNTS", (1, 2))
    monkeypatch.setattr(l3, "PAGES", 2)
    monkeypatch.setattr(
        l3, "measure_beside", lambda _: {"l3_match_slowdown": 0.1, "l3_node_load_32x1MiB_ms_p50": 9.0}
    )
    said: list[str] = []
    results = l3.run(rounds=1, tell=said.append)
    assert {key for key, _, _ in l3.BUDGETS} <= set(results.keys)
    assert {"l3_load_2x1MiB_ms_p50", "l3_store_cluster_2x1MiB_ms_p50", "l3_load_unix_single_x_floor"} <= set(
        results.keys
    )
    assert all(value > 0 for value in results.keys.values())
    assert "TCP, 3 primaries" in said


@pytest.mark.slow
def test_a_worker_looks_up_while_another_one_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CHAINS": 6, "PAGES": 16, "ARENA_BYTES": 64 * PAGE_BYTES, "SLICE_S": 0.1}.items():
        monkeypatch.setattr(l3_beside, name, value)
    figures = l3_beside.measure_beside(lambda _: None, pairs=1)
    assert figures["l3_node_load_32x1MiB_ms_p50"] > 0
    assert figures["l3_match_slowdown"] < 1
