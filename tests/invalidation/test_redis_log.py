"""RedisLog passes the conformance suite on each server here, and what is its own: its keys, its bounds, its counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from invalidation.log import InvalidationLog, LogUnavailableError, RenewalStatus
from invalidation.records import NO_DIGEST, LogEntry
from invalidation.redis.requests import append_arguments
from invalidation.redis.script import script_keys
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.events import WeightsAnnounced
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import LOG_REVISION_MAX, MEMBER_NOTE_BYTES_MAX, NAMESPACE_BYTES_MAX, REPLICAS_MAX
from kv_types.selectors import EVERYTHING, Selector
from tests.conformance.invalidation_log import InvalidationLogConformance
from tests.conformance.log_harness import SMALL_LIMITS, LogHarness, Restore
from tests.support.logs import CLOCK, Follower, Logs, append, append_unknown, entry, within
from tests.support.redis_servers import RedisServer

FLEET = "conformance"


class TestRedisLog(InvalidationLogConformance):
    @pytest_asyncio.fixture
    async def harness(self, each_redis: RedisServer, logs: Logs) -> AsyncIterator[LogHarness]:
        server = each_redis
        server.client.flushall()
        log = logs.open(server, fleet=FLEET, limits=SMALL_LIMITS)

        async def append_raw(payload: bytes) -> None:
            append_unknown(server, payload, fleet=FLEET, limits=SMALL_LIMITS)

        async def lose() -> None:
            server.client.flushall()

        async def copy() -> Restore:
            server.save()

            async def restore() -> None:
                server.restart()

            return restore

        yield LogHarness(log=log, clock=CLOCK, append_raw=append_raw, lose=lose, copy=copy)


def test_it_is_a_log() -> None:
    log: InvalidationLog = Logs().open("unix:///nowhere")
    assert log


@pytest.mark.asyncio
async def test_no_key_has_a_time_to_live(shared_redis: RedisServer, logs: Logs) -> None:
    log = logs.open(shared_redis, fleet="ttl")
    member = Follower(log)
    await member.boot()
    await append(log)
    await append(log, entry(EVERYTHING))
    await member.renew()
    await log.know([b"a"], deadline_ns=within())
    keys = list(shared_redis.client.scan_iter("stratakv:{ttl}:*"))
    assert len(keys) >= 6
    assert {shared_redis.client.ttl(key) for key in keys} == {-1}
    assert {key.decode() for key in keys} <= set(script_keys("ttl"))


@pytest.mark.asyncio
async def test_revisions_beyond_what_the_script_can_count_are_refused(
    shared_redis: RedisServer, logs: Logs
) -> None:
    log = logs.open(shared_redis, fleet="high")
    member = Follower(log)
    await member.boot()
    shared_redis.client.hset(script_keys("high")[0], "tip", LOG_REVISION_MAX - 2)
    revisions = [(await append(log)).stamp.revision for _ in range(2)]
    assert revisions == [LOG_REVISION_MAX - 1, LOG_REVISION_MAX], "no exponent, no skipped number"
    with pytest.raises(LogUnavailableError, match="revisions"):
        await append(log)
    boot = await log.boot(deadline_ns=within())
    assert boot.tip.revision == LOG_REVISION_MAX
    assert list(boot.tombstones.values()) == [LOG_REVISION_MAX]
    at_the_end = Follower(log, at=boot.tip, digest=boot.digest)
    assert (await at_the_end.renew()).status is RenewalStatus.OK
    behind = Follower(log, at=replace(boot.tip, revision=LOG_REVISION_MAX - 2))
    assert [record.revision for record in (await behind.renew()).records] == revisions
    beyond = Follower(log, at=replace(boot.tip, revision=LOG_REVISION_MAX + 1))
    with pytest.raises(InvalidArgumentError):
        await beyond.renew()


@pytest.mark.asyncio
async def test_what_is_too_large_never_reaches_the_server(shared_redis: RedisServer, logs: Logs) -> None:
    log = logs.open(shared_redis, fleet="large")
    member = Follower(log)
    await member.boot()
    long_note = replace(member.member(), note="n" * (MEMBER_NOTE_BYTES_MAX + 1))
    with pytest.raises(LimitExceededError, match="note"):
        await log.renew(long_note, number=1, deadline_ns=within())
    with pytest.raises(InvalidArgumentError, match="revision"):
        await log.renew(
            replace(member.member(), acknowledged=LOG_REVISION_MAX + 1), number=1, deadline_ns=within()
        )
    with pytest.raises(LimitExceededError, match="namespace"):
        await log.know([b"n" * (NAMESPACE_BYTES_MAX + 1)], deadline_ns=within())
    with pytest.raises(LimitExceededError, match="replicas"):
        await log.set_replicas(REPLICAS_MAX + 1, deadline_ns=within())
    with pytest.raises(InvalidArgumentError, match="fleet"):
        logs.open(shared_redis, fleet="{other}")
    assert (await log.fence(deadline_ns=within())).members == {}


@pytest.mark.asyncio
async def test_namespaces_come_in_batches(shared_redis: RedisServer, logs: Logs) -> None:
    log = logs.open(shared_redis, fleet="spaces")
    spaces = [b"space %d" % number for number in range(1000)]
    await log.know(spaces, deadline_ns=within())
    assert sorted((await log.namespaces(deadline_ns=within())).canonicals) == sorted(spaces)
    statistics = await log.statistics(deadline_ns=within())
    assert statistics.counters["know"] == 8


@pytest.mark.asyncio
async def test_a_script_that_was_flushed_is_sent_again(shared_redis: RedisServer, logs: Logs) -> None:
    log = logs.open(shared_redis, fleet="flushed")
    first = await append(log)
    shared_redis.client.script_flush()
    again = await append(log)
    assert (again.stamp.incarnation, again.stamp.revision) == (first.stamp.incarnation, 2)


@pytest.mark.asyncio
async def test_waiting_keeps_nobody_else_waiting(shared_redis: RedisServer, logs: Logs) -> None:
    log = logs.open(shared_redis, fleet="wait")
    member = Follower(log)
    await member.boot()
    waiting = asyncio.create_task(log.woken(0, digest=NO_DIGEST, deadline_ns=within(20.0)))
    await asyncio.sleep(0)
    for _ in range(5):
        assert (await member.renew()).status is RenewalStatus.OK
        await log.fence(deadline_ns=within())
    assert not waiting.done()
    await append(log)
    assert await waiting


@pytest.mark.asyncio
async def test_records_out_of_step_are_a_gap(shared_redis: RedisServer, logs: Logs) -> None:
    """Somebody removed one from the stream: a follower starts again instead of skipping it."""
    log = logs.open(shared_redis, fleet="holes")
    member = Follower(log)
    await member.boot()
    for _ in range(5):
        await append(log)
    shared_redis.client.xdel(script_keys("holes")[1], "3-0")
    assert (await member.renew()).status is RenewalStatus.GAP
    await member.boot()
    assert (await member.renew()).status is RenewalStatus.OK


def test_an_append_tells_the_script_what_compaction_needs() -> None:
    """The kind, the scope that a tombstone collapses into, and the selector where it has one."""
    space, key = NamespaceId(b"s" * 32), PageKey(b"k" * 32)
    in_space = Selector(namespace=space, key=key)
    for selector, expected in (
        (EVERYTHING, [b"E"]),
        (Selector(namespace=space), [b"N", b"n" + space]),
        (in_space, [b"T", b"n" + space, in_space.encode()]),
        (Selector(key=key), [b"T", b"-", Selector(key=key).encode()]),
    ):
        request, payload, *what = append_arguments(entry(selector), request_id=bytes(16))
        assert (request, payload) == (bytes(16), entry(selector).encode())
        assert what == expected
    announced = LogEntry(event=WeightsAnnounced("m", "v"))
    assert append_arguments(announced, request_id=bytes(16))[2:] == [b"W", b"m", b"v"]
