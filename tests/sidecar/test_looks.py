"""Looks at the log are shared: one call at a time, and nobody gets the answer of one that was sent before it asked."""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

import pytest

from cache_l3.address import parse_addresses
from invalidation.fence import Wait
from invalidation.log import FenceState, InvalidationLog, LogUnavailableError
from invalidation.records import LogEntry
from invalidation.redis.log import RedisLog, RedisLogSettings
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import LogIncarnation, Stamp
from kv_types.selectors import EVERYTHING
from sidecar.admin.fencing import Append, FenceResult, Fencing, Unconfirmed
from sidecar.admin.looks import Looks
from tests.support.fleet import TIMING
from tests.support.manual_time import settle
from tests.support.redis_servers import redis_servers

pytestmark = pytest.mark.asyncio
CLOCK = BoottimeClock()


class GatedLog:
    """Answers a look with its number when the test says so."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[None]] = []
        self.deadlines_ns: list[int] = []
        self.under_way = 0

    async def fence(self, *, deadline_ns: int) -> FenceState:
        assert not self.under_way, "two looks at once"
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent.append(gate)
        self.deadlines_ns.append(deadline_ns)
        number = len(self.sent)
        self.under_way += 1
        try:
            await gate
        finally:
            self.under_way -= 1
        return FenceState(
            tip=Stamp(LogIncarnation(bytes(16)), number), settled=True, members={}, confirmed=True, replicas=0
        )


def looks_at(log: GatedLog) -> Looks:
    return Looks(cast("InvalidationLog", log), CLOCK)


def ask(looks: Looks, *, within_s: float = 20.0) -> asyncio.Task[FenceState]:
    return asyncio.create_task(looks.look(deadline_ns=CLOCK.now_ns() + int(within_s * 1e9)))


async def number_of(asked: asyncio.Task[FenceState]) -> int:
    return (await asyncio.wait_for(asked, 10)).tip.revision


async def test_who_asks_while_a_look_is_under_way_gets_the_next_one_with_all_others() -> None:
    log = GatedLog()
    looks = looks_at(log)
    early = [ask(looks) for _ in range(2)]
    await settle()
    late = [ask(looks) for _ in range(5)]
    await settle()
    assert len(log.sent) == 1
    log.sent[0].set_result(None)
    assert [await number_of(one) for one in early] == [1, 1]
    await settle()
    assert not any(one.done() for one in late), "what was sent before they asked proves nothing to them"
    assert len(log.sent) == 2
    log.sent[1].set_result(None)
    assert [await number_of(one) for one in late] == [2] * 5
    await settle()
    assert len(log.sent) == 2, "nobody asks any more"


async def test_cancelling_who_asked_ends_nobody_elses_look() -> None:
    log = GatedLog()
    looks = looks_at(log)
    first, second = ask(looks), ask(looks)
    await settle()
    third, fourth = ask(looks), ask(looks)
    await settle()
    first.cancel()
    third.cancel()
    await settle()
    assert log.under_way == 1
    log.sent[0].set_result(None)
    assert await number_of(second) == 1
    await settle()
    log.sent[1].set_result(None)
    assert await number_of(fourth) == 2
    assert first.cancelled()
    assert third.cancelled()


async def test_a_look_that_nobody_waits_for_any_more_is_not_sent() -> None:
    log = GatedLog()
    looks = looks_at(log)
    first = ask(looks)
    await settle()
    second = ask(looks)
    await settle()
    second.cancel()
    await settle()
    log.sent[0].set_result(None)
    assert await number_of(first) == 1
    await settle()
    assert len(log.sent) == 1
    third = ask(looks)
    await settle()
    log.sent[1].set_result(None)
    assert await number_of(third) == 2


async def test_everybody_waits_no_longer_than_asked_and_a_call_has_a_deadline_of_its_own() -> None:
    log = GatedLog()
    looks = looks_at(log)
    patient, hasty = ask(looks, within_s=3600), ask(looks, within_s=0.02)
    with pytest.raises(LogUnavailableError, match="timeout"):
        await hasty
    assert not patient.done()
    assert log.deadlines_ns[0] <= CLOCK.now_ns() + Looks(cast("InvalidationLog", log), CLOCK).call_ns
    log.sent[0].set_result(None)
    assert await number_of(patient) == 1


@pytest.mark.parametrize("error", [LogUnavailableError("unreachable", "cut"), RuntimeError("a bug")])
async def test_a_failure_is_everybodys_who_waited_for_that_look_and_nobody_elses(error: Exception) -> None:
    log = GatedLog()
    looks = looks_at(log)
    first, second = ask(looks), ask(looks)
    await settle()
    third = ask(looks)
    await settle()
    log.sent[0].set_exception(error)
    for one in (first, second):
        with pytest.raises(type(error), match=str(error)):
            await one
    await settle()
    log.sent[1].set_result(None)
    assert await number_of(third) == 2


async def test_fences_that_wait_for_a_replica_keep_nobody_from_the_log_and_say_what_is_missing() -> None:
    with redis_servers() as servers:
        primary = servers.start()
        replica = servers.start_replica(primary)
        settings = RedisLogSettings(addresses=parse_addresses(primary.url), fleet="f", replicas=1)
        log = RedisLog(settings, clock=CLOCK)
        await log.boot(deadline_ns=CLOCK.now_ns() + 5 * 10**9)
        replica.kill()
        appended = asyncio.Semaphore(0)
        fencing = Fencing(
            log, me=b"m" * 16, looks=Looks(log, CLOCK), timing=TIMING, clock=CLOCK, appended=appended.release
        )
        waiting = [asyncio.create_task(_invalidate(fencing, timeout_s=3.0)) for _ in range(5)]
        for _ in waiting:
            await asyncio.wait_for(appended.acquire(), 20)
        newcomer = asyncio.create_task(_invalidate(fencing, timeout_s=1.0))
        results: list[Any] = await asyncio.gather(*waiting, newcomer, return_exceptions=True)
        await log.close()
    assert not [one for one in results if isinstance(one, BaseException)], results
    assert {one.unconfirmed for one in results} == {Unconfirmed.REPLICATION}
    assert all("replica" in one.why for one in results)


async def _invalidate(fencing: Fencing, *, timeout_s: float) -> FenceResult:
    append = Append(LogEntry(event=Selected(EVERYTHING)), os.urandom(16))
    return await fencing.append([append], wait=Wait.HIDDEN, timeout_s=timeout_s)
