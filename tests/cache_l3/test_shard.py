"""What requests that get no answer say of a server, and what they don't."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

import cache_l3.shard
from cache_l3.address import parse_address
from cache_l3.shard import Shard, ShardTerms
from kv_types.clock import ManualClock
from kv_types.limits import L3_CONNECTIONS_PER_SHARD_DEFAULT

MS = 1_000_000


def shard(clock: ManualClock) -> Shard:
    return Shard(
        parse_address("redis://somewhere"), path=Mock(), connector=Mock(), clock=clock, terms=ShardTerms(),
        on_suspect=Mock(), on_replica=Mock(),
    )  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize(("waited_ms", "opens"), [(2, False), (19, False), (20, True), (200, True)])
async def test_requests_that_had_hardly_any_time_take_no_server_away_from_others(
    waited_ms: int, opens: bool
) -> None:
    clock = ManualClock(10**9)
    one = shard(clock)
    for _ in range(100):
        began_ns = clock.now_ns()
        clock.advance(waited_ms * MS)
        one.late("the deadline passed", began_ns=began_ns)
    assert one.breaker.lets_through is not opens


@pytest.mark.asyncio
async def test_a_fault_of_the_keeper_s_own_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, opened = shard(ManualClock(10**9)), asyncio.Event()
    monkeypatch.setattr(cache_l3.shard, "L3_LOOK_S", 0.0)
    calls = 0

    async def open_one(*_: object, **__: object) -> Mock:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("a fault of this code")
        if calls > L3_CONNECTIONS_PER_SHARD_DEFAULT:
            opened.set()
        return Mock()

    one._connector.open = open_one  # type: ignore[method-assign]
    one._look_due_ns = 1 << 62  # nobody is there to be asked
    one.start()
    await asyncio.wait_for(opened.wait(), 20.0)
    assert one.describe().connections > 0
    assert "RuntimeError" in one.describe().last_error
    await one.close()
