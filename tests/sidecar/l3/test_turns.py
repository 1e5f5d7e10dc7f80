"""Long loads, many loads and write-behind keep the event loop for milliseconds only: by CPU time, whoever else runs here."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from cache_l3.address import parse_servers
from kv_types.clock import BoottimeClock
from kv_types.ids import PageKey
from kv_types.outcomes import MissReason
from kv_types.page_keys import pack_keys
from sidecar.config import Settings
from sidecar.l3.choice import ChosenL3
from sidecar.l3.loads import LoadRow, RowLoaded
from sidecar.l3.tier import L3Tier
from tests.support.pages import namespace_of, page_of
from tests.support.redis_servers import RedisServer, redis_servers
from tests.support.stores import MIB, add, make_store

PAGES = 512
ROWS = 6
STEP_S_MAX = 0.015
WAIT_NS = 60 * 10**9


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_servers() as servers:
        yield servers.start()


def test_no_step_of_loads_or_stores_keeps_the_loop_for_long(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[float, str]] = []
    plain = asyncio.Handle._run

    def measured(self: asyncio.Handle) -> None:
        began = time.thread_time()
        plain(self)
        steps.append((time.thread_time() - began, repr(self)))

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    longest, what = max(asyncio.run(_share(server.url, steps)))
    assert longest < STEP_S_MAX, f"{longest * 1000:.1f} ms: {what}"


async def _share(url: str, steps: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """One node stores chains of a group's shards; after it has lost them, it loads them all in one request.

    Returns the steps of that.
    """
    clock = BoottimeClock()
    store = make_store(clock, arena_bytes=128 * MIB)
    record = add(store, namespace_of("turns"))
    settings = Settings(l3_url=url, arena_size=128 * MIB, l3_deadline=30.0)
    tier = L3Tier(store, store.validity, ChosenL3(parse_servers(url)), settings, clock=clock)
    await tier.start()
    chains = [_chain(number) for number in range(ROWS)]
    page = memoryview(bytes(record.page_bytes))
    gc.disable()  # what the collector takes is no step's own
    await _own_step_is_over(steps)
    for keys in chains:
        for begin in range(0, PAGES, 128):
            store.put(record.id, keys[: begin + 128], [page] * 128, stamp=store.stamp(), start=begin)
            await asyncio.sleep(0)
    assert tier._parts is not None
    behind, ends_ns = tier._parts.behind, clock.now_ns() + WAIT_NS
    while not behind.is_idle:
        assert clock.now_ns() < ends_ns, behind.statistics()
        await asyncio.sleep(0)
    assert behind.statistics()["stored"] == PAGES * ROWS
    stored = list(steps)
    store._arena.evict_namespace(record.number)
    await _own_step_is_over(steps)
    steps += stored
    rows = [LoadRow(record.id, None, pack_keys(keys)) for keys in chains]
    load = tier.loads.begin(rows, deadline_ns=clock.now_ns() + WAIT_NS, group=True)
    assert await load.wait() == [RowLoaded(PAGES, 0, MissReason.NONE)] * ROWS
    await tier.close()
    taken = list(steps)
    store.close()
    gc.enable()
    return taken


async def _own_step_is_over(steps: list[tuple[float, str]]) -> None:
    """What the test itself has done up to here is not measured."""
    await asyncio.sleep(0)
    steps.clear()


def _chain(number: int) -> list[PageKey]:
    return [PageKey(page_of(b"%d" % number, 32 * PAGES)[at * 32 : at * 32 + 32]) for at in range(PAGES)]
