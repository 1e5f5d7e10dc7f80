"""Measures what a fleet costs the Redis of its log: renewals, one invalidation, one fence, with as many members as asked."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.own_redis import OwnRedis, own_redis
from cache_l3.address import parse_addresses
from invalidation.log import Member, Renewal, RenewalStatus
from invalidation.notes import MemberNote
from invalidation.records import LogEntry, LogRecord
from invalidation.redis.log import RedisLog, RedisLogSettings
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.limits import FLEET_MEMBERS_MAX, FRESHNESS_LEASE_S_DEFAULT
from kv_types.selectors import Selector

RENEWALS_PER_LEASE = 4
DEADLINE_S = 60.0
FILES_PER_MEMBER = 3
"""Its two connections, and what is spare."""

_clock = BoottimeClock()


def _deadline_ns() -> int:
    return _clock.now_ns() + int(DEADLINE_S * 1e9)


@dataclass
class Sidecar:
    """One member with connections of its own, as a sidecar has them."""

    log: RedisLog
    member: Member
    number: int = 0
    waiting: asyncio.Task[None] | None = field(default=None, repr=False)

    async def renew(self) -> Renewal:
        """Renew, and apply at once what comes."""
        self.number += 1
        renewal = await self.log.renew(self.member, number=self.number, deadline_ns=_deadline_ns())
        if renewal.status is not RenewalStatus.OK or not renewal.confirmed:
            raise RuntimeError(f"the log answered {renewal.status.value}, confirmed: {renewal.confirmed}")
        self._apply(renewal.records)
        return renewal

    def wait(self) -> None:
        """Begin to wait for news."""
        self.waiting = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        member = self.member
        news = await self.log.woken(member.applied.revision, digest=member.digest, deadline_ns=_deadline_ns())
        if not news:
            raise RuntimeError("the log grew by nothing that follows")
        self._apply(news)

    async def follow(self) -> None:
        """Acknowledge the news, once they came."""
        assert self.waiting is not None
        await self.waiting
        await self.renew()

    def _apply(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            self.member = replace(
                self.member,
                applied=replace(self.member.applied, revision=record.revision),
                digest=record.digest,
                acknowledged=record.revision,
                drained=record.revision,
            )


async def _join(server: OwnRedis, *, replicas: int, members: int) -> list[Sidecar]:
    sidecars = []
    note = MemberNote(
        lease_ns=3_000_000_000, engines_keep=0, host="node-0001", pid=4321, version="0.1.0"
    ).encode()
    for _ in range(members):
        settings = RedisLogSettings(addresses=parse_addresses(server.url), fleet="load", replicas=replicas)
        log = RedisLog(settings, clock=_clock)
        boot = await log.boot(deadline_ns=_deadline_ns())
        member = Member(
            id=os.urandom(16), applied=boot.tip, digest=boot.digest, acknowledged=0, drained=0, note=note
        )
        sidecars.append(Sidecar(log, member))
    return sidecars


@dataclass(frozen=True)
class Cost:
    """What `times` of something cost the server: processor time of its process, and time inside the script."""

    times: int
    cpu_s: float
    script_us: float
    wall_s: float

    @property
    def cpu_us_each(self) -> float:
        """Microseconds of processor time for one."""
        return self.cpu_s * 1e6 / self.times

    @property
    def script_us_each(self) -> float:
        """Microseconds inside the script for one."""
        return self.script_us / self.times


async def _cost(server: OwnRedis, times: int, work: Callable[[], Awaitable[object]]) -> Cost:
    cpu_s, (_, script_us), began = server.cpu_s(), server.script_us(), time.perf_counter()
    await work()
    ended = time.perf_counter()
    return Cost(times, server.cpu_s() - cpu_s, server.script_us()[1] - script_us, ended - began)


async def _all_renew(sidecars: Sequence[Sidecar], *, at_once: int) -> None:
    """Everybody once, so many in flight at a time: renewals of a fleet come spread out, not in one burst."""
    for first in range(0, len(sidecars), at_once):
        await asyncio.gather(*(sidecar.renew() for sidecar in sidecars[first : first + at_once]))


async def _invalidate(server: OwnRedis, sidecars: Sequence[Sidecar]) -> float:
    """One record: everybody waits, it comes to them, their renewals acknowledge it.

    Returns the seconds of the server's processor time from its append until everybody had it.
    """
    revision = sidecars[0].member.applied.revision
    for sidecar in sidecars:
        sidecar.wait()
    until_ns = _deadline_ns()
    while server.client.info("clients")["blocked_clients"] < len(sidecars):
        if _clock.now_ns() > until_ns:
            raise RuntimeError("members that were to wait for news do not")
        await asyncio.sleep(0.001)
    entry = LogEntry(
        event=Selected(Selector(model="a-model", weights_version=str(revision))), reason="measured"
    )
    began_s = server.cpu_s()
    await sidecars[0].log.append(entry, request_id=os.urandom(16), deadline_ns=_deadline_ns())
    heard_s = server.cpu_s() - began_s  # the server has told everybody before it answers anything else
    await asyncio.gather(*(sidecar.follow() for sidecar in sidecars))
    return heard_s


async def _fence(sidecar: Sidecar, times: int) -> None:
    for _ in range(times):
        await sidecar.log.fence(deadline_ns=_deadline_ns())


async def measure(*, members: int, rounds: int, replicas: int) -> dict[str, float]:
    """Figures of one fleet, by key; `replicas` (0 or 1) confirm each renewal."""
    with own_redis() as server:
        if not replicas:
            return await _measure(server, members=members, rounds=rounds, replicas=0)
        with own_redis(follows=server):
            return await _measure(server, members=members, rounds=rounds, replicas=replicas)


async def _measure(server: OwnRedis, *, members: int, rounds: int, replicas: int) -> dict[str, float]:
    sidecars = await _join(server, replicas=replicas, members=members)
    try:
        await _all_renew(sidecars, at_once=16)
        renewal = await _cost(
            server, members * rounds, lambda: _rounds(rounds, lambda: _all_renew(sidecars, at_once=16))
        )
        await _invalidate(server, sidecars)  # opens the connections that wait
        heard_s: list[float] = []

        async def invalidate() -> None:
            heard_s.append(await _invalidate(server, sidecars))

        record = await _cost(server, rounds, lambda: _rounds(rounds, invalidate))
        fence = await _cost(server, rounds * 10, lambda: _fence(sidecars[0], rounds * 10))
    finally:
        for sidecar in sidecars:
            await sidecar.log.close()
    per_s = members * RENEWALS_PER_LEASE / FRESHNESS_LEASE_S_DEFAULT
    return {
        "members": float(members),
        "replicas": float(replicas),
        "renewals_per_s": per_s,
        "renew_script_us": renewal.script_us_each,
        "renew_cpu_us": renewal.cpu_us_each,
        "renewals_core_share": per_s * renewal.cpu_us_each / 1e6,
        "record_heard_cpu_ms": sum(heard_s) * 1e3 / rounds,
        "record_cpu_ms": record.cpu_us_each / 1e3,
        "record_acknowledged_ms": record.wall_s * 1e3 / rounds,
        "fence_script_us": fence.script_us_each,
        "fence_cpu_us": fence.cpu_us_each,
    }


async def _rounds(rounds: int, work: Callable[[], Awaitable[object]]) -> None:
    for _ in range(rounds):
        await work()


ROWS: tuple[tuple[str, str, str], ...] = (
    (
        "renewals_per_s",
        f"renewals a second, {RENEWALS_PER_LEASE} a lease of {FRESHNESS_LEASE_S_DEFAULT:g} s",
        "/s",
    ),
    ("renew_script_us", "one renewal, inside the script", "µs"),
    ("renew_cpu_us", "one renewal, processor time of the server", "µs"),
    ("renewals_core_share", "all renewals, share of one core", "%"),
    ("record_heard_cpu_ms", "one record, until everybody has it, processor time of the server", "ms"),
    ("record_cpu_ms", "one record, until everybody has acknowledged it, processor time of the server", "ms"),
    (
        "record_acknowledged_ms",
        "one record, until everybody has acknowledged it, all members in one process",
        "ms",
    ),
    ("fence_script_us", "one look of a fence at the members, inside the script", "µs"),
    ("fence_cpu_us", "one look of a fence at the members, processor time of the server", "µs"),
)


def table(results: Sequence[dict[str, Any]]) -> Table:
    """The figures side by side, one column a number of replicas."""
    members = int(results[0]["members"])
    shown = Table(title=f"What a fleet of {members} sidecars costs the Redis of its log")
    shown.add_column("what")
    for result in results:
        shown.add_column(f"{int(result['replicas'])} replicas", justify="right")
    for key, what, unit in ROWS:
        scale = 100.0 if unit == "%" else 1.0
        shown.add_row(what, *(f"{result[key] * scale:,.1f} {unit}" for result in results))
    return shown


def main(
    members: Annotated[int, typer.Option(min=1, max=FLEET_MEMBERS_MAX)] = 1000,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, figures by key.")] = False,
) -> None:
    """Measure a fleet without a replica, and with one that confirms each renewal."""
    allow_files(members * FILES_PER_MEMBER + 256)
    results = [asyncio.run(measure(members=members, rounds=rounds, replicas=replicas)) for replicas in (0, 1)]
    if as_json:
        json.dump({"without_replica": results[0], "with_replica": results[1]}, sys.stdout)
        print()
    else:
        Console().print(table(results))


def allow_files(count: int) -> None:
    """Let this process open so many files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count <= hard or hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


if __name__ == "__main__":
    typer.run(main)
