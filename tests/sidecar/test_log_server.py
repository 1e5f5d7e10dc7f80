"""The log's server while it is followed: what changes there is told, what would lose the log is not joined, k is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from kv_types.clock import BoottimeClock
from kv_types.errors import ConfigError, InvalidArgumentError
from kv_types.limits import LOG_SERVER_LOOK_S
from sidecar.config import Settings
from sidecar.log.choice import choose_log
from sidecar.log.server import LogServer
from tests.support.following import FollowingSite
from tests.support.logs import Logs
from tests.support.redis_servers import RedisServer, RedisServers, redis_servers

CALL_NS = 2_000_000_000
CLOCK = BoottimeClock()


@pytest.fixture(scope="module")
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


def server_of(logs: Logs, redis: RedisServer) -> LogServer:
    return LogServer(logs.open(redis), clock=CLOCK, call_ns=CALL_NS)


@pytest.mark.asyncio
async def test_what_changes_while_it_is_followed_is_told_once(servers: RedisServers) -> None:
    redis, logs = servers.start(maxmemory="64mb", maxmemory_policy="volatile-lru"), Logs()
    server = server_of(logs, redis)
    try:
        with structlog.testing.capture_logs() as told:
            await server.admit()
            await server.look()
        assert [line["eviction"] for line in told] == ["volatile-lru"], "nothing has changed"
        assert server.label == redis.url
        assert [*server.errors, *server.warnings] == []
        redis.config(maxmemory_policy="allkeys-lru")
        with structlog.testing.capture_logs() as told:
            await server.look()
            await server.look()
        assert [line["log_level"] for line in told] == ["info", "error"]
        assert "CONFIG SET maxmemory-policy volatile-lru" in told[1]["error"]
        assert len(server.errors) == 1
        with pytest.raises(ConfigError, match="could evict the log"):
            await server.admit()
        redis.config(maxmemory_policy="noeviction")
        await server.look()
        assert (len(server.errors), len(server.warnings)) == (0, 1)
        redis.config(appendonly="yes")
        with structlog.testing.capture_logs() as told:
            await server.look()
        assert [line["log_level"] for line in told] == ["info"], "it was warned of before"
        redis.config(maxmemory_policy="volatile-lru")
        with structlog.testing.capture_logs() as told:
            await server.admit()
        assert "append-only" in told[0]["persistence"]
        assert [*server.errors, *server.warnings] == []
    finally:
        await logs.close()


@pytest.mark.asyncio
async def test_replicas_that_are_not_in_sync_are_not_asked_for(servers: RedisServers) -> None:
    redis, logs = servers.start(), Logs()
    server = server_of(logs, redis)
    try:
        await server.admit_replicas(0)
        with pytest.raises(InvalidArgumentError, match=r"1 replicas would have to answer, and 0 .* --force"):
            await server.admit_replicas(1)
        servers.start_replica(redis)
        await server.admit_replicas(1)
        with pytest.raises(InvalidArgumentError, match="2 replicas would have to answer, and 1 "):
            await server.admit_replicas(2)
    finally:
        await logs.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("l3", [False, True])
async def test_a_log_of_ones_own_has_no_replicas_whoever_insists(tmp_path: Path, l3: bool) -> None:
    chosen = await choose_log(Settings(l3=l3), tmp_path, clock=CLOCK)
    try:
        await chosen.admit_replicas(0, force=False)
        for force in (False, True):
            with pytest.raises(InvalidArgumentError, match=r"has no replicas.*--log-url"):
                await chosen.admit_replicas(1, force=force)
    finally:
        await chosen.close()


@pytest.mark.asyncio
async def test_whoever_insists_on_replicas_of_a_shared_log_gets_them(
    tmp_path: Path, servers: RedisServers
) -> None:
    chosen = await choose_log(Settings(log_url=servers.start().url), tmp_path, clock=CLOCK)
    try:
        await chosen.admit_replicas(1, force=True)
        with pytest.raises(InvalidArgumentError, match="--force"):
            await chosen.admit_replicas(1, force=False)
    finally:
        await chosen.close()


@pytest.mark.asyncio
async def test_it_is_looked_at_now_and_then_while_it_is_followed() -> None:
    site = FollowingSite()
    looks: list[int] = []

    async def look() -> None:
        looks.append(site.time.now_ns())

    site.look = look
    try:
        async with site.running():
            begun_ns = site.time.now_ns()
            await site.time.run(1.2 * LOG_SERVER_LOOK_S)
            assert [(at - begun_ns) / 1e9 for at in looks] == [LOG_SERVER_LOOK_S]
    finally:
        site.close()
