"""TLS to the log's server: with its certificate it works; where one end speaks it and the other doesn't, the error says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from invalidation.log import LogUnavailableError
from tests.support.logs import Logs, within
from tests.support.redis_guard import Certificates, Guard
from tests.support.redis_servers import RedisServer, RedisServers

TO_TLS, TO_PLAIN = "its URL begins with rediss://", "its URL begins with redis://"


@pytest.fixture(scope="module")
def over_tls(servers: RedisServers, tmp_path_factory: pytest.TempPathFactory) -> RedisServer:
    return servers.start(guard=Guard(certificates=Certificates.make(tmp_path_factory.mktemp("tls"))))


async def failure(logs: Logs, url: str, *, seconds: float = 10.0) -> str:
    with pytest.raises(LogUnavailableError) as caught:
        await logs.open(url).check(deadline_ns=within(seconds))
    return str(caught.value)


@pytest.mark.asyncio
async def test_tls_works_with_the_certificate_and_says_what_is_wrong_without(
    logs: Logs, over_tls: RedisServer
) -> None:
    facts = await logs.open(over_tls.tcp_url).check(deadline_ns=within())
    assert facts.errors == ()
    said = await failure(logs, f"rediss://localhost:{over_tls.port}")
    assert "certificate" in said
    assert TO_PLAIN not in said


@pytest.mark.asyncio
@pytest.mark.parametrize("account", ["", ":secret@"])
async def test_a_server_that_speaks_tls_alone_is_told(
    logs: Logs, over_tls: RedisServer, account: str
) -> None:
    said = await failure(logs, f"redis://{account}localhost:{over_tls.port}")
    assert TO_TLS in said
    assert "secret" not in said


@pytest.mark.asyncio
async def test_a_server_that_speaks_no_tls_is_told(logs: Logs, shared_redis: RedisServer) -> None:
    said = await failure(logs, shared_redis.tcp_url.replace("redis://", "rediss://"), seconds=1.0)
    assert said.startswith("timeout")
    assert TO_PLAIN in said


@pytest.mark.asyncio
async def test_who_does_not_answer_at_all_hints_at_nothing(logs: Logs, servers: RedisServers) -> None:
    server = servers.start()
    server.freeze()
    said = await failure(logs, server.tcp_url, seconds=1.0)
    assert said.startswith("timeout")
    assert "its URL" not in said
    server.thaw()
    server.kill()
    said = await failure(logs, server.tcp_url)
    assert said.startswith("unreachable")
    assert "its URL" not in said
    assert "its URL" not in await failure(logs, server.tcp_url.replace("redis://", "rediss://"))


@pytest_asyncio.fixture
async def port(says: bytes) -> AsyncIterator[int]:
    """Something on a port that answers everything with the same bytes, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1 << 16)
            writer.write(says)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("says", "scheme", "expected"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "redis", TO_TLS),
        (b"", "redis", TO_TLS),
        (b"-ERR Protocol error: invalid multibulk length\r\n", "rediss", TO_PLAIN),
        (b"", "rediss", TO_PLAIN),
    ],
    ids=["an alert", "hung up", "an error", "hung up on a greeting"],
)
async def test_answers_of_the_other_kind_are_told(logs: Logs, port: int, scheme: str, expected: str) -> None:
    assert expected in await failure(logs, f"{scheme}://127.0.0.1:{port}")
