"""What a server is asked before the log relies on it: errors with remedies, warnings, and facts, from INFO alone if need be."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import MovedError

from invalidation.log import LogUnavailableError
from invalidation.redis.errors import MovedElsewhereError
from invalidation.redis.facts import RedisFacts, read_facts
from kv_types.errors import ConfigError
from tests.support.logs import Logs, append, within
from tests.support.redis_servers import RedisServer, RedisServers

INFO = {
    "redis_version": "7.2.4",
    "run_id": "a" * 40,
    "master_replid": "b" * 40,
    "maxmemory": "0",
    "maxmemory_policy": "volatile-lru",
    "used_memory": "1000000",
    "connected_slaves": "0",
    "aof_enabled": "0",
    "rdb_last_bgsave_status": "ok",
}
REFUSED = Exception("ERR unknown command")


def facts(
    changed: dict[str, str | None] | None = None,
    *,
    replicas: int = 0,
    config: dict[str, str] | None = None,
    candidates: int = 1,
    promised: int | None = None,
    read: object = None,
) -> RedisFacts:
    """Facts of a server whose INFO differs so from that of a good one; None leaves a line out."""
    told = {name: value for name, value in (INFO | (changed or {})).items() if value is not None}
    text = "# Server\r\n" + "".join(f"{name}:{value}\r\n" for name, value in told.items())
    settings: list[Any] = [
        [name.encode(), config[name].encode()] if config and name in config else REFUSED
        for name in ("repl-backlog-ttl", "maxmemory-policy")
    ]
    return read_facts(
        [text.encode(), *settings, 0, read],
        server="redis://here:6379",
        replicas=replicas,
        candidates=candidates,
        promised=promised,
    )


def test_a_cluster_that_fails_over_needs_replicas_that_confirm() -> None:
    with_two: dict[str, str | None] = {"connected_slaves": "2", "cluster_enabled": "1"}
    refused = facts(with_two, promised=0)
    (error,) = refused.errors
    assert "log_replicas is 0" in error
    assert refused.warnings == (), "what it is refused for is not told twice"
    assert "--log-replicas 2" in error
    assert facts(with_two, promised=1, replicas=1).errors == ()
    assert facts({"cluster_enabled": "1"}, promised=0).errors == (), "it has none"


def test_a_clusters_server_that_is_named_alone_is_warned_of() -> None:
    (warning,) = facts({"cluster_enabled": "1"}).warnings
    assert "redis+cluster://" in warning
    assert facts({"cluster_enabled": "1"}, promised=0).warnings == ()


def test_a_server_that_has_not_the_logs_slot_is_none_to_judge() -> None:
    with pytest.raises(LogUnavailableError) as told:
        facts(promised=0, read=MovedError("77 b:2", status_code="MOVED"))
    assert isinstance(told.value, MovedElsewhereError)
    assert told.value.redirect == "MOVED 77 b:2"


def test_a_good_server_has_neither_errors_nor_warnings() -> None:
    found = facts()
    assert (found.errors, found.warnings) == ((), ())
    found.demand()
    assert (found.version, found.policy, found.memory_bytes) == ("7.2.4", "volatile-lru", 1_000_000)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_policy_that_could_evict_the_log_is_an_error_with_the_remedy(policy: str) -> None:
    found = facts({"maxmemory_policy": policy})
    assert len(found.errors) == 1
    with pytest.raises(ConfigError, match=f"{policy} could evict the log.*CONFIG SET maxmemory-policy"):
        found.demand()
    assert facts({"maxmemory_policy": None}, config={"maxmemory-policy": policy}).errors, "or so CONFIG says"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"redis_version": "6.0.20"}, "6.2 or later"),
        ({"redis_version": "5.0.7"}, "6.2 or later"),
        ({"redis_version": None}, "neither Redis nor Valkey"),
        ({"run_id": None}, "master_replid or run_id"),
        ({"master_replid": None}, "master_replid or run_id"),
    ],
)
def test_a_server_that_the_guard_can_not_rely_on_is_an_error(
    changed: dict[str, str | None], words: str
) -> None:
    (error,) = facts(changed).errors
    assert words in error


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "8.4.0", "255.255.255"])
def test_versions_from_6_2_on_are_fine(version: str) -> None:
    assert facts({"redis_version": version}).errors == ()


def test_valkey_is_told_by_its_own_name() -> None:
    found = facts({"server_name": "valkey", "valkey_version": "8.1.0"})
    assert (found.software, found.version, found.errors) == ("valkey", "8.1.0", ())


@pytest.mark.parametrize(
    ("changed", "replicas", "config", "words"),
    [
        ({"maxmemory": "1000", "maxmemory_policy": "noeviction"}, 0, None, "new pages are refused"),
        ({"maxmemory_policy": None}, 0, None, "none of allkeys"),
        ({}, 1, None, "1 replicas are configured and 0 connected"),
        ({"connected_slaves": "2"}, 1, None, "a failover may forget"),
        ({"connected_slaves": "1"}, 1, {"repl-backlog-ttl": "3600"}, "CONFIG SET repl-backlog-ttl 0"),
        ({"rdb_last_bgsave_status": "err"}, 0, None, "Look at its disk"),
    ],
)
def test_what_will_hurt_is_a_warning(
    changed: dict[str, str | None], replicas: int, config: dict[str, str] | None, words: str
) -> None:
    found = facts(changed, replicas=replicas, config=config)
    assert found.errors == ()
    (warning,) = found.warnings
    assert words in warning


@pytest.mark.parametrize(
    ("connected", "candidates", "replicas", "wrong"),
    [
        (0, 1, 0, False), (1, 1, 0, True), (0, 2, 0, True), (1, 2, 1, False), (2, 1, 1, False), (2, 3, 1, False),
        (3, 1, 1, True), (1, 4, 1, True), (3, 1, 2, False), (3, 4, 3, False), (5, 1, 2, True),
    ],
)  # fmt: skip
def test_too_few_replicas_for_two_primaries_not_to_go_on_at_once_are_told_with_what_comes_of_it(
    connected: int, candidates: int, replicas: int, wrong: bool
) -> None:
    found = facts({"connected_slaves": str(connected)}, replicas=replicas, candidates=candidates)
    assert any("fences that are wrong, not only lost pages" in one for one in found.warnings) == wrong
    sides = [
        (left, max(candidates, connected + 1) - left) for left in range(1, max(candidates, connected + 1))
    ]
    assert wrong == any(min(side) > replicas for side in sides), "each side has a primary and k replicas"


def test_commands_that_are_not_permitted_are_errors() -> None:
    text = "".join(f"{name}:{value}\n" for name, value in INFO.items()).encode()
    found = read_facts([text, REFUSED, REFUSED, Exception("NOPERM wait"), None], server="s", replicas=0)
    (error,) = found.errors
    assert "WAIT" in error
    assert "ACL SETUSER" in error


@pytest.mark.asyncio
async def test_real_servers_are_fine(each_redis: RedisServer, logs: Logs) -> None:
    found = await logs.open(each_redis).check(deadline_ns=within())
    assert (found.errors, found.warnings) == ((), ())
    told = each_redis.info("server")
    assert found.version == told.get("valkey_version", told["redis_version"])
    assert found.policy == "noeviction"
    assert found.memory_bytes > 0


@pytest.mark.asyncio
async def test_a_real_server_that_could_evict_the_log_is_refused(servers: RedisServers, logs: Logs) -> None:
    server = servers.start(maxmemory="16mb", maxmemory_policy="allkeys-lru")
    log = logs.open(server)
    found = await log.check(deadline_ns=within())
    with pytest.raises(ConfigError, match="allkeys-lru"):
        found.demand()
    server.config(maxmemory_policy="volatile-lru")
    assert (await log.check(deadline_ns=within())).errors == ()


@pytest.mark.asyncio
async def test_a_replica_is_no_place_for_a_log(servers: RedisServers, logs: Logs) -> None:
    primary = servers.start()
    replica = servers.start_replica(primary)
    with pytest.raises(LogUnavailableError) as failed:
        await logs.open(replica).check(deadline_ns=within())
    assert failed.value.reason == "readonly"
    found = await logs.open(replica, primary).check(deadline_ns=within())
    assert found.server == primary.url
    assert found.connected_replicas == 1
    assert "fences that are wrong" in found.warnings[0]
    assert "repl-backlog-ttl" in found.warnings[1]


@pytest.mark.asyncio
async def test_databases_are_kept_apart(shared_redis: RedisServer, logs: Logs) -> None:
    zero, one = (
        logs.open(f"{shared_redis.tcp_url}/0", fleet="db"),
        logs.open(f"{shared_redis.tcp_url}/1", fleet="db"),
    )
    await append(zero)
    assert (await one.boot(deadline_ns=within())).tip.revision == 0
