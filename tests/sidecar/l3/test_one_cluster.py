"""Real sidecars to which one URL of a Cluster was given: pages are on all of it, and the log on the primary that has its slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from invalidation.redis.script import script_keys
from kv_types.outcomes import Hit, Miss, Tier
from tests.support.daemon import run_command
from tests.support.polling import wait_until
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster, slot_of
from tests.support.sharing_nodes import SharingNode, sharing_nodes
from tests.support.spaces import fresh_chain

LOG_KEY = script_keys("default")[0]
HEALS_S = 30.0
FLAGS = ("--log-replicas", "1", "--freshness-lease", "1s", "--pause-bound", "200ms")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster() as made:
        yield made


def label(node: ClusterNode) -> str:
    return f"redis://127.0.0.1:{node.port}"


def check_sharing(writer: SharingNode, reader: SharingNode, *, before: bytes = b"") -> bytes:
    """What one stores the other finds, as soon as both are in another incarnation than before; returns that."""

    def incarnation() -> bytes:
        told = [node.store.status().log for node in (writer, reader)]
        first, *others = {b"" if log.reason else log.incarnation for log in told}
        return b"" if others or first == before else first

    wait_until(lambda: incarnation() != b"", timeout_s=HEALS_S, what="an incarnation that both are in")
    keys = fresh_chain(12)
    writer.put(keys)
    writer.wait_idle()
    found = Hit(12, Tier.L2)
    wait_until(lambda: reader.get(keys) == found, timeout_s=HEALS_S, what="pages of the other node")
    return incarnation()


def check_fence(asked: SharingNode, nodes: list[SharingNode]) -> None:
    """An invalidation that exits 0 is final everywhere."""
    keys = fresh_chain(6)
    nodes[0].put(keys)
    nodes[0].wait_idle()
    told = run_command(
        "invalidate", "--runtime-dir", str(asked.daemon.runtime_dir), "--model", asked.space.model, "--yes"
    )
    assert told.returncode == 0, told.stdout + told.stderr
    for node in nodes:
        assert isinstance(node.get(keys), Miss)


def test_one_url_is_enough_whatever_befalls_the_primary_of_the_log(cluster: RedisCluster) -> None:
    first = cluster.owner_of(LOG_KEY)
    other = next(node for node in cluster.primaries if node is not first)
    url = f"redis+cluster://127.0.0.1:{other.port}"  # the log's is found by its slot
    with sharing_nodes(2, url, None, *FLAGS) as nodes:
        incarnation = check_sharing(*nodes)
        check_fence(nodes[1], nodes)
        log = nodes[0].store.status().log
        assert (log.kind, log.address, log.server) == ("redis", url, label(first))
        assert not log.server_errors

        cluster.kill(first)  # its replica takes the slot over, and has none itself until it is back
        cluster.wait_for_failover(first)
        cluster.restart(first)
        cluster.wait_ok()
        incarnation = check_sharing(*nodes, before=incarnation)
        check_fence(nodes[0], nodes)
        log = nodes[0].store.status().log
        second = cluster.owner_of(LOG_KEY)
        assert log.server == label(second) != label(first)
        shown = run_command(
            "status", "--runtime-dir", str(nodes[0].daemon.runtime_dir), environment={"COLUMNS": "250"}
        ).stdout
        assert f"{url} (redis), on {label(second)} now" in shown
        with urlopen(f"http://{nodes[0].store.status().metrics_address}/metrics") as answer:
            assert f'stratakv_log_server{{server="{label(second)}"}} 1.0' in answer.read().decode()

        target = next(node for node in cluster.primaries if node not in (second, first))
        cluster.move_slot(slot_of(LOG_KEY), target)
        wait_until(
            lambda: all(node.store.status().log.server == label(target) for node in nodes),
            timeout_s=HEALS_S, what="the slot's new primary to be found",
        )  # fmt: skip
        check_sharing(*nodes, before=incarnation)
        check_fence(nodes[1], nodes)


def test_replicas_that_need_not_confirm_are_refused_with_the_remedy(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    ended = run_command("serve", "--runtime-dir", str(tmp_path / "run"), "--l3-url", cluster.urls)
    assert ended.returncode == 1, ended.stderr
    assert "--log-replicas 1" in ended.stderr


def test_a_cluster_that_could_evict_the_log_is_refused_with_the_remedy(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    cluster.config(maxmemory_policy="allkeys-lru")
    try:
        ended = run_command(
            "serve", "--runtime-dir", str(tmp_path / "run"), "--l3-url", cluster.urls, "--log-replicas", "1"
        )
    finally:
        cluster.config(maxmemory_policy="noeviction")
    assert ended.returncode == 1, ended.stderr
    assert "volatile-lru" in ended.stderr
