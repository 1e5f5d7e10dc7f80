"""What requests that get no answer say of a server, and what they don't."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from cache_l3.address import parse_address
from cache_l3.shard import Shard, ShardTerms
from kv_types.clock import ManualClock

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
