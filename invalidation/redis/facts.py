"""What a Redis server says of itself, and whether the log can rely on it: errors with remedies, warnings, facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cache_l3.connections import Command
from cache_l3.errors import reason_of
from cache_l3.server_info import parse_info
from invalidation.log import LogUnavailableError
from invalidation.redis.errors import RIGHTS, unavailable
from invalidation.redis.replies import MalformedReplyError
from kv_types.errors import ConfigError
from kv_types.limits import REPLICAS_MAX

VERSION_MIN = (6, 2)

_VERSION = re.compile(r"(\d+)\.(\d+)")
_REPLICA = re.compile(r"slave\d+")
_CONFIGURED = ("repl-backlog-ttl", "maxmemory-policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """One server as it was found. `errors` say what the log can't live with and what to do; `warnings` what will hurt."""

    server: str
    software: str
    version: str
    policy: str
    memory_bytes_max: int
    """Its limit of memory, 0 for none."""
    memory_bytes: int
    connected_replicas: int
    synced_replicas: int
    """Those of them that have all data and follow, so that WAIT may count them."""
    configured_replicas: int
    persistence: str
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def demand(self) -> None:
        """Raise ConfigError if there are errors, with all of them."""
        if self.errors:
            raise ConfigError(f"the log can't be kept on {self.server}: " + "; ".join(self.errors))


def facts_commands(stream: str) -> Sequence[Command]:
    """What a server is asked. Only INFO must be permitted beside what the log itself needs (managed ones refuse CONFIG)."""
    return [
        ("INFO",),
        *(("CONFIG", "GET", name) for name in _CONFIGURED),
        ("WAIT", "0", "1"),
        ("XREAD", "COUNT", "1", "STREAMS", stream, "0-0"),
    ]


def read_facts(
    replies: Sequence[object], *, server: str, replicas: int, candidates: int = 1, promised: int | None = None
) -> RedisFacts:
    """Judge a server by its replies to `facts_commands`; `replicas` is k (rule R10), `candidates` how many are named.

    `promised`: the least k that the settings say, where it is taken for a Cluster's.
    Raises LogUnavailableError when it is loading, a replica, denies INFO, or hasn't the log's slot; MalformedReplyError.
    """
    info_reply, *configured, waited, read = replies
    if isinstance(info_reply, Exception):
        raise unavailable(info_reply, server=server)
    if not isinstance(info_reply, bytes):
        raise MalformedReplyError("INFO was answered with no text")
    info = parse_info(info_reply.decode(errors="replace"))
    if info.get("role") == "slave":
        raise LogUnavailableError("readonly", f"{server} is a replica; name its primary too")
    told = _configuration(configured)
    if isinstance(read, Exception) and reason_of(read) == "moved":
        raise unavailable(read, server=server)
    errors = [error for judge in _ERRORS if (error := judge(info, told))]
    connected = _number(info, "connected_slaves")
    fails_over = promised == 0 and connected > 0
    if fails_over:
        errors.append(_fails_over(connected))
    for what, reply in (("WAIT", waited), ("XREAD", read)):
        if isinstance(reply, Exception):
            errors.append(f"it refuses {what} ({reply}); {RIGHTS}")
    return RedisFacts(
        server=server,
        software=info.get("server_name", "redis"),
        version=info.get("valkey_version") or info.get("redis_version", "unknown"),
        policy=_policy(info, told),
        memory_bytes_max=_number(info, "maxmemory"),
        memory_bytes=_number(info, "used_memory"),
        connected_replicas=connected,
        synced_replicas=sum(
            1
            for name, state in info.items()
            if _REPLICA.fullmatch(name) and "state=online" in state.split(",")
        ),
        configured_replicas=replicas,
        persistence=_persistence(info),
        errors=tuple(errors),
        warnings=(
            *([_LONE_NODE] if promised is None and info.get("cluster_enabled") == "1" else ()),
            *(() if fails_over else _warnings_of_replicas(connected, replicas, candidates)),
            *_warnings(info, told, has_replicas=bool(connected or replicas)),
        ),
    )


def _configuration(replies: Sequence[object]) -> Mapping[str, str]:
    """Settings by name, without those that the server does not tell."""
    told = {}
    for reply in replies:
        if isinstance(reply, list) and len(reply) == 2 and all(isinstance(part, bytes) for part in reply):
            told[reply[0].decode(errors="replace")] = reply[1].decode(errors="replace")
    return told


