"""The guard of rule R6: whatever may have lost a tail, or part of the log, is a new incarnation that starts from nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from invalidation.log import LogLimits, RenewalStatus
from invalidation.records import LogEntry
from invalidation.redis.log import RedisLog
from invalidation.redis.script import KEY_NAMES, script_arguments, script_keys, script_text
from kv_types.events import WeightsAnnounced
from kv_types.ids import Stamp
from tests.support.logs import Follower, Logs, append, entry, patiently, within
from tests.support.lua_redis import ErrorReply, LuaScripts, Reply
from tests.support.redis_servers import RedisServer, RedisServers, redis_binaries, redis_kinds

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=redis_kinds())
def binary(request: pytest.FixtureRequest) -> Path:
    return redis_binaries()[request.param]


async def lived_in(log: RedisLog) -> Follower:
    """A log with records, a settled incarnation and one member that has followed."""
    member = Follower(log)
    await member.boot()
    await append(log)
    await append(log)
    assert (await member.renew()).status is RenewalStatus.OK
    assert await log.settle(member.at.incarnation, deadline_ns=within())
    await log.know([b"a namespace"], deadline_ns=within())
    return member


async def assert_new(log: RedisLog, member: Follower, *, replicas: int = 0) -> None:
    """A follower is told of another incarnation, and that holds nothing of the old one."""
    renewal = await patiently(lambda: member.renew(seconds=1.0))
    assert renewal.status is RenewalStatus.NEW_INCARNATION
    assert renewal.incarnation != member.at.incarnation
    boot = await log.boot(deadline_ns=within())
    assert boot.tip == Stamp(renewal.incarnation, 0)
    assert (boot.floors, boot.tombstones, boot.weights, boot.settled) == ({}, {}, {}, False)
    assert boot.replicas == replicas
    fence = await patiently(lambda: log.fence(deadline_ns=within(1.0)))
    assert (fence.members, fence.settled) == ({}, False), "no fence is reached before it has settled"
    assert (await log.namespaces(deadline_ns=within())).canonicals == []
    again = Follower(log)
    await again.boot()
    await append(log)
    records = (await patiently(lambda: again.renew(seconds=1.0))).records
    assert [record.revision for record in records] == [1]


async def test_the_incarnation_stays_while_nothing_happens(
    servers: RedisServers, logs: Logs, binary: Path
) -> None:
    log = logs.open(servers.start(binary=binary))
    member = await lived_in(log)
    await append(log)
    renewal = await member.renew()
    assert (renewal.status, renewal.incarnation) == (RenewalStatus.OK, member.at.incarnation)


async def test_flushall_is_noticed(servers: RedisServers, logs: Logs, binary: Path) -> None:
    server = servers.start(binary=binary)
    log = logs.open(server)
    member = await lived_in(log)
    server.client.flushall()
    await assert_new(log, member)


@pytest.mark.parametrize("restored", ["nothing", "the last state", "an old dump", "an append-only file"])
async def test_a_restart_is_noticed_whatever_it_restores(
    servers: RedisServers, logs: Logs, binary: Path, restored: str
) -> None:
    server = servers.start(
        binary=binary, appendonly="yes" if "append" in restored else "no", appendfsync="always"
    )
    log = logs.open(server)
    member = await lived_in(log)
    if restored == "an old dump":
        server.save()
        await append(log)
        await member.renew()
    elif restored == "the last state":
        server.save()
    server.restart()
    held = server.client.hget(script_keys("test")[0], "tip")
    assert held == {"nothing": None}.get(restored, b"2"), "the old state is back, or this tests nothing"
    member.log = logs.open(server)
    await assert_new(member.log, member)


async def test_a_promoted_replica_is_noticed_and_so_is_the_demoted_primary(
    servers: RedisServers, logs: Logs, binary: Path
) -> None:
    primary = servers.start(binary=binary)
    replica = servers.start_replica(primary)
    log = logs.open(primary, replicas=1)
    member = await lived_in(log)
    assert (await member.renew()).confirmed
    replica.promote()
    promoted = logs.open(replica, replicas=1)
    assert replica.client.hget(script_keys("test")[0], "tip") == b"2", "it has the tail"
    member.log = promoted
    await assert_new(promoted, member, replicas=1)


async def test_primary_replica_primary_is_noticed(servers: RedisServers, logs: Logs, binary: Path) -> None:
    """The server's run_id is the same before and after: what changes is its replication id."""
    first, second = servers.start(binary=binary), servers.start(binary=binary)
    log = logs.open(first)
    member = await lived_in(log)
    second.follow(first)
    run_id = first.info("server")["run_id"]
    second.promote()
    first.follow(second)
    first.promote()
    assert first.info("server")["run_id"] == run_id
    assert first.client.exists(script_keys("test")[0]), "the old state is there"
    await assert_new(log, member)


