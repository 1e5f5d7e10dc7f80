"""A Redis that pages have filled: the log goes on, whether its pages can be evicted or not, and nothing of it is."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest
from redis.exceptions import OutOfMemoryError

from invalidation.log import LogUnavailableError, RenewalStatus
from invalidation.redis.script import KEY_NAMES
from tests.support.logs import Follower, Logs, append, within
from tests.support.redis_servers import RedisServer, RedisServers, redis_binaries, redis_kinds

pytestmark = pytest.mark.asyncio
PAGE = b"p" * 65_536
MEMORY = 8 * 1024 * 1024


@pytest.fixture(params=redis_kinds())
def small(request: pytest.FixtureRequest, servers: RedisServers) -> Iterator[RedisServer]:
    server = servers.start(binary=redis_binaries()[request.param], maxmemory=str(MEMORY))
    yield server
    server.kill()


def fill(server: RedisServer, *, ttl_s: int | None, pages: int = 400) -> int:
    """Write pages, and then what is small, as long as there is room; returns how many pages were refused."""
    refused = 0
    for number in range(pages):
        try:
            server.client.set(f"page:{number}", PAGE, ex=ttl_s)
        except OutOfMemoryError:
            refused += 1
    if refused:
        with contextlib.suppress(OutOfMemoryError):
            for number in itertools.count():
                server.client.set(f"crumb:{number}", b"c" * 64, ex=ttl_s)
    return refused


async def test_noeviction_and_full_stops_no_renewal_and_no_invalidation(
    small: RedisServer, logs: Logs
) -> None:
    small.config(maxmemory_policy="noeviction")
    log = logs.open(small)
    member = Follower(log)
    await member.boot()
    assert fill(small, ttl_s=60) > 100
    with pytest.raises(OutOfMemoryError):
        small.client.set("one more", PAGE)
    for round_ in range(1, 30):
        await append(log)
        renewal = await member.renew()
        assert renewal.status is RenewalStatus.OK
        assert [record.revision for record in renewal.records] == [round_]
        assert len((await log.fence(deadline_ns=within())).members) == 1
    newcomer = Follower(log)
    await newcomer.boot()
    assert (await newcomer.renew()).status is RenewalStatus.OK
    assert await log.settle(member.at.incarnation, deadline_ns=within())
    assert await log.leave(newcomer.id, number=newcomer.number, drained=True, deadline_ns=within())
    await log.fork(member.at.incarnation, deadline_ns=within())
    assert (await log.boot(deadline_ns=within())).tip.incarnation != member.at.incarnation


async def test_a_log_begins_even_when_there_is_no_room(small: RedisServer, logs: Logs) -> None:
    small.config(maxmemory_policy="noeviction")
    assert fill(small, ttl_s=60) > 100
    log = logs.open(small)
    member = Follower(log)
    await member.boot()
    await append(log)
    assert (await member.renew()).status is RenewalStatus.OK


async def test_what_only_helps_gives_way_to_what_must_be(small: RedisServer, logs: Logs) -> None:
    """The directory of namespaces is the one table that may be refused room."""
    small.config(maxmemory_policy="noeviction")
    log = logs.open(small)
    await append(log)
    fill(small, ttl_s=60)
    with pytest.raises(LogUnavailableError) as failed:
        await log.know([b"a namespace"], deadline_ns=within())
    assert failed.value.reason == "full"
    assert "volatile-lru" in str(failed.value)
    await append(log)


async def test_volatile_eviction_takes_pages_and_never_the_log(small: RedisServer, logs: Logs) -> None:
    small.config(maxmemory_policy="volatile-lru")
    log = logs.open(small)
    member = Follower(log)
    await member.boot()
    await log.know([b"a namespace"], deadline_ns=within())
    assert await log.settle(member.at.incarnation, deadline_ns=within())
    for _ in range(8):
        await append(log)
        assert fill(small, ttl_s=60, pages=200) == 0
        renewal = await member.renew()
        assert (renewal.status, len(renewal.records)) == (RenewalStatus.OK, 1)
    assert small.info("stats")["evicted_keys"] > 0
    assert len(list(small.client.scan_iter("stratakv:*"))) == len(KEY_NAMES) - 2, "no floors, no weights yet"
