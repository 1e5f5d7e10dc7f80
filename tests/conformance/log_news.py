"""The part of InvalidationLogConformance on waiting: what comes with a wake-up, and what does not."""

from __future__ import annotations

import asyncio

import pytest

from invalidation.records import NO_DIGEST, LogRecord
from tests.conformance.log_harness import SMALL_LIMITS, LogHarness, selected


@pytest.mark.asyncio
class LogNewsConformance:
    """Every test gets an empty log by the fixture `harness`."""

    async def test_waiting_ends_with_a_record_or_with_the_deadline(self, harness: LogHarness) -> None:
        tip = await harness.append(selected(1))
        first = await self._news(harness, 0, NO_DIGEST)
        assert first is not None, "there is one already"
        assert [(record.revision, record.event) for record in first] == [(1, selected(1))]
        digest = first[0].digest
        assert digest == (await harness.boot()).digest
        quiet = await harness.log.woken(tip.revision, digest=digest, deadline_ns=harness.soon_ns)
        assert quiet is None
        waiting = asyncio.create_task(self._news(harness, tip.revision, digest))
        await asyncio.sleep(0)
        await harness.append(selected(2))
        second = await waiting
        assert second is not None
        assert [(record.revision, record.event) for record in second] == [(2, selected(2))]
        assert second[0].digest == (await harness.boot()).digest

    async def test_news_that_do_not_follow_wake_and_tell_nothing(self, harness: LogHarness) -> None:
        await harness.append(*(selected(number) for number in range(SMALL_LIMITS.records + 2)))
        assert await self._news(harness, 0, NO_DIGEST) == (), "what follows is kept no longer"
        boot = await harness.boot()
        await harness.append(selected(1))
        assert await self._news(harness, boot.tip.revision, b"x" * 20) == (), "another history"
        known = await self._news(harness, boot.tip.revision, boot.digest)
        assert known is not None
        assert len(known) == 1

    async def test_news_come_in_batches(self, harness: LogHarness) -> None:
        boot = await harness.boot()
        await harness.append(*(selected(number) for number in range(SMALL_LIMITS.batch + 2)))
        revision, digest, sizes = boot.tip.revision, boot.digest, []
        while revision < SMALL_LIMITS.batch + 2:
            news = await self._news(harness, revision, digest)
            assert news
            sizes.append(len(news))
            revision, digest = news[-1].revision, news[-1].digest
        assert sizes == [SMALL_LIMITS.batch, 2]

    async def _news(self, harness: LogHarness, after: int, digest: bytes) -> tuple[LogRecord, ...] | None:
        news = await harness.log.woken(after, digest=digest, deadline_ns=harness.deadline_ns)
        return None if news is None else tuple(news)
