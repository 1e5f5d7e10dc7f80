"""LocalLog passes the conformance suite, and what is its own: incarnations are random, waiting ends when it closes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from invalidation.local_log import LocalLog
from invalidation.log import InvalidationLog, LogUnavailableError
from invalidation.records import NO_DIGEST
from kv_types.clock import BoottimeClock
from tests.conformance.invalidation_log import InvalidationLogConformance
from tests.conformance.log_harness import SMALL_LIMITS, LogHarness, selected


class TestLocalLog(InvalidationLogConformance):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[LogHarness]:
        clock = BoottimeClock()
        log = LocalLog(clock=clock, limits=SMALL_LIMITS)

        async def append_raw(payload: bytes) -> None:
            log._append(log._now, payload)

        yield LogHarness(log=log, clock=clock, append_raw=append_raw)
        await log.close()


def test_it_is_a_log() -> None:
    log: InvalidationLog = LocalLog(clock=BoottimeClock())
    assert log


@pytest.mark.asyncio
async def test_each_incarnation_is_drawn_anew() -> None:
    drawn = [os.urandom(16) for _ in range(2)]
    source = iter(drawn)
    harness = LogHarness(
        log=LocalLog(clock=BoottimeClock(), random=lambda size: next(source)), clock=BoottimeClock()
    )
    first = (await harness.boot()).tip.incarnation
    await harness.log.fork(first, deadline_ns=harness.deadline_ns)
    assert [first, (await harness.boot()).tip.incarnation] == drawn


@pytest.mark.asyncio
async def test_a_closed_log_lets_nobody_wait_and_answers_nothing() -> None:
    harness = LogHarness(log=LocalLog(clock=BoottimeClock()), clock=BoottimeClock())
    waiting = asyncio.create_task(harness.log.woken(0, digest=NO_DIGEST, deadline_ns=harness.deadline_ns))
    await asyncio.sleep(0)
    await harness.log.close()
    assert await waiting == ()
    with pytest.raises(LogUnavailableError, match="closed"):
        await harness.append(selected(1))


@pytest.mark.asyncio
async def test_verbs_are_counted() -> None:
    harness = LogHarness(log=LocalLog(clock=BoottimeClock()), clock=BoottimeClock())
    await harness.append(selected(1), selected(2))
    await harness.boot()
    statistics = await harness.log.statistics(deadline_ns=harness.deadline_ns)
    assert statistics.counters == {"append": 2, "boot": 1, "statistics": 1}
