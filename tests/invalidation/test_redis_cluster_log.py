"""The log on a real Redis Cluster: the conformance suite; slots that move, primaries that fail over, nodes that are down."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from invalidation.log import LogUnavailableError, RenewalStatus
from invalidation.records import LogEntry
from invalidation.redis.log import RedisLog
from invalidation.redis.script import script_keys
from kv_types.events import WeightsAnnounced
from kv_types.ids import NamespaceId
from kv_types.selectors import EVERYTHING, Selector
from tests.conformance.invalidation_log import InvalidationLogConformance
from tests.conformance.log_harness import SMALL_LIMITS, LogHarness, Restore
from tests.support.logs import CLOCK, Follower, Logs, append, append_unknown, entry, within
from tests.support.redis_cluster import RedisCluster, redis_cluster, slot_of
from tests.support.redis_guard import Certificates, Guard

DOCUMENT = Path(__file__).parents[2] / "docs" / "invalidation.md"
FLEET = "conformance"
HEAL_S_MAX = 20.0


@pytest.fixture(scope="module")
def lone_primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries without replicas, over TLS, for a user who may do what the document says and nothing else."""
    rule = re.search(
        r"`ACL SETUSER <user> (.*?)`, and `(\+cluster\|slots)`", DOCUMENT.read_text(encoding="utf-8")
    )
    assert rule is not None
    guard = Guard(
        certificates=Certificates.make(tmp_path_factory.mktemp("tls")),
        user="strata",
        may=" ".join(rule.groups()),
    )
    with redis_cluster(replicas=0, guard=guard) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three primaries with a replica each; every test leaves all of them well."""
    with redis_cluster() as made:
        yield made


class TestRedisLogOnACluster(InvalidationLogConformance):
    @pytest_asyncio.fixture
    async def harness(self, lone_primaries: RedisCluster, logs: Logs) -> AsyncIterator[LogHarness]:
        cluster = lone_primaries
        cluster.flush()
        server = cluster.owner_of(script_keys(FLEET)[0])
        log = logs.open(cluster.urls, fleet=FLEET, limits=SMALL_LIMITS)

        async def append_raw(payload: bytes) -> None:
            append_unknown(server, payload, fleet=FLEET, limits=SMALL_LIMITS)

        async def lose() -> None:
            cluster.flush()

        async def copy() -> Restore:
            server.save()

            async def restore() -> None:
                server.restart()
                cluster.wait_ok()

            return restore

        yield LogHarness(log=log, clock=CLOCK, append_raw=append_raw, lose=lose, copy=copy)


def test_all_keys_of_one_fleet_are_in_one_slot() -> None:
    for fleet in ("default", "a", "x.y-z_9"):
        assert len({slot_of(key) for key in script_keys(fleet)}) == 1


async def joined(log: RedisLog) -> Follower:
    """A member that the log has confirmed."""
    member = Follower(log)
    await member.boot()
    await append(log)
    renewal = await member.renew()
    assert (renewal.status, renewal.confirmed) == (RenewalStatus.OK, True)
    return member


async def answered(member: Follower) -> RenewalStatus:
    """What the log says as soon as it confirms again, by calls as a sidecar makes them."""
    said = None
    async with asyncio.timeout(HEAL_S_MAX):
        while said is None:
            try:
                renewal = await member.renew(seconds=1.0)
            except LogUnavailableError:
                continue
            said = renewal.status if renewal.confirmed else None
    return said


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["", "TAKEOVER"])
async def test_a_failover_in_good_order_begins_a_new_incarnation(
    cluster: RedisCluster, logs: Logs, how: str
) -> None:
    fleet = f"failover{how}"
    log = logs.open(cluster.urls, fleet=fleet, replicas=1)
    member = await joined(log)
    before = cluster.owner_of(script_keys(fleet)[0])
    assert log.server.endswith(f":{before.port}")
    after = await asyncio.to_thread(cluster.failover, before, how=how)
    assert await answered(member) is RenewalStatus.NEW_INCARNATION
    assert log.server.endswith(f":{after.port}")
    cluster.wait_ok()
    assert (await log.boot(deadline_ns=within())).tip.revision == 0
    await append(log)
    state = await log.fence(deadline_ns=within())
    assert (state.tip.revision, state.confirmed) == (1, True)


@pytest.mark.asyncio
async def test_a_primary_of_the_log_that_hangs_is_replaced(cluster: RedisCluster, logs: Logs) -> None:
    fleet = "hangs"
    log = logs.open(cluster.urls, fleet=fleet, replicas=1)
    member = await joined(log)
    before = cluster.owner_of(script_keys(fleet)[0])
    after = cluster.replicas_of(before)[0]
    cluster.stop(before)
    try:
        await asyncio.to_thread(cluster.wait_for_failover, before)
        with pytest.raises(LogUnavailableError):  # its one replica is the primary now: nobody confirms
            await asyncio.wait_for(unconfirmed(member, log), HEAL_S_MAX)
    finally:
        cluster.cont(before)
    await asyncio.to_thread(cluster.wait_ok)
    assert await answered(member) is RenewalStatus.NEW_INCARNATION
    assert log.server.endswith(f":{after.port}")


async def unconfirmed(member: Follower, log: RedisLog) -> None:
    """Reach the new primary, and see that it confirms nothing while its replica is away."""
    at = log.server
    while log.server == at:
        try:
            await member.renew(seconds=0.5)
        except LogUnavailableError:
            continue
    assert not (await member.renew(seconds=0.5)).confirmed
    raise LogUnavailableError("unconfirmed")


@pytest.mark.asyncio
async def test_a_slot_that_moves_takes_the_log_along_and_voids_it(cluster: RedisCluster, logs: Logs) -> None:
    fleet = "moves"
    log = logs.open(cluster.urls, fleet=fleet, replicas=1)
    member = await joined(log)
    slot = slot_of(script_keys(fleet)[0])
    owner = cluster.owner(slot)
    target = next(node for node in cluster.primaries if node is not owner)
    waiting = asyncio.create_task(log.woken(1, digest=member.digest, deadline_ns=within(10.0)))
    await asyncio.sleep(0)
    with cluster.moving(slot, target) as move:
        move.keys(2)
        with pytest.raises(LogUnavailableError) as failed:  # it is at neither end as a whole
            await log.fence(deadline_ns=within(0.6))
        assert failed.value.reason == "moved"
        appending = asyncio.create_task(append(log, entry(Selector(model="another"))))
        await asyncio.sleep(0)
    appended = await appending
    assert appended.stamp.revision == 1, "the first of a new incarnation"
    assert appended.stamp.incarnation != member.at.incarnation
    assert log.server.endswith(f":{target.port}")
    assert await answered(member) is RenewalStatus.NEW_INCARNATION
    await append(log)
    assert await waiting == (), "what comes there does not follow what the member has"


@pytest.mark.asyncio
async def test_a_node_that_is_named_and_down_harms_nothing(cluster: RedisCluster, logs: Logs) -> None:
    urls = cluster.urls.replace("://", "://127.0.0.1:1,", 1)
    member = await joined(logs.open(urls, fleet="down", replicas=1))
    assert member.number == 1


@pytest.mark.asyncio
async def test_without_configured_replicas_a_cluster_that_has_some_is_refused(
    cluster: RedisCluster, logs: Logs
) -> None:
    facts = await logs.open(cluster.urls, fleet="zero").check(deadline_ns=within())
    (error,) = facts.errors
    assert "--log-replicas 1" in error
    facts = await logs.open(cluster.urls, fleet="zero", replicas=1).check(deadline_ns=within())
    assert (facts.errors, facts.connected_replicas) == ((), 1)


@pytest.mark.asyncio
async def test_a_node_that_is_named_alone_is_warned_of(lone_primaries: RedisCluster, logs: Logs) -> None:
    owner = lone_primaries.owner_of(script_keys("alone")[0])
    facts = await logs.open(owner.tcp_url, fleet="alone").check(deadline_ns=within())
    assert any("redis+cluster://" in warning for warning in facts.warnings)
    other = next(node for node in lone_primaries.primaries if node is not owner)
    with pytest.raises(LogUnavailableError, match=r"redis\+cluster://"):
        await logs.open(other.tcp_url, fleet="alone").check(deadline_ns=within())


@pytest.mark.asyncio
async def test_a_verb_that_fails_half_way_in_a_slot_that_moves_leaves_no_log_behind(
    lone_primaries: RedisCluster, logs: Logs
) -> None:
    """All keys are there still, so that the script runs; but what it removes it can't make anew."""
    fleet = "half"
    log = logs.open(lone_primaries.urls, fleet=fleet)
    member = await joined(log)
    await append(log, entry(Selector(namespace=NamespaceId(bytes(32)))))
    await append(log, LogEntry(event=WeightsAnnounced("m", "1")))
    await log.know([b"a"], deadline_ns=within())
    await member.renew()
    keys = script_keys(fleet)
    slot = slot_of(keys[0])
    owner = lone_primaries.owner(slot)
    assert owner.cluster("COUNTKEYSINSLOT", slot) == len(keys)
    target = next(node for node in lone_primaries.primaries if node is not owner)
    with lone_primaries.moving(slot, target):
        with pytest.raises(LogUnavailableError, match="non local key"):
            await log.append(entry(EVERYTHING), request_id=os.urandom(16), deadline_ns=within(1.0))
        assert owner.cluster("COUNTKEYSINSLOT", slot) < len(keys), "it was half way"
        with pytest.raises(LogUnavailableError, match="moved"):
            await log.boot(deadline_ns=within(0.5))
    boot = await log.boot(deadline_ns=within())
    assert (boot.tip.revision, boot.tip.incarnation != member.at.incarnation) == (0, True)
    assert await answered(member) is RenewalStatus.NEW_INCARNATION
