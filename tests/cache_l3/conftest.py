"""Redis servers for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_servers import RedisServer, RedisServers, redis_servers


@pytest.fixture(scope="module")
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


@pytest.fixture(scope="module")
def shared_redis(servers: RedisServers) -> RedisServer:
    """A server for tests that do not break it."""
    return servers.start()
