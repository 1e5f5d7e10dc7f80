"""Rule R10 on real replicas: what counts as confirmed, an old primary that lives on, several servers to choose from."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from invalidation.log import LogLimits, LogUnavailableError, RenewalStatus
from kv_types.limits import LOG_UNCONFIRMED_MAX
from tests.support.logs import Follower, Logs, append, within
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServer, RedisServers

pytestmark = pytest.mark.asyncio
SOON_S = 0.5


async def test_a_replica_in_sync_confirms(servers: RedisServers, logs: Logs) -> None:
    primary = servers.start()
    servers.start_replica(primary)
    log = logs.open(primary, replicas=1)
    member = Follower(log)
    await member.boot()
    for _ in range(5):
        await append(log)
        renewal = await member.renew()
        assert (renewal.status, renewal.confirmed, renewal.replicas) == (RenewalStatus.OK, True, 1)
        assert (await log.fence(deadline_ns=within())).confirmed


async def test_one_replica_lost_of_one_configured_confirms_nothing_until_k_is_lowered(
    servers: RedisServers, logs: Logs
) -> None:
    primary = servers.start()
    replica = servers.start_replica(primary)
    log = logs.open(primary, replicas=1)
    member = Follower(log)
    await member.boot()
    assert (await member.renew()).confirmed
    replica.kill()
    for _ in range(2):
        renewal = await member.renew(seconds=SOON_S)
        assert (renewal.status, renewal.confirmed) == (RenewalStatus.OK, False)
    assert not (await log.fence(deadline_ns=within(SOON_S))).confirmed
    await log.set_replicas(0, deadline_ns=within())
    assert (await member.renew()).confirmed
    assert (await log.fence(deadline_ns=within())).confirmed


async def test_a_replica_that_was_never_configured_confirms_nothing_for_one_that_is(
    servers: RedisServers, logs: Logs
) -> None:
    """k is what was configured, never how many happen to be connected."""
    primary = servers.start()
    servers.start_replica(primary)
    log = logs.open(primary, replicas=2)
    member = Follower(log)
    await member.boot()
    assert not (await member.renew(seconds=SOON_S)).confirmed


async def test_an_answer_across_a_change_of_k_is_not_confirmed(servers: RedisServers, logs: Logs) -> None:
    """It was waited for by the k before: not only when that was too small."""
    primary = servers.start()
    servers.start_replica(primary)
    log, admin = logs.open(primary, replicas=1), logs.open(primary)
    member = Follower(log)
    await member.boot()
    for replicas in (0, 1):
        await admin.set_replicas(replicas, deadline_ns=within())
        changed = await member.renew(seconds=SOON_S)
        assert (changed.replicas, changed.confirmed) == (replicas, False)
        assert (await member.renew()).confirmed


def has_acknowledged_all(primary: RedisServer) -> bool:
    told = primary.info("replication")
    return bool(told["slave0"]["offset"] == told["master_repl_offset"])


async def test_a_primary_cut_off_from_its_replica_confirms_nothing_not_even_what_is_old(
    servers: RedisServers, logs: Logs
) -> None:
    """A frozen replica stays connected, and has acknowledged all there was: a fence asks it anew nevertheless."""
    primary = servers.start(repl_ping_replica_period="3600")
    replica = servers.start_replica(primary)
    log = logs.open(primary, replicas=1)
    member = Follower(log)
    await member.boot()
    assert (await member.renew()).confirmed
    wait_until(lambda: has_acknowledged_all(primary), what="the replica to have acknowledged all there is")
    replica.freeze()
    try:
        assert has_acknowledged_all(primary)
        for _ in range(2):
            assert not (await log.fence(deadline_ns=within(SOON_S))).confirmed
            assert not (await member.renew(seconds=SOON_S)).confirmed
    finally:
        replica.thaw()
    assert (await member.renew()).confirmed


async def test_a_refusal_of_a_primary_cut_off_from_its_replica_is_not_confirmed_either(
    servers: RedisServers, logs: Logs
) -> None:
    """Else an old primary could say to a member that follows its successor: begin anew, and cost it all its pages."""
    primary = servers.start(repl_ping_replica_period="3600")
    replica = servers.start_replica(primary)
    log = logs.open(primary, replicas=1, limits=LogLimits(records=2))
    stranger, ahead, behind = Follower(log), Follower(log), Follower(log)
    for member in (ahead, behind):
        await member.boot()
        assert (await member.renew()).confirmed
    ahead.at = replace(ahead.at, revision=9)
    for _ in range(4):
        await append(log)
    assert (await log.fence(deadline_ns=within())).confirmed
    wait_until(lambda: has_acknowledged_all(primary), what="the replica to have acknowledged all there is")
    replica.freeze()
    try:
        for member, status in (
            (stranger, RenewalStatus.NEW_INCARNATION),
            (ahead, RenewalStatus.FORK),
            (behind, RenewalStatus.GAP),
        ):
            renewal = await member.renew(seconds=SOON_S)
            assert (renewal.status, renewal.confirmed) == (status, False)
    finally:
        replica.thaw()
    assert (await stranger.renew()).confirmed


async def test_fences_that_no_replica_confirms_do_not_keep_the_remedy_from_the_log(
    servers: RedisServers, logs: Logs
) -> None:
    """Each look of a fence waits for the replica as long as a call may: an administrator's calls go beside them."""
    primary = servers.start()
    replica = servers.start_replica(primary)
    log = logs.open(primary, replicas=1)
    member = Follower(log)
    await member.boot()
    assert (await member.renew()).confirmed
    replica.kill()
    fences = [asyncio.create_task(log.fence(deadline_ns=within(2 * SOON_S))) for _ in range(4)]
    await asyncio.sleep(0)
    await log.set_replicas(0, deadline_ns=within(SOON_S))
    assert not any(fence.done() for fence in fences)
    await asyncio.gather(*fences, return_exceptions=True)
    looks = [await log.fence(deadline_ns=within()) for _ in range(2)]
    assert looks[-1].confirmed, "the first one may still go by the k before"


