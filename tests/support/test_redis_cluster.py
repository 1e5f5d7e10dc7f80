"""The clusters that tests run on are what they say: whole, with open slots that answer ASK, guarded, and healing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import AskError, MovedError, NoPermissionError, OutOfMemoryError

from tests.support.redis_cluster import SLOTS, RedisCluster, key_of_slot, redis_cluster, slot_of
from tests.support.redis_guard import Certificates, Guard

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[RedisCluster]:
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_module: RedisCluster) -> Iterator[RedisCluster]:
    """All well again after each test."""
    yield cluster_of_module
    cluster_of_module.wait_ok()


def test_three_primaries_with_a_replica_each(cluster: RedisCluster) -> None:
    assert len(cluster.primaries) == 3
    assert [len(cluster.replicas_of(primary)) for primary in cluster.primaries] == [1, 1, 1]
    assert {cluster.owner(slot) for slot in (0, 8000, 16383)} == set(cluster.primaries)


def test_a_slot_on_its_way_answers_ask_then_moved(cluster: RedisCluster) -> None:
    key = key_of_slot(77)
    source = cluster.owner_of(key)
    target = next(node for node in cluster.primaries if node is not source)
    source.client.set(key, b"here")
    with cluster.moving(slot_of(key), target) as move:
        assert source.client.get(key) == b"here"
        assert move.keys() == 1
        with pytest.raises(AskError):
            source.client.get(key)
        with pytest.raises(MovedError):
            target.client.get(key)
    with pytest.raises(MovedError):
        source.client.get(key)
    assert target.client.get(key) == b"here"
    assert cluster.all_keys("filler*") == [key.encode()]
    cluster.flush()
    assert cluster.all_keys() == []


def test_a_failover_on_request_one_after_a_death_and_one_after_a_stop(cluster: RedisCluster) -> None:
    asked = cluster.primaries[0]
    assert cluster.failover(asked).is_primary
    cluster.wait_ok()
    dead = cluster.primaries[0]
    cluster.kill(dead)
    cluster.wait_for_failover(dead)
    cluster.restart(dead)
    cluster.wait_ok()
    assert not dead.is_primary
    stopped = cluster.primaries[1]
    cluster.stop(stopped)
    cluster.wait_for_failover(stopped)
    cluster.cont(stopped)
    cluster.wait_ok()
    assert len(cluster.primaries) == 3


def test_a_node_that_is_squeezed_refuses_or_evicts(cluster: RedisCluster) -> None:
    node = cluster.primaries[0]
    key = key_of_slot(next(slot for slot in range(SLOTS) if cluster.owner(slot) is node))
    with node.squeezed(policy="noeviction"), pytest.raises(OutOfMemoryError):
        node.client.set(key, bytes(1 << 16))
    with node.squeezed(policy="allkeys-lru", left_bytes=4 << 20):
        for number in range(200):
            node.client.set(f"{key}:{number}", bytes(1 << 16))
        assert node.info("stats")["evicted_keys"] > 0
    cluster.flush()


def test_a_guarded_cluster_takes_only_who_has_the_password_over_tls(tmp_path: Path) -> None:
    guard = Guard(certificates=Certificates.make(tmp_path), user="pages", may="~stratakv:* +@all")
    with redis_cluster(primaries=3, replicas=0, guard=guard) as cluster:
        assert cluster.urls.startswith("rediss+cluster://pages:")
        single = cluster.nodes[0].tcp_url
        with redis.Redis.from_url(single) as client:
            assert client.ping()
            with pytest.raises(NoPermissionError):
                client.get("other")
        with redis.RedisCluster(
            host="127.0.0.1", port=cluster.nodes[0].port, ssl=True, username=guard.user, password=guard.password,
            ssl_ca_certs=str(guard.certificates.authority) if guard.certificates else None,
        ) as whole:  # fmt: skip
            assert whole.set("stratakv:x", b"1")
        key = "stratakv:x"
        source = cluster.owner_of(key)
        target = next(node for node in cluster.primaries if node is not source)
        cluster.move_slot(slot_of(key), target)
        assert target.client.get(key) == b"1"
