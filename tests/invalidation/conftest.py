"""Redis servers for the tests of one module, of each kind that is here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.logs import Logs
from tests.support.redis_servers import RedisServer, RedisServers, redis_binaries, redis_kinds, redis_servers


@pytest.fixture(scope="module")
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


@pytest.fixture(scope="module", params=redis_kinds())
def each_redis(request: pytest.FixtureRequest, servers: RedisServers) -> RedisServer:
    """A server of each version, for tests that do not break it."""
    return servers.start(binary=redis_binaries()[request.param])


@pytest.fixture(scope="module")
def shared_redis(servers: RedisServers) -> RedisServer:
    """A server for tests that do not break it."""
    return servers.start()


@pytest_asyncio.fixture
async def logs() -> AsyncIterator[Logs]:
    opened = Logs()
    try:
        yield opened
    finally:
        await opened.close()