@pytest.mark.parametrize("hidden", ["master_replid", "run_id"])
@pytest.mark.parametrize("left", ["", "{name}:\r\n"])
async def test_a_server_that_hides_its_history_is_an_error(hidden: str, left: str) -> None:
    """Nothing else in what it tells may be taken for its history: that might stay the same when its data does not."""
    facts = {"replication": "master_replid", "server": "run_id"}

    def command(name: bytes, *arguments: bytes) -> Reply:
        if name != b"INFO":
            return None
        told = facts[arguments[0].decode()]
        line = left.format(name=told) if told == hidden else f"{told}:{'a' * 40}\r\n"
        return f"# Facts\r\nfirst:1\r\n{line}last:2\r\n".encode()

    arguments = script_arguments("boot", incarnation=bytes(16), replicas=0, limits=LogLimits())
    keys = [key.encode() for key in script_keys("test")]
    with pytest.raises(ErrorReply):
        LuaScripts().run(script_text().encode(), keys, arguments, command)


async def test_a_replica_never_answers(servers: RedisServers, logs: Logs, binary: Path) -> None:
    primary = servers.start(binary=binary)
    replica = servers.start_replica(primary)
    log = logs.open(replica)
    with pytest.raises(Exception, match="readonly"):
        await log.boot(deadline_ns=within())


@pytest.mark.parametrize("lost", KEY_NAMES)
async def test_a_part_that_is_lost_is_noticed_or_harmless(
    servers: RedisServers, logs: Logs, lost: str
) -> None:
    """An operator's DEL, or an eviction under a policy that was changed meanwhile."""
    server = servers.start()
    log = logs.open(server)
    member = await lived_in(log)
    await append(log, LogEntry(event=WeightsAnnounced("m", "2")))
    assert (await member.renew()).status is RenewalStatus.OK
    behind = Follower(log, at=Stamp(member.at.incarnation, 0))
    key = script_keys("test")[KEY_NAMES.index(lost)]
    server.client.delete(key)
    if lost in {"state", "members"}:
        await assert_new(log, member)
    elif lost in {"tombstones", "scopes", "weights", "namespaces", "known"}:
        assert (await member.renew()).status is RenewalStatus.OK, "it needs none of that"
        await log.statistics(deadline_ns=within())
        await assert_new(log, member)
    else:
        await log.append(entry(), request_id=os.urandom(16), deadline_ns=within())
        member.at = replace(member.at, revision=4)
        boot = await log.boot(deadline_ns=within())
        assert (boot.tip, boot.tombstones) == (member.at, dict.fromkeys(boot.tombstones, 4))
        assert len(boot.tombstones) == 1
        assert boot.weights == {"m": "2"}
        expected = RenewalStatus.GAP if lost == "stream" else RenewalStatus.OK
        assert (await behind.renew()).status is expected


async def test_the_configured_replicas_outlive_the_incarnation(servers: RedisServers, logs: Logs) -> None:
    server = servers.start()
    log = logs.open(server)
    await log.set_replicas(2, deadline_ns=within())
    before = await log.boot(deadline_ns=within())
    server.save()
    server.restart()
    other = logs.open(server)
    boot = await other.boot(deadline_ns=within())
    assert boot.tip.incarnation != before.tip.incarnation
    assert boot.replicas == 2
    server.client.flushall()
    assert (await other.boot(deadline_ns=within())).replicas == 2, (
        "who has seen k tells it to an empty server"
    )
    assert (await logs.open(server, replicas=3).boot(deadline_ns=within())).replicas == 2
    server.client.flushall()
    assert (await logs.open(server, replicas=3).boot(deadline_ns=within())).replicas == 3


async def test_fleets_on_one_server_do_not_see_each_other(shared_redis: RedisServer, logs: Logs) -> None:
    red, blue = logs.open(shared_redis, fleet="red"), logs.open(shared_redis, fleet="blue")
    member = await lived_in(red)
    boot = await blue.boot(deadline_ns=within())
    assert boot.tip.revision == 0
    assert boot.tip.incarnation != member.at.incarnation
    assert (await blue.fence(deadline_ns=within())).members == {}
    await blue.fork(boot.tip.incarnation, deadline_ns=within())
    assert (await member.renew()).status is RenewalStatus.OK