def _number(info: Mapping[str, str], name: str) -> int:
    value = info.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else 0


def _policy(info: Mapping[str, str], told: Mapping[str, str]) -> str:
    return info.get("maxmemory_policy") or told.get("maxmemory-policy", "unknown")


def _too_old(info: Mapping[str, str], told: Mapping[str, str]) -> str | None:
    match = _VERSION.match(info.get("redis_version", ""))
    if match is None:
        return "it does not tell its version in INFO, so it is neither Redis nor Valkey; use one of them"
    if (int(match[1]), int(match[2])) < VERSION_MIN:
        return f"its version is {info['redis_version']}; use Redis 6.2 or later, or Valkey"
    return None


def _without_history(info: Mapping[str, str], told: Mapping[str, str]) -> str | None:
    if info.get("master_replid") and info.get("run_id"):
        return None
    return (
        "its INFO lacks master_replid or run_id, by which a lost tail is noticed; use Redis or Valkey itself"
    )


def _evicts(info: Mapping[str, str], told: Mapping[str, str]) -> str | None:
    policy = _policy(info, told)
    if not policy.startswith("allkeys-"):
        return None
    return (
        f"its eviction policy {policy} could evict the log; set one that evicts only what has a time to live: "
        "CONFIG SET maxmemory-policy volatile-lru, and in its configuration file too"
    )


def _fails_over(connected: int) -> str:
    return (
        f"{connected} replicas are connected, a Cluster fails over to them by itself, and log_replicas is 0: after a failover "
        "whose old primary lives on, a sidecar that still reaches that one would go on serving what fences call hidden. Say "
        f"how many replicas must confirm, as many as there are: --log-replicas {min(connected, REPLICAS_MAX)}"
    )


_LONE_NODE = (
    "it is part of a Cluster, in which the log is not looked for where it moves or fails over: name it by redis+cluster://, "
    "or rediss+cluster:// for TLS"
)


_ERRORS: tuple[Callable[[Mapping[str, str], Mapping[str, str]], str | None], ...] = (
    _too_old,
    _without_history,
    _evicts,
)


def _warnings_of_replicas(connected: int, replicas: int, candidates: int) -> list[str]:
    found = []
    if connected < replicas:
        found.append(
            f"{replicas} replicas are configured and {connected} connected: until they are, nothing is fresh and no fence "
            "is reached. Attach them, or lower the number: stratakv replicas set K"
        )
    servers = max(candidates, connected + 1)
    if 2 * (replicas + 1) <= servers:  # enough for two primaries at once, each with its k replicas
        found.append(
            f"{servers} servers can hold the log and {replicas} replicas must confirm: a failover whose old primary lives on "
            "makes fences that are wrong, not only lost pages, as sidecars that still reach that one go on serving. "
            "Say how many replicas there are, by stratakv replicas set K and --log-replicas K; where there is none, name this "
            "server alone"
        )
    elif connected > replicas:
        found.append(
            f"{connected} replicas are connected and {replicas} configured: a failover may forget what nobody confirmed, "
            "which costs a purge. Say so: stratakv replicas set K"
        )
    return found


def _warnings(info: Mapping[str, str], told: Mapping[str, str], *, has_replicas: bool) -> list[str]:
    found = []
    policy, most = _policy(info, told), _number(info, "maxmemory")
    if policy == "noeviction" and most:
        found.append(
            f"with the policy noeviction and {most} bytes at most, pages that fill it stay: the log goes on, "
            "but new pages are refused. Set maxmemory-policy volatile-lru"
        )
    if policy == "unknown":
        found.append("it does not tell its eviction policy; make sure that it is none of allkeys-*")
    backlog_s = told.get("repl-backlog-ttl", "0")
    if has_replicas and backlog_s != "0":
        found.append(
            f"{backlog_s} s after its last replica left, it takes a new replication id, which purges the fleet's pages. "
            "CONFIG SET repl-backlog-ttl 0"
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        found.append(
            "its last snapshot failed: it may refuse all writes, and with them all hits, until one succeeds. "
            "Look at its disk"
        )
    return found


def _persistence(info: Mapping[str, str]) -> str:
    kept = "an append-only file" if info.get("aof_enabled") == "1" else "snapshots, if any are configured"
    return f"{kept}; a restart begins a new incarnation whatever it restores"
