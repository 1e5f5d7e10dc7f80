"""Logs of tests: a RedisLog on a test's server, deadlines, entries, and members that follow by hand."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cache_l3.address import parse_servers
from invalidation.log import (
    Appended,
    InvalidationLog,
    LogLimits,
    LogUnavailableError,
    Member,
    Renewal,
    RenewalStatus,
)
from invalidation.records import NO_DIGEST, LogEntry
from invalidation.redis.log import RedisLog, RedisLogSettings
from invalidation.redis.script import KEY_NAMES, script_arguments, script_keys, script_text
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import LogIncarnation, Stamp
from kv_types.selectors import Selector
from tests.support.redis_servers import RedisServer

CLOCK = BoottimeClock()

_Answer = TypeVar("_Answer")


def within(seconds: float = 5.0) -> int:
    """A deadline."""
    return CLOCK.now_ns() + int(seconds * 1e9)


def append_unknown(server: RedisServer, payload: bytes, *, fleet: str, limits: LogLimits) -> None:
    """Append as a later version might: a tombstone of what this one does not understand."""
    what = [os.urandom(16), payload, b"T", b"-", b"\xff\x00\x00"]
    arguments = script_arguments("append", *what, incarnation=os.urandom(16), replicas=0, limits=limits)
    server.client.eval(script_text(), len(KEY_NAMES), *script_keys(fleet), *arguments)


class Logs:
    """Opens logs, and closes all that it opened."""

    def __init__(self) -> None:
        self._opened: list[RedisLog] = []

    def open(
        self,
        *servers: RedisServer | str,
        fleet: str = "test",
        replicas: int = 0,
        limits: LogLimits | None = None,
    ) -> RedisLog:
        """A log on the first of these servers, or URLs, that works; or on a Cluster, by its URLs."""
        urls = ",".join(server if isinstance(server, str) else server.url for server in servers)
        named = parse_servers(urls)
        settings = RedisLogSettings(
            addresses=named.addresses, is_cluster=named.is_cluster, fleet=fleet, replicas=replicas,
            limits=limits or LogLimits(),
        )  # fmt: skip
        self._opened.append(RedisLog(settings, clock=CLOCK))
        return self._opened[-1]

    async def close(self) -> None:
        for log in self._opened:
            await log.close()


def entry(selector: Selector | None = None) -> LogEntry:
    return LogEntry(event=Selected(selector or Selector(model="m")))


async def append(log: InvalidationLog, what: LogEntry | None = None) -> Appended:
    return await log.append(what or entry(), request_id=os.urandom(16), deadline_ns=within())


@dataclass(slots=True)
class Follower:
    """A member that applies at once whatever it is told."""

    log: InvalidationLog
    id: bytes = field(default_factory=lambda: os.urandom(16))
    at: Stamp = field(default_factory=lambda: Stamp(LogIncarnation(bytes(16)), 0))
    digest: bytes = NO_DIGEST
    number: int = 0
    revisions: list[int] = field(default_factory=list)

    async def boot(self) -> None:
        boot = await self.log.boot(deadline_ns=within())
        self.at, self.digest = boot.tip, boot.digest

    def member(self) -> Member:
        revision = self.at.revision
        return Member(
            id=self.id, applied=self.at, digest=self.digest, acknowledged=revision, drained=revision
        )

    async def renew(self, *, seconds: float = 5.0) -> Renewal:
        self.number += 1
        renewal = await self.log.renew(self.member(), number=self.number, deadline_ns=within(seconds))
        if renewal.status is RenewalStatus.OK and renewal.records:
            self.at = replace(self.at, revision=renewal.records[-1].revision)
            self.digest = renewal.records[-1].digest
            self.revisions += [record.revision for record in renewal.records]
        return renewal


async def patiently(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """A server that waits for replicas up to a deadline may answer too late where the machine is busy."""
    for _ in range(4):
        with contextlib.suppress(LogUnavailableError):
            return await call()
    return await call()
