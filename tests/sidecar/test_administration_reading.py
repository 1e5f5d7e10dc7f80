"""Administration reads: the log, from anywhere and as it grows; the fleet's namespaces; dry runs."""

from __future__ import annotations

import os
from typing import cast

import pytest

from invalidation.log import InvalidationLog
from kv_types.limits import (
    FENCE_POLL_S_MAX,
    LOG_BATCH_RECORDS_MAX,
)
from kv_types.selectors import EVERYTHING
from sidecar.admin.administration import Administration
from tests.kv_types.samples import namespace
from tests.sidecar.test_administration import MODEL, administration
from tests.support.fleet import TIMING, ScriptedFleet, ScriptedMember
from tests.support.node import FakeStore

pytestmark = pytest.mark.asyncio


async def test_the_log_is_read_in_batches_and_from_anywhere() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    admin = administration(fleet)
    for _ in range(5):
        await admin.invalidate(
            [MODEL] * 300, reason="", author="", wait=None, timeout_s=1, request_id=os.urandom(16)
        )

    async def revisions(after: int, count: int, incarnation: bytes = b"") -> list[int]:
        found = admin.records(after=after, incarnation=incarnation, count=count, follow=False)
        return [stamp.revision async for stamp, _ in found]

    assert LOG_BATCH_RECORDS_MAX < 1500
    assert await revisions(0, 0) == list(range(1, 1501))
    assert await revisions(1490, 0) == list(range(1491, 1501))
    assert await revisions(0, 1200) == list(range(1, 1201))
    assert await revisions(1500, 0) == await revisions(9999, 0) == []
    assert await revisions(1490, 3, os.urandom(16)) == [1, 2, 3], "after a record of another incarnation: all"


@pytest.fixture
def short_follow(monkeypatch: pytest.MonkeyPatch) -> float:
    """One call follows for a minute, so that the test's clock has less to go through."""
    monkeypatch.setattr("sidecar.admin.administration.LOG_FOLLOW_S_MAX", 60.0)
    return 60.0


async def test_following_goes_on_across_incarnations_and_failures_and_ends_in_time(
    short_follow: float,
) -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    admin = administration(fleet)

    async def append() -> None:
        await admin.invalidate(
            [MODEL], reason="", author="", wait=None, timeout_s=1, request_id=os.urandom(16)
        )

    async def anew() -> None:
        fleet.log.before["read"] = 5
        await fleet.begin_anew()
        await append()

    await append()
    fleet.at_pause = [append, append, anew]
    begun_ns = fleet.clock.now_ns()
    stamps = [stamp async for stamp, _ in admin.records(after=0, incarnation=b"", count=0, follow=True)]
    assert [stamp.revision for stamp in stamps] == [1, 2, 3, 1]
    assert stamps[0].incarnation == stamps[2].incarnation != stamps[3].incarnation
    assert fleet.clock.now_ns() - begun_ns >= short_follow * 1e9
    assert fleet.log.calls["read"] < 20, "nobody reads a log that has not grown"


async def test_following_through_a_sidecar_that_is_behind_is_no_busy_loop(short_follow: float) -> None:
    """Its position is of another incarnation than the log's, which is news at every look."""
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    stuck = fleet.position

    class Behind(ScriptedFleet):
        position = stuck

    admin = Administration(
        Behind(*fleet.members), cast("InvalidationLog", fleet.log), FakeStore(), timing=TIMING, clock=fleet.clock,
        pause=fleet.pause,
    )  # fmt: skip
    await fleet.begin_anew()
    found = [stamp async for stamp, _ in admin.records(after=0, incarnation=b"", count=0, follow=True)]
    assert found == []
    assert fleet.log.calls["read"] <= short_follow / FENCE_POLL_S_MAX + 2


async def test_namespaces_are_the_fleets_and_our_own_each_once() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    ours, both, theirs = (namespace(model=name) for name in ("ours", "both", "theirs"))
    await fleet.local.know([both.canonical, theirs.canonical], deadline_ns=0)
    admin = administration(fleet, FakeStore(ours, both))
    known = await admin.namespaces()
    assert set(known.by_id) == {ours.id, both.id, theirs.id}
    assert known.incomplete == ""
    await fleet.local.know([b"garbage"], deadline_ns=0)
    known = await admin.namespaces()
    assert len(known.by_id) == 3
    assert "1 of the fleet's namespaces" in known.incomplete
    fleet.log.before["namespaces"] = 1
    known = await admin.namespaces()
    assert set(known.by_id) == {ours.id, both.id}
    assert "does not answer" in known.incomplete


async def test_a_dry_run_counts_and_changes_nothing() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    space, other = namespace(model="m"), namespace(model="other")
    store = FakeStore(space, other)
    stamp = fleet.position
    for number in range(3):
        store.add(space, type(space.id)(bytes([number]) * 32), None, stamp)  # type: ignore[arg-type]
    store.add(other, type(space.id)(b"o" * 32), None, stamp)  # type: ignore[arg-type]
    assert await administration(fleet, store).dry_run([MODEL]) == (3, 3000)
    assert await administration(fleet, store).dry_run([MODEL, EVERYTHING]) == (4, 4000)
    assert not await fleet.records()
