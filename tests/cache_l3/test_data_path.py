"""Every data path against a real redis-server, over every kind of link that it takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import xxhash

from cache_l3.data_path import ABSENT, Got, ServerError, ServerRefused
from kv_types.errors import BufferMismatchError, ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.limits import L3_ASK_COMMANDS_MAX, L3_REQUESTS_MAX, PAGE_BYTES_MAX
from tests.support import data_paths
from tests.support.data_paths import SHAPE, Site, header, outcome, payload_of, record, sealed, site, within
from tests.support.redis_guard import Certificates, Guard
from tests.support.redis_servers import RedisServer, RedisServers

LIMIT_BYTES = 1 << 20
SIZES = (1, 240, 4096, 65_537, 1 << 20)


@dataclass(frozen=True)
class Link:
    """A server, and how a data path of some kind gets connections to it."""

    kind: str
    server: RedisServer
    connect: Callable[[], socket.socket]


@pytest.fixture(
    scope="module", params=["native-tcp", "native-unix", "blocking-tcp", "blocking-unix", "blocking-tls"]
)
def link(
    request: pytest.FixtureRequest, servers: RedisServers, tmp_path_factory: pytest.TempPathFactory
) -> Link:
    kind, over = request.param.split("-")
    if over == "tls":
        certificates = Certificates.make(tmp_path_factory.mktemp("tls"))
        guarded = servers.start(guard=Guard(certificates=certificates))
        return Link(kind, guarded, lambda: data_paths.tls(guarded.port, certificates.authority))
    server = request.getfixturevalue("shared_redis")
    if over == "tcp":
        return Link(kind, server, lambda: data_paths.tcp(server.port))
    return Link(kind, server, lambda: data_paths.unix(server.socket_path))


@pytest.fixture(autouse=True)
def _empty(link: Link) -> None:
    link.server.client.flushall()


def joined(link: Link, at: Site, connections: int = 1) -> Site:
    for _ in range(connections):
        at.add(link.connect())
    return at


@pytest.mark.asyncio
@pytest.mark.parametrize("size", SIZES)
async def test_what_was_set_is_got_and_carries_its_checksums(link: Link, size: int) -> None:
    payload, place = payload_of(1, size), bytearray(size)
    with site(link.kind) as at:
        joined(link, at)
        await at.path.set(at.shard, b"k", header(), payload, ttl_s=100, deadline_ns=within())
        assert link.server.client.get("k") == record(1, size)
        assert 90 < link.server.client.ttl("k") <= 100
        got = await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within())
    assert got == Got(sealed(header(), payload), size, True, None, xxhash.xxh3_64_intdigest(payload))
    assert place == payload


@pytest.mark.asyncio
@pytest.mark.parametrize("header_bytes", [SHAPE.bytes_min, SHAPE.bytes_max])
async def test_headers_of_every_size(link: Link, header_bytes: int) -> None:
    link.server.client.set("k", record(3, 9000, header_bytes=header_bytes))
    place = bytearray(9000)
    with site(link.kind) as at:
        joined(link, at)
        got = await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within())
    assert isinstance(got, Got)
    assert got.in_place
    assert got.header + place == record(3, 9000, header_bytes=header_bytes)


@pytest.mark.asyncio
async def test_absent_is_a_value(link: Link) -> None:
    place = bytearray(b"untouched")
    with site(link.kind) as at:
        joined(link, at)
        assert await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within()) is ABSENT
    assert place == b"untouched"


@pytest.mark.asyncio
@pytest.mark.parametrize("stored_bytes", [0, 1, 77, 4999])
async def test_a_shorter_record_comes_apart_from_its_place(link: Link, stored_bytes: int) -> None:
    payload, place = payload_of(2, stored_bytes), bytearray(b"u" * 5000)
    link.server.client.set("k", record(2, stored_bytes))
    with site(link.kind) as at:
        joined(link, at)
        got = await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within())
    assert isinstance(got, Got)
    assert (got.in_place, got.stored_bytes, got.checksum) == (
        False,
        stored_bytes,
        xxhash.xxh3_64_intdigest(payload),
    )
    assert got.stored is not None
    assert bytes(got.stored) == payload
    assert place == b"u" * 5000


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [5001, 9000])
async def test_a_longer_record_is_thrown_away_and_the_connection_lives_on(link: Link, size: int) -> None:
    place = bytearray(b"u" * 5000)
    link.server.client.set("long", record(2, size))
    link.server.client.set("right", record(3, 5000))
    with site(link.kind) as at:
        joined(link, at)
        got = await at.path.get(at.shard, b"long", memoryview(place), deadline_ns=within())
        assert got == Got(sealed(header(), payload_of(2, size)), size, False, None, 0)
        assert place == b"u" * 5000
        after = await at.path.get(at.shard, b"right", memoryview(place), deadline_ns=within())
        assert isinstance(after, Got)
        assert after.in_place
        assert not at.lost


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value", [b"", b"short", b"x" * 300, header(4097), header(231), header(300)[:299], b"\xff" * 9000]
)
async def test_what_is_no_record_is_told_by_its_first_bytes(link: Link, value: bytes) -> None:
    place = bytearray(b"u" * 8704)
    link.server.client.set("k", value)
    with site(link.kind) as at:
        joined(link, at)
        got = await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within())
        assert got == Got(value[: SHAPE.bytes_max], max(0, len(value) - SHAPE.bytes_max), False, None, 0)
        assert await at.path.ask(at.shard, [[b"PING"]], deadline_ns=within()) == [b"PONG"]
    assert place == b"u" * 8704


@pytest.mark.asyncio
async def test_questions_are_answered_one_by_one(link: Link) -> None:
    link.server.client.set("k", b"0123456789", ex=100)
    with site(link.kind) as at:
        joined(link, at)
        told = await at.path.ask(
            at.shard,
            [
                [b"PING"], [b"GETRANGE", b"k", b"2", b"4"], [b"GETRANGE", b"no", b"0", b"9"], [b"GET", b"no"],
                [b"EXPIRE", b"k", b"50"], [b"NOSUCH"], [b"UNLINK", b"k", b"no"], [b"DBSIZE"], [b"DECR", b"n"],
            ],
            deadline_ns=within(),
        )  # fmt: skip
        assert not at.lost
    assert [*told[:5], *told[6:]] == [b"PONG", b"234", b"", None, 1, 1, 0, -1]
    assert isinstance(told[5], ServerError)
    assert (told[5].code, told[5].text[:19]) == ("ERR", "ERR unknown command")


@pytest.mark.asyncio
async def test_a_thousand_small_commands_in_one_question(link: Link) -> None:
    with site(link.kind) as at:
        joined(link, at)
        commands = [[b"INCR", b"n"]] * L3_ASK_COMMANDS_MAX
        assert await at.path.ask(at.shard, commands, deadline_ns=within()) == list(range(1, 1025))
        with pytest.raises(LimitExceededError, match="1025 commands"):
            at.path.ask(at.shard, [*commands, [b"PING"]], deadline_ns=within())
        with pytest.raises(LimitExceededError, match="bytes"):
            at.path.ask(at.shard, [[b"SET", b"k", b"x" * (1 << 20)]], deadline_ns=within())


@pytest.mark.asyncio
async def test_errors_of_get_and_set_are_exceptions_and_the_connection_lives_on(link: Link) -> None:
    link.server.client.lpush("list", "x")
    link.server.config(maxmemory="1", maxmemory_policy="noeviction")
    with site(link.kind) as at:
        joined(link, at)
        try:
            got = outcome(at.path.get(at.shard, b"list", memoryview(bytearray(10)), deadline_ns=within()))
            put = outcome(at.path.set(at.shard, b"k", header(), b"x", ttl_s=5, deadline_ns=within()))
            wrong, full = await asyncio.gather(got, put)
        finally:
            link.server.config(maxmemory="0")
        assert isinstance(wrong, ServerRefused)
        assert isinstance(full, ServerRefused)
        assert (wrong.error.code, full.error.code) == ("WRONGTYPE", "OOM")
        assert at.path.statistics()["refused"] == 2
        assert not at.lost


@pytest.mark.asyncio
async def test_asking_goes_before_each_command_and_its_reply_is_not_the_commands(link: Link) -> None:
    """The server is no cluster and refuses ASKING; what it says to the command itself is what counts."""
    link.server.client.set("k", record(4, 100))
    place = bytearray(100)
    with site(link.kind) as at:
        joined(link, at)
        got = await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within(), asking=True)
        assert isinstance(got, Got)
        assert place == payload_of(4, 100)
        await at.path.set(at.shard, b"j", header(), b"x", ttl_s=5, deadline_ns=within(), asking=True)
        told = await at.path.ask(at.shard, [[b"PING"], [b"DBSIZE"]], deadline_ns=within(), asking=True)
        assert told == [b"PONG", 2]
    assert link.server.info("commandstats")["cmdstat_asking"]["calls"] >= 4


@pytest.mark.asyncio
@pytest.mark.parametrize("connections", [1, 3])
async def test_many_at_once_each_get_their_own(link: Link, connections: int) -> None:
    count, size = 60, 70_001
    places = [bytearray(size) for _ in range(count)]
    with site(link.kind) as at:
        joined(link, at, connections)
        await asyncio.gather(*(
            at.path.set(at.shard, b"%d" % n, header(), payload_of(n, size), ttl_s=50, deadline_ns=within())
            for n in range(count)
        ))  # fmt: skip
        gets, asks = [], []
        for n, place in enumerate(places):
            gets.append(at.path.get(at.shard, b"%d" % n, memoryview(place), deadline_ns=within()))
            commands = [[b"GETRANGE", b"%d" % n, b"300", b"315"]]
            asks.append(at.path.ask(at.shard, commands, deadline_ns=within()))
        got, told = await asyncio.gather(*gets), await asyncio.gather(*asks)
        counts = at.path.statistics()
    for n in range(count):
        assert places[n] == payload_of(n, size)
        one = got[n]
        assert isinstance(one, Got)
        assert one.header == sealed(header(), payload_of(n, size))
        assert told[n] == [payload_of(n, 16)]
    assert (counts["gets"], counts["sets"], counts["asks"], counts["connections"]) == (
        count,
        count,
        count,
        connections,
    )
    assert (counts["queued"], counts["in_flight"], counts["lost"], counts["late"]) == (0, 0, 0, 0)
    assert min(counts["bytes_in"], counts["bytes_out"]) > count * size


@pytest.mark.asyncio
async def test_requests_wait_for_a_connection(link: Link) -> None:
    with site(link.kind) as at:
        asked = at.path.ask(at.shard, [[b"PING"]], deadline_ns=within())
        other = at.path.open_shard()
        at.path.add_connection(other, link.connect(), on_lost=at.lost.append)
        assert await at.path.ask(other, [[b"PING"]], deadline_ns=within()) == [b"PONG"]
        assert not asked.done()
        joined(link, at)
        assert await asked == [b"PONG"]


@pytest.mark.asyncio
@pytest.mark.slow
async def test_the_largest_page(link: Link) -> None:
    payload, place = payload_of(9, PAGE_BYTES_MAX), bytearray(PAGE_BYTES_MAX)
    with site(link.kind) as at:
        joined(link, at)
        await at.path.set(at.shard, b"k", header(), payload, ttl_s=100, deadline_ns=within())
        got = await at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within())
    assert isinstance(got, Got)
    assert got.in_place
    assert place == payload


@pytest.mark.asyncio
async def test_bad_arguments_are_named(link: Link) -> None:
    path_of = {"place": bytearray(10)}
    with site(link.kind) as at:
        with pytest.raises(BufferMismatchError):
            at.path.get(at.shard, b"k", memoryview(b"read only"), deadline_ns=within())
        with pytest.raises(BufferMismatchError):
            at.path.get(at.shard, b"k", memoryview(bytearray(0)), deadline_ns=within())
        with pytest.raises(BufferMismatchError):
            at.path.get(at.shard, b"k", memoryview(path_of["place"])[::2], deadline_ns=within())
        with pytest.raises(InvalidArgumentError, match="key"):
            at.path.get(at.shard, b"", memoryview(path_of["place"]), deadline_ns=within())
        for wrong in (header(300)[:100], header(5000)):
            with pytest.raises(BufferMismatchError, match="header"):
                at.path.set(at.shard, b"k", wrong, b"x", ttl_s=1, deadline_ns=within())
        with pytest.raises(InvalidArgumentError, match="lives"):
            at.path.set(at.shard, b"k", header(), b"x", ttl_s=0, deadline_ns=within())
        with pytest.raises(InvalidArgumentError, match="command"):
            at.path.ask(at.shard, [], deadline_ns=within())
        with pytest.raises(InvalidArgumentError, match="future"):
            at.path.cancel(asyncio.get_running_loop().create_future())
        gone = link.connect()
        gone.close()
        with pytest.raises(InvalidArgumentError, match="socket"):
            at.add(gone)
    with pytest.raises(ClosedError):
        at.path.ask(at.shard, [[b"PING"]], deadline_ns=within())


@pytest.mark.asyncio
async def test_more_requests_than_it_takes_are_refused_at_once(link: Link) -> None:
    with site(link.kind) as at:
        waiting = [at.path.ask(at.shard, [[b"PING"]], deadline_ns=within()) for _ in range(L3_REQUESTS_MAX)]
        more = await outcome(at.path.ask(at.shard, [[b"PING"]], deadline_ns=within()))
        assert (more.code, more.was_sent) == ("overloaded", False)
        joined(link, at)
        assert await asyncio.gather(*waiting) == [[b"PONG"]] * L3_REQUESTS_MAX
        assert await at.path.ask(at.shard, [[b"PING"]], deadline_ns=within()) == [b"PONG"]
        assert at.path.statistics()["overloaded"] == 1


@pytest.mark.asyncio
async def test_a_record_that_is_larger_than_the_server_takes_is_refused_in_its_words(link: Link) -> None:
    """It says so after the first bytes, and hangs up."""
    link.server.config(proto_max_bulk_len=str(LIMIT_BYTES))
    try:
        with site(link.kind) as at:
            for _ in range(10):
                at.add(link.connect())
                ended = await outcome(
                    at.path.set(
                        at.shard, b"big", header(), bytes(8 * LIMIT_BYTES), ttl_s=5, deadline_ns=within()
                    )
                )
                assert isinstance(ended, ServerRefused), repr(ended)
                assert "invalid bulk length" in str(ended)
            await at.until_lost(10)
            assert at.path.statistics()["refused"] == 10
    finally:
        link.server.config(proto_max_bulk_len=str(512 << 20))
