"""What a record store makes of a server's errors: which it waits out, which are a miss at once, which tell people what to do."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cache_l3.redis_store import RedisRecordStore
from cache_l3.shard import ShardTerms
from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.limits import (
    L3_ATTEMPTS_MAX,
    L3_CONNECTIONS_PER_SHARD_DEFAULT,
    L3_CONNECTIONS_PER_SHARD_MAX,
    L3_RETRIES_BURST_MAX,
    L3_RETRIES_PER_S_MAX,
    PAGE_BYTES_MAX,
)
from kv_types.outcomes import STORED, MissReason, PutOutcome, Refused, RefuseReason
from kv_types.record import ChecksumKind, RecordHeader
from tests.support.record_stores import Around, load, opened, put, until
from tests.support.records import describe, name, payload, place, within
from tests.support.redis_guard import Guard
from tests.support.redis_servers import RedisServer, RedisServers
from tests.support.scripted_redis import ScriptedRedis, bulk, only, scripted_redis

pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedRedis]:
    async with scripted_redis() as made:
        yield made


@pytest_asyncio.fixture
async def store(server: ScriptedRedis) -> AsyncIterator[RedisRecordStore]:
    async with opened(server.url) as made:
        yield made


def said(store: RedisRecordStore) -> str:
    return store.describe().servers[0].last_error


UNREACHABLE = Refused(RefuseReason.UNREACHABLE)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "outcome", "word"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", Refused(RefuseReason.FULL), ""),
        (b"-NOPERM User pages has no permissions to run the 'set' command\r\n", UNREACHABLE, "ACL SETUSER"),
        (b"-NOAUTH Authentication required.\r\n", UNREACHABLE, "user and password"),
        (b"-MISCONF Redis is configured to save RDB snapshots\r\n", UNREACHABLE, "disk"),
        (b"-NOREPLICAS Not enough good replicas to write.\r\n", UNREACHABLE, "NOREPLICAS"),
        (b"-ERR something new\r\n", UNREACHABLE, "something new"),
    ],
)
async def test_errors_that_waiting_does_not_mend_end_a_request_at_once(
    server: ScriptedRedis, store: RedisRecordStore, reply: bytes, outcome: PutOutcome, word: str
) -> None:
    server.answer = only("SET", reply=reply)
    assert await put(store) == outcome
    assert server.seen["SET"] == 1
    assert word in said(store)
    assert store.describe().servers[0].breaker == "closed", "it answers"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply", [b"-TRYAGAIN Multiple keys request\r\n", b"-CLUSTERDOWN Hash slot not served\r\n", b"-READONLY You can't write\r\n"]
)  # fmt: skip
async def test_errors_that_pass_are_waited_out(
    server: ScriptedRedis, store: RedisRecordStore, reply: bytes
) -> None:
    server.answer = lambda words: (
        reply if words[0] in (b"SET", b"GETRANGE") and server.seen[words[0].decode()] < 4 else None
    )
    assert await put(store) is STORED
    assert await store.probe([name(1)], deadline_ns=within(2.0)) == [MissReason.ABSENT]
    assert server.seen["SET"] == server.seen["GETRANGE"] == 4
    assert store.statistics()["retried"] == 6


@pytest.mark.asyncio
async def test_errors_that_do_not_pass_end_at_the_deadline(
    server: ScriptedRedis, store: RedisRecordStore
) -> None:
    server.answer = only("SET", "GETRANGE", reply=b"-TRYAGAIN later\r\n")
    began = time.monotonic()
    assert await put(store, seconds=0.2) == Refused(RefuseReason.DEADLINE)
    assert await store.probe([name(1)], deadline_ns=within(0.2)) == [MissReason.DEADLINE]
    assert time.monotonic() - began > 0.3, "it was tried as long as there was time"
    assert server.seen["SET"] <= L3_ATTEMPTS_MAX


@pytest.mark.asyncio
async def test_many_requests_do_not_retry_more_than_the_budget(
    server: ScriptedRedis, store: RedisRecordStore
) -> None:
    await put(store)
    server.seen.clear()
    server.answer = only("SET", reply=b"-TRYAGAIN later\r\n")
    count = 4 * L3_RETRIES_BURST_MAX
    began = time.monotonic()
    outcomes = await asyncio.gather(*(put(store, number, seconds=5.0) for number in range(count)))
    retries = L3_RETRIES_BURST_MAX + L3_RETRIES_PER_S_MAX * (time.monotonic() - began) + 1
    assert UNREACHABLE in outcomes
    assert set(outcomes) <= {UNREACHABLE, Refused(RefuseReason.DEADLINE)}, (
        "who retries how often is up to their order"
    )
    assert server.seen["SET"] <= count + retries


@pytest.mark.asyncio
async def test_a_server_that_loads_its_dump_is_down_until_it_has(
    server: ScriptedRedis, store: RedisRecordStore
) -> None:
    loading = b"-LOADING Redis is loading the dataset in memory\r\n"
    assert await put(store) is STORED
    server.answer = only("GET", "PING", reply=loading)
    assert await load(store) is MissReason.L3_UNAVAILABLE
    assert store.describe().servers[0].breaker == "open"
    assert await load(store) is MissReason.L3_UNAVAILABLE
    assert server.seen["GET"] == 1
    server.answer = lambda words: None
    await until(lambda: store.describe().servers[0].breaker == "closed", what="its healing")
    assert await load(store) is MissReason.ABSENT


@pytest.mark.asyncio
async def test_redirections_in_a_circle_end(server: ScriptedRedis, store: RedisRecordStore) -> None:
    server.answer = lambda words: (
        b"-ASK 7 127.0.0.1:%d\r\n" % server.port if words[0] in (b"GET", b"GETRANGE") else None
    )
    assert await load(store) is MissReason.L3_UNAVAILABLE
    assert await store.probe([name(1)], deadline_ns=within(2.0)) == [MissReason.L3_UNAVAILABLE]
    assert server.seen["GET"] <= L3_ATTEMPTS_MAX


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply", [b"-MOVED\r\n", b"-ASK x y\r\n", b"-ASK 5 host:port\r\n", b"-MOVED 5 127.0.0.1:7\r\n"]
)
async def test_redirections_that_lead_nowhere_are_a_miss(
    server: ScriptedRedis, store: RedisRecordStore, reply: bytes
) -> None:
    server.answer = only("GET", reply=reply)
    assert await load(store) is MissReason.L3_UNAVAILABLE
    assert server.seen["GET"] == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply", [b"?\r\n", b":5\r\n", b"*1\r\n:1\r\n", b"+OK\r\n", b"$x\r\n", b"$99999999999\r\n", b"$-2\r\n"]
)
async def test_replies_that_no_server_gives_are_a_miss(
    server: ScriptedRedis, store: RedisRecordStore, reply: bytes
) -> None:
    server.answer = only("GET", reply=reply)
    assert await load(store, seconds=0.5) in (
        MissReason.L3_UNAVAILABLE, MissReason.DEADLINE, MissReason.CORRUPT
    )  # fmt: skip
    server.answer = lambda words: None
    for _ in range(50):
        if await load(store, seconds=0.5) is MissReason.ABSENT:
            return
    raise AssertionError(store.describe())


@pytest.mark.asyncio
async def test_one_key_s_trouble_is_not_another_s(server: ScriptedRedis, store: RedisRecordStore) -> None:
    denied = store._keys.key(name(2))
    server.answer = lambda words: (
        b"-NOPERM no\r\n" if words[0] == b"GETRANGE" and words[1] == denied else None
    )
    found = await store.probe([name(1), name(2), name(3)], deadline_ns=within(2.0))
    assert found == [MissReason.ABSENT, MissReason.L3_UNAVAILABLE, MissReason.ABSENT]


@pytest.mark.asyncio
async def test_a_replica_alone_is_looked_at_now_and_then_and_not_used(
    server: ScriptedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_l3.shard.L3_LOOK_S", 0.01)
    server.answer = only("INFO", reply=bulk(b"role:slave\r\n"))
    async with opened(server.url) as store:
        await until(lambda: store.describe().servers[0].writes == "refused", what="the word")
        assert "is a replica: name its primary" in said(store)
        connected = server.seen["PING"]
        looked = server.seen["INFO"]
        while server.seen["INFO"] < looked + 40:
            assert await load(store) is MissReason.L3_UNAVAILABLE
            assert await put(store) == UNREACHABLE
            await until(lambda: store.statistics()["in_flight"] == 0)
        assert server.seen["PING"] == connected, "no connection for pages is opened"
        assert store.statistics()["path_connections"] == 0
        assert (server.seen["GET"], server.seen["SET"]) == (0, 0)
        assert "is a replica: name its primary" in said(store)
        server.answer = lambda words: None
        await until(lambda: store.describe().servers[0].breaker == "closed", what="the promotion")
        assert await put(store) is STORED


@pytest.mark.asyncio
async def test_a_user_who_may_not_ask_for_the_role_of_a_replica_does_not_connect_anew_for_every_page(
    server: ScriptedRedis,
) -> None:
    replies = {b"INFO": b"-NOPERM no INFO\r\n", b"SET": b"-READONLY You can't write\r\n"}
    server.answer = lambda words: replies.get(words[0])
    async with opened(server.url) as store:
        for _ in range(5):
            assert await put(store, seconds=0.05) in (UNREACHABLE, Refused(RefuseReason.DEADLINE))
        assert server.seen["PING"] <= 2 * L3_CONNECTIONS_PER_SHARD_DEFAULT


@pytest.mark.asyncio
async def test_what_was_said_of_memory_is_forgotten_where_nobody_can_ask_any_more(
    server: ScriptedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_l3.shard.L3_LOOK_S", 0.01)
    monkeypatch.setattr("cache_l3.capacity._KNOWN_NS", 300_000_000)
    server.answer = only("INFO", reply=bulk(b"role:master\r\nused_memory:99\r\nmaxmemory:100\r\n"))
    async with opened(server.url) as store:
        await until(lambda: store.describe().servers[0].writes == "full", what="the word")
        assert await put(store) == Refused(RefuseReason.FULL)
        server.answer = only("INFO", reply=b"nonsense\r\n")
        await until(lambda: store.describe().servers[0].writes == "unknown", what="its end")
        assert await put(store) is STORED
        assert store.describe().servers[0].breaker == "closed"


@pytest.mark.asyncio
async def test_a_server_that_may_not_be_asked_for_its_memory_is_written_to(server: ScriptedRedis) -> None:
    server.answer = only("INFO", reply=b"-NOPERM no INFO\r\n")
    async with opened(server.url) as store:
        await until(lambda: server.seen["INFO"] >= 2, what="the question")
        assert await put(store) is STORED
        assert store.describe().servers[0].writes == "unknown"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply", [b"-NOPERM no\r\n", b"-READONLY You can't write\r\n", b"-MISCONF no disk\r\n"]
)
async def test_a_server_that_refuses_pages_does_not_count_as_one_that_takes_them(
    server: ScriptedRedis, store: RedisRecordStore, reply: bytes
) -> None:
    assert await put(store) is STORED
    server.answer = only("SET", reply=reply)
    assert isinstance(await put(store, 1, seconds=0.2), Refused)
    assert store.describe().servers[0].writes == "refused"
    server.answer = lambda words: None
    assert await put(store, 2) is STORED
    assert store.describe().servers[0].writes != "refused"


@pytest.mark.asyncio
@pytest.mark.parametrize("command", ["GET", "GETRANGE", "EXPIRE"])
async def test_what_a_server_refuses_is_told_until_it_does_it(
    server: ScriptedRedis, store: RedisRecordStore, command: str
) -> None:
    async def all_of_them() -> None:
        await put(store)
        await store.probe([name(1)], deadline_ns=within(2.0))
        await load(store)
        await store.refresh({name(1): 60}, deadline_ns=within(2.0))

    await all_of_them()
    assert store.describe().servers[0].refused == ()
    server.answer = only(command, reply=b"-NOPERM this user has no permissions\r\n")
    await all_of_them()
    told = store.describe().servers[0]
    assert told.refused == (command,)
    assert told.is_readable == (command == "EXPIRE")
    assert "ACL SETUSER" in told.last_error
    server.answer = lambda words: None
    await all_of_them()
    assert store.describe().servers[0].refused == ()


@pytest.mark.asyncio
async def test_another_kind_of_value_under_the_key_is_corrupt_and_removed(shared_redis: RedisServer) -> None:
    async with opened(shared_redis.url) as store:
        key = store._keys.key(name(77))
        for verb in ("load", "probe"):
            shared_redis.client.hset(key.decode(), "field", "value")
            if verb == "load":
                assert await load(store, 77) is MissReason.CORRUPT
            else:
                assert await store.probe([name(77)], deadline_ns=within(2.0)) == [MissReason.CORRUPT]
            await until(lambda: not shared_redis.client.exists(key), what="its removal")
        assert store.statistics()["corrupt"] == 2


@pytest.mark.asyncio
async def test_a_wrong_password_says_what_to_do_and_shows_none(servers: RedisServers) -> None:
    server = servers.start(guard=Guard(user="pages"))
    async with opened(f"redis://pages:hunter2@127.0.0.1:{server.port}") as store:
        assert await load(store) is MissReason.L3_UNAVAILABLE
        assert "user and password in the URL" in said(store)
        assert "hunter2" not in str(store.describe())


@pytest.mark.asyncio
async def test_the_largest_page_travels(shared_redis: RedisServer) -> None:
    data = memoryview(bytearray(PAGE_BYTES_MAX))
    data[:5], data[-5:] = b"begin", b"ended"
    page = describe(1, size=PAGE_BYTES_MAX)
    async with opened(shared_redis.url) as store:
        assert await store.store(page, data, ttl_s=60, deadline_ns=within(20.0)) is STORED
        where = place(PAGE_BYTES_MAX)
        loaded = await store.load(name(1), where, deadline_ns=within(20.0))
        assert not isinstance(loaded, MissReason), loaded
        assert where == data
        await store.remove([name(1)], deadline_ns=within(5.0))


@pytest.mark.asyncio
async def test_a_record_with_the_other_kind_of_checksum_is_read(shared_redis: RedisServer) -> None:
    around, data = Around(lambda key: shared_redis.client), bytes(payload(601))
    for wrong in (0, 1):
        header = RecordHeader(
            page=describe(601),
            stored_bytes=4096,
            checksum_kind=ChecksumKind.CRC32,
            checksum=zlib.crc32(data) ^ wrong,
        )
        around.write(name(601), header.encode() + data)
        async with opened(shared_redis.url) as store:
            assert (await load(store, 601) is MissReason.CORRUPT) == bool(wrong)


@pytest.mark.parametrize("connections", [0, L3_CONNECTIONS_PER_SHARD_MAX + 1])
def test_terms_that_cannot_be_are_refused(connections: int) -> None:
    with pytest.raises(InvalidArgumentError):
        ShardTerms(connections=connections)


@pytest.mark.asyncio
async def test_arguments_that_cannot_be_are_refused_at_once(store: RedisRecordStore) -> None:
    with pytest.raises(InvalidArgumentError):
        store.store(describe(1), payload(1), ttl_s=0, deadline_ns=within(1.0))
    with pytest.raises(InvalidArgumentError):
        await store.refresh({name(1): 1 << 40}, deadline_ns=within(1.0))
    with pytest.raises(BufferMismatchError):
        store.load(name(1), memoryview(bytearray()), deadline_ns=within(1.0))
