"""LogPositionsConformance: reading after a revision, and numbers and ids at their ends; part of the log's suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from invalidation.records import NO_DIGEST, LogEntry
from kv_types.errors import InvalidArgumentError
from kv_types.ids import Stamp
from kv_types.limits import LOG_REVISION_MAX
from tests.conformance.log_harness import SMALL_LIMITS, LogHarness, selected

AHEAD = (2**31, 2**32 - 1, LOG_REVISION_MAX - 1, LOG_REVISION_MAX)
"""Revisions that no log of a test reaches."""
BEYOND = (-1, LOG_REVISION_MAX + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64)
"""Numbers that are no revision."""


@pytest.mark.asyncio
class LogPositionsConformance:
    """Every test gets an empty log by the fixture `harness`."""

    @pytest.mark.parametrize("size", [0, 15, 17])
    async def test_ids_of_the_wrong_size_are_errors(self, harness: LogHarness, size: int) -> None:
        member = replace(await harness.member(), id=bytes(size))
        with pytest.raises(InvalidArgumentError):
            await harness.log.renew(member, number=1, deadline_ns=harness.deadline_ns)
        with pytest.raises(InvalidArgumentError):
            await harness.log.append(
                LogEntry(event=selected(0)), request_id=bytes(size), deadline_ns=harness.deadline_ns
            )
        assert (await harness.boot()).tip.revision == 0

    async def test_reading_begins_after_a_revision_and_ends_at_the_count(self, harness: LogHarness) -> None:
        appended = SMALL_LIMITS.records + 7
        tip = await harness.append(*(selected(number) for number in range(appended)))

        async def read(after: int, count: int) -> list[int]:
            stamp, records = await harness.log.read(after, count=count, deadline_ns=harness.deadline_ns)
            assert stamp == tip
            return [record.revision for record in records]

        assert await read(appended - 3, 2) == [appended - 2, appended - 1]
        assert await read(appended, 2) == []
        assert await read(appended + 5, 2) == []
        assert await read(0, 2) == [8, 9], "the oldest that is kept"

    async def test_after_what_the_log_has_not_reached_there_is_nothing(self, harness: LogHarness) -> None:
        tip = await harness.append(*(selected(number) for number in range(SMALL_LIMITS.records + 3)))
        for after in (tip.revision, tip.revision + 1, *AHEAD):
            for count in (1, LOG_REVISION_MAX, 2**64):
                read = await harness.log.read(after, count=count, deadline_ns=harness.deadline_ns)
                assert read == (tip, read[1]), after
                assert list(read[1]) == [], after
        for after in (tip.revision + 1, LOG_REVISION_MAX):
            news = await harness.log.woken(after, digest=NO_DIGEST, deadline_ns=harness.soon_ns)
            assert news is None, after

    @pytest.mark.parametrize("number", BEYOND)
    async def test_what_is_no_revision_is_an_error(self, harness: LogHarness, number: int) -> None:
        log, deadline_ns = harness.log, harness.deadline_ns
        member = await harness.member()
        away = replace(member, applied=Stamp(member.applied.incarnation, number))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: log.read(number, count=1, deadline_ns=deadline_ns),
            lambda: log.woken(number, digest=NO_DIGEST, deadline_ns=deadline_ns),
            lambda: log.renew(member, number=number, deadline_ns=deadline_ns),
            lambda: log.renew(away, number=1, deadline_ns=deadline_ns),
            lambda: log.renew(replace(member, acknowledged=number), number=1, deadline_ns=deadline_ns),
            lambda: log.renew(replace(member, drained=number), number=1, deadline_ns=deadline_ns),
            lambda: log.leave(member.id, number=number, drained=True, deadline_ns=deadline_ns),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError, match=str(number)):
                await call()
        state = await log.fence(deadline_ns=deadline_ns)
        assert (state.tip.revision, dict(state.members)) == (0, {})

    @pytest.mark.parametrize("count", [0, -1, -(2**63)])
    async def test_no_count_of_records_is_an_error(self, harness: LogHarness, count: int) -> None:
        with pytest.raises(InvalidArgumentError, match="count"):
            await harness.log.read(0, count=count, deadline_ns=harness.deadline_ns)