async def test_an_old_primary_that_lives_on_grants_nothing_and_the_new_one_is_found(
    servers: RedisServers, logs: Logs
) -> None:
    old = servers.start()
    new = servers.start_replica(old)
    log = logs.open(old, new, replicas=1)
    member = Follower(log)
    await member.boot()
    assert (await member.renew()).confirmed
    new.promote()
    third = servers.start_replica(new)
    before = member.at.incarnation
    for _ in range(LOG_UNCONFIRMED_MAX):
        renewal = await member.renew(seconds=SOON_S)
        assert (renewal.incarnation, renewal.confirmed) == (before, False)
    renewal = await member.renew()
    assert renewal.status is RenewalStatus.NEW_INCARNATION
    await member.boot()
    assert (await member.renew()).confirmed, "the new primary has a replica of its own"
    await append(log)
    assert [record.revision for record in (await member.renew()).records] == [1]
    assert third.client.exists("stratakv:{test}:log:state")


async def test_a_dead_server_is_passed_by_and_the_one_that_works_is_kept(
    servers: RedisServers, logs: Logs
) -> None:
    first, second = servers.start(), servers.start()
    log = logs.open(first, second)
    member = Follower(log)
    await member.boot()
    first.kill()
    renewal = await member.renew()
    assert renewal.status is RenewalStatus.NEW_INCARNATION, "in the same call, on the other one"
    await member.boot()
    first.start()
    for _ in range(3):
        assert (await member.renew()).status is RenewalStatus.OK, "it is not left while it works"
    assert log.server == second.url


async def test_a_replica_is_passed_by(servers: RedisServers, logs: Logs) -> None:
    primary = servers.start()
    replica = servers.start_replica(primary)
    log = logs.open(replica, primary)
    member = Follower(log)
    await member.boot()
    assert (await member.renew()).status is RenewalStatus.OK
    assert log.server == primary.url


async def test_a_frozen_server_costs_one_deadline(servers: RedisServers, logs: Logs) -> None:
    first, second = servers.start(), servers.start()
    log = logs.open(first, second)
    member = Follower(log)
    await member.boot()
    first.freeze()
    try:
        with pytest.raises(LogUnavailableError, match="timeout"):
            await member.renew(seconds=SOON_S)
        assert (await member.renew()).status is RenewalStatus.NEW_INCARNATION
    finally:
        first.thaw()


async def test_when_all_fail_the_first_ones_reason_is_told(servers: RedisServers, logs: Logs) -> None:
    primary = servers.start()
    replica = servers.start_replica(primary)
    log = logs.open(replica, f"unix://{primary.directory}/nobody")
    with pytest.raises(LogUnavailableError) as failed:
        await log.boot(deadline_ns=within())
    assert failed.value.reason == "readonly"
    statistics = await logs.open(primary).statistics(deadline_ns=within())
    assert statistics.members == 0
