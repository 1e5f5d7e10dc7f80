"""Connections that are opened in threads: authenticated, proven by an answer, in bounded time, and never leaked."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cache_l3.address import RedisAddress, parse_address
from cache_l3.connections import ConnectError, Connector, Control
from tests.support.redis_guard import Certificates, Guard
from tests.support.redis_servers import RedisServer, RedisServers
from tests.support.scripted_redis import ScriptedRedis, only, scripted_redis


@pytest.fixture
def connector() -> Iterator[Connector]:
    made = Connector()
    yield made
    made.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedRedis]:
    async with scripted_redis() as made:
        yield made


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def address_of(silent: socket.socket) -> RedisAddress:
    return parse_address(f"redis://127.0.0.1:{silent.getsockname()[1]}")


def ask(connection: socket.socket, command: bytes) -> bytes:
    """One command over a socket that was handed out."""
    connection.settimeout(5.0)
    connection.sendall(command)
    return connection.recv(4096)


@pytest.mark.asyncio
async def test_a_socket_is_logged_in_in_its_database_and_has_nothing_under_way(
    servers: RedisServers, connector: Connector
) -> None:
    server = servers.start(guard=Guard(user="pages"))
    connection = await connector.open(parse_address(f"{server.tcp_url}/3"), timeout_s=5.0)
    with connection:
        assert b"pages" in ask(connection, b"ACL WHOAMI\r\n")
        assert b"db=3" in ask(connection, b"CLIENT LIST\r\n")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.asyncio
async def test_a_unix_socket_is_one(shared_redis: RedisServer, connector: Connector) -> None:
    with await connector.open(parse_address(shared_redis.url), timeout_s=5.0) as connection:
        assert connection.family == socket.AF_UNIX
        assert ask(connection, b"PING\r\n") == b"+PONG\r\n"


@pytest.mark.asyncio
async def test_a_socket_behind_tls_is_verified(
    servers: RedisServers, connector: Connector, tmp_path: Path
) -> None:
    server = servers.start(guard=Guard(certificates=Certificates.make(tmp_path)))
    with await connector.open(parse_address(server.tcp_url), timeout_s=5.0) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        assert ask(connection, b"PING\r\n") == b"+PONG\r\n"
    with pytest.raises(ConnectError, match="certificate"):
        await connector.open(parse_address(f"rediss://127.0.0.1:{server.port}"), timeout_s=5.0)
    with pytest.raises(ConnectError, match="its URL begins with rediss://"):
        await connector.open(parse_address(f"redis://127.0.0.1:{server.port}"), timeout_s=5.0)


@pytest.mark.asyncio
async def test_a_user_without_ping_is_let_in(server: ScriptedRedis, connector: Connector) -> None:
    server.answer = only("PING", reply=b"-NOPERM this user has no permissions to run the 'ping' command\r\n")
    (await connector.open(parse_address(server.url), timeout_s=5.0)).close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"-LOADING Redis is loading\r\n", "loading"), (b"-NOAUTH Authentication required.\r\n", "denied"),
        (b"-ERR max number of clients reached\r\n", "clients"), (b"HTTP/1.1 400\r\n", "malformed"),
    ],
)  # fmt: skip
async def test_a_server_that_gives_no_good_answer_is_not_connected_to(
    server: ScriptedRedis, connector: Connector, reply: bytes, reason: str
) -> None:
    server.answer = only("PING", reply=reply)
    with pytest.raises(ConnectError) as failed:
        await connector.open(parse_address(server.url), timeout_s=5.0)
    assert failed.value.reason == reason
    assert server.url in str(failed.value)


@pytest.mark.asyncio
async def test_a_server_that_hangs_takes_the_time_that_it_may(
    silent: socket.socket, connector: Connector
) -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError) as failed:
        await connector.open(address_of(silent), timeout_s=0.2)
    assert failed.value.reason == "timeout"
    assert time.monotonic() - began < 2.0, "not what a connection may take"


@pytest.mark.asyncio
async def test_a_socket_that_comes_too_late_is_closed(silent: socket.socket, connector: Connector) -> None:
    """The thread gets its answer after whoever asked has gone."""
    opening = asyncio.create_task(connector.open(address_of(silent), timeout_s=5.0))
    silent.settimeout(5.0)
    peer, _ = await asyncio.to_thread(silent.accept)
    with peer:
        await asyncio.to_thread(peer.recv, 100)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        peer.sendall(b"+PONG\r\n")
        peer.settimeout(5.0)
        assert await asyncio.to_thread(peer.recv, 100) == b"", "and so it has ended"


@pytest.mark.asyncio
async def test_many_that_hang_do_not_take_more_threads_than_there_may_be(
    silent: socket.socket, connector: Connector
) -> None:
    opens = [connector.open(address_of(silent), timeout_s=0.2) for _ in range(40)]
    ends = await asyncio.gather(*opens, return_exceptions=True)
    assert all(isinstance(end, ConnectError) for end in ends)
    assert len(connector._threads._threads) <= connector._threads._max_workers


@pytest.mark.asyncio
async def test_small_questions_are_answered_over_one_connection(server: ScriptedRedis) -> None:
    control = Control(parse_address(server.url))
    replies = await control.ask([("PING",), ("UNLINK", "x")], timeout_s=5.0)
    assert replies == [b"PONG", 0]
    server.answer = only("INFO", reply=b"-NOPERM no\r\n")
    denied, answered = await control.ask([("INFO", "memory"), ("PING",)], timeout_s=5.0)
    assert isinstance(denied, Exception)
    assert answered == b"PONG"
    server.cut_all()
    with pytest.raises(ConnectError) as failed:
        await control.ask([("PING",)], timeout_s=5.0)
    assert "rediss" not in str(failed.value), "it has worked before, so that it is no matter of TLS"
    assert await control.ask([("PING",)], timeout_s=5.0) == [b"PONG"]
    await control.close()


@pytest.mark.asyncio
async def test_a_question_that_is_not_answered_in_time_drops_its_connection(server: ScriptedRedis) -> None:
    """Its late reply is nobody's (C17)."""
    control = Control(parse_address(server.url))
    server.answer = only("INFO", reply=b"")
    with pytest.raises(ConnectError) as failed:
        await control.ask([("INFO", "memory")], timeout_s=0.1)
    assert failed.value.reason == "timeout"
    server.answer = lambda words: None
    assert await control.ask([("PING",)], timeout_s=5.0) == [b"PONG"]
    await control.close()
