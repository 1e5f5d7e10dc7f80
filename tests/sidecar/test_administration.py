"""Administration over a real log in memory: what is appended, what is waited for, and what is said when it isn't reached."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import replace
from typing import Any, cast

import pytest

from invalidation.fence import Wait
from invalidation.log import InvalidationLog
from kv_types.errors import InvalidArgumentError, LimitExceededError, LogUnreachableError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import Stamp
from kv_types.limits import (
    FENCE_INCARNATIONS_MAX,
    INVALIDATE_SELECTORS_MAX,
)
from kv_types.selectors import EVERYTHING, Selector
from sidecar.admin.administration import Administration
from sidecar.admin.fencing import FenceResult, Unconfirmed
from tests.support.fleet import TIMING, WINDOW_S, ScriptedFleet, ScriptedMember
from tests.support.node import FakeStore

pytestmark = pytest.mark.asyncio
MODEL = Selector(model="m")


def administration(fleet: ScriptedFleet, store: FakeStore | None = None) -> Administration:
    return Administration(
        fleet, cast("InvalidationLog", fleet.log), store or FakeStore(), timing=TIMING, clock=fleet.clock,
        pause=fleet.pause, wall_ms=lambda: 1234,
    )  # fmt: skip


async def invalidate(
    fleet: ScriptedFleet,
    *selectors: Selector,
    wait: Wait | None = Wait.HIDDEN,
    timeout_s: float = 30.0,
    request_id: bytes | None = None,
) -> FenceResult:
    return await administration(fleet).invalidate(
        selectors or (MODEL,), reason="why", author="who", wait=wait, timeout_s=timeout_s,
        request_id=request_id or os.urandom(16),
    )  # fmt: skip


async def announce(
    fleet: ScriptedFleet, model: str, version: str, *, old: str | None = None, request_id: bytes = bytes(16)
) -> FenceResult:
    return await administration(fleet).announce(
        model, version, invalidate_version=old, reason="", author="", wait=Wait.HIDDEN, timeout_s=30,
        request_id=request_id,
    )  # fmt: skip


async def test_one_record_a_selector_in_order_with_who_and_why() -> None:
    fleet = await ScriptedFleet(ScriptedMember(), ScriptedMember()).settled()
    result = await invalidate(fleet, MODEL, EVERYTHING)
    assert result.unconfirmed is None
    assert not result.gone
    assert [stamp.revision for stamp in result.stamps] == [1, 2]
    records = await fleet.records()
    assert [record.event for record in records] == [Selected(MODEL), Selected(EVERYTHING)]
    assert {
        (record.entry.reason, record.entry.author, record.entry.appended_wall_ms) for record in records
    } == {("why", "who", 1234)}


async def test_a_member_that_does_not_follow_is_named_when_time_is_up() -> None:
    behind = ScriptedMember()
    fleet = await ScriptedFleet(ScriptedMember(), behind).settled()
    behind.acknowledges = False
    result = await invalidate(fleet, timeout_s=12)
    assert result.unconfirmed is Unconfirmed.MEMBERS
    assert set(result.missing) == {behind.id}
    assert len(result.stamps) == 1
    assert 12_000 <= result.waited_ms < 12_500
    behind.acknowledges = True
    waited = await administration(fleet).await_fence(result.stamps[-1], wait=Wait.HIDDEN, timeout_s=12)
    assert waited.unconfirmed is None


async def test_a_silent_member_is_given_up_after_the_window_and_never_waited_for_again() -> None:
    silent = ScriptedMember()
    fleet = await ScriptedFleet(ScriptedMember(), silent).settled()
    silent.is_silent = True
    result = await invalidate(fleet)
    assert result.unconfirmed is None
    assert set(result.gone) == {silent.id}
    assert WINDOW_S * 1000 <= result.waited_ms < WINDOW_S * 1000 + 1000
    again = await invalidate(fleet)
    assert set(again.gone) == {silent.id}
    assert again.waited_ms < 1000


async def test_a_silent_member_whose_engines_keep_their_own_cache_is_never_given_up() -> None:
    silent = ScriptedMember(engines_keep=1)
    fleet = await ScriptedFleet(ScriptedMember(), silent).settled()
    silent.is_silent = True
    result = await invalidate(fleet)
    assert result.unconfirmed is Unconfirmed.MEMBERS
    assert set(result.missing) == {silent.id}


async def test_drained_is_never_concluded_from_silence_until_somebody_who_knows_says_so() -> None:
    silent, self_ = ScriptedMember(), ScriptedMember()
    fleet = await ScriptedFleet(self_, silent).settled()
    silent.is_silent = True
    assert (await invalidate(fleet)).unconfirmed is None  # hidden gives it up
    for _ in range(2):
        drained = await invalidate(fleet, wait=Wait.DRAINED)
        assert drained.unconfirmed is Unconfirmed.MEMBERS
        assert set(drained.missing) == {silent.id}
    assert await administration(fleet).forget_members([], all_gone=True) == [silent.id]
    assert (await invalidate(fleet, wait=Wait.DRAINED)).unconfirmed is None


async def test_drained_waits_for_what_is_in_use() -> None:
    busy = ScriptedMember()
    fleet = await ScriptedFleet(busy).settled()
    busy.drains = False
    assert (await invalidate(fleet)).unconfirmed is None
    result = await invalidate(fleet, wait=Wait.DRAINED, timeout_s=2)
    assert (result.unconfirmed, set(result.missing)) == (Unconfirmed.MEMBERS, {busy.id})
    busy.drains = True
    assert (await invalidate(fleet, wait=Wait.DRAINED)).unconfirmed is None


async def test_members_that_renew_cannot_be_forgotten() -> None:
    silent, alive = ScriptedMember(), ScriptedMember()
    fleet = await ScriptedFleet(alive, silent).settled()
    silent.is_silent = True
    forgotten = await administration(fleet).forget_members(
        [alive.id, silent.id, os.urandom(16)], all_gone=False
    )
    assert forgotten == [silent.id]
    assert set((await administration(fleet).members()).state.members) == {alive.id}


async def test_without_the_configured_replicas_nothing_is_confirmed() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    await administration(fleet).set_replicas(1)
    result = await invalidate(fleet, timeout_s=1)
    assert result.unconfirmed is Unconfirmed.REPLICATION
    assert "replication not confirmed" in result.why
    assert len(result.stamps) == 1
    with pytest.raises(InvalidArgumentError, match="17"):
        await administration(fleet).set_replicas(17)


async def test_a_young_incarnation_is_waited_for() -> None:
    fleet = ScriptedFleet(ScriptedMember())
    await fleet.renew()
    result = await invalidate(fleet, timeout_s=1)
    assert result.unconfirmed is Unconfirmed.SETTLING
    fleet.at_pause = [fleet.settle]
    assert (await invalidate(fleet, timeout_s=1)).unconfirmed is None


async def test_records_are_appended_again_to_a_log_that_begins_anew() -> None:
    """R12: a changed incarnation holds none of them, so the promise would be about nothing."""
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    behind = fleet.members[0]
    behind.acknowledges = False

    async def anew() -> None:
        await fleet.begin_anew()
        behind.acknowledges = True
        await fleet.settle()

    fleet.at_pause = [anew]
    before = fleet.position
    result = await invalidate(fleet, MODEL, EVERYTHING)
    assert result.unconfirmed is None
    assert (
        {stamp.incarnation for stamp in result.stamps} == {fleet.position.incarnation} != {before.incarnation}
    )
    assert [record.event for record in await fleet.records()] == [Selected(MODEL), Selected(EVERYTHING)]


def begin_anew_after(fleet: ScriptedFleet, appends: int) -> None:
    """Have the log begin anew, and settle at once, after so many appends; members that stand still stay behind."""
    real = fleet.local.append

    async def append(*arguments: Any, **named: Any) -> Any:
        appended = await real(*arguments, **named)
        if fleet.log.calls["append"] == appends:
            await fleet.begin_anew()
            await fleet.settled()
        return appended

    fleet.local.append = append  # type: ignore[method-assign]


async def test_a_log_that_begins_anew_between_two_records_gets_both_in_order() -> None:
    """Workers that hear of new weights after the old ones were invalidated would make pages of the old ones meanwhile."""
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    begin_anew_after(fleet, 1)
    result = await announce(fleet, "m", "2", old="1", request_id=bytes(16))
    assert result.unconfirmed is None
    events = [record.event for record in await fleet.records()]
    assert events[-2:] == [WeightsAnnounced("m", "2"), Selected(Selector(model="m", weights_version="1"))]
    assert [stamp.revision for stamp in result.stamps] == [len(events) - 1, len(events)]
    again = await announce(fleet, "m", "2", old="1", request_id=bytes(16))
    assert (again.stamps, len(await fleet.records())) == (result.stamps, len(events))


async def test_a_fence_waits_for_the_newest_of_its_records_whatever_their_order() -> None:
    """The second record lands in the new incarnation first, and the first one behind it: both must be acknowledged."""
    member = ScriptedMember()
    fleet = await ScriptedFleet(member).settled()
    begin_anew_after(fleet, 1)

    async def stand_still() -> None:
        member.acknowledges = (
            fleet.log.calls["append"] <= 2
        )  # the one record that the new incarnation has by then

    fleet.at_pause = [stand_still] * 10_000
    result = await invalidate(fleet, MODEL, Selector(model="n"), timeout_s=3)
    assert result.unconfirmed is Unconfirmed.MEMBERS
    assert set(result.missing) == {member.id}


async def test_a_log_that_always_begins_anew_is_given_up_and_that_is_said() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    fleet.members[0].acknowledges = False
    fleet.at_pause = [fleet.begin_anew] * 100
    result = await invalidate(fleet)
    assert result.unconfirmed is Unconfirmed.INCARNATION
    assert result.stamps == (), "none of them stands"
    assert fleet.log.calls["append"] == FENCE_INCARNATIONS_MAX


def answer_as_an_old_primary(fleet: ScriptedFleet, *, servers: int = 1) -> None:
    """Looks are answered, unconfirmed, of another incarnation; appends reach one server after the other."""
    fence, append, appends = fleet.local.fence, fleet.local.append, itertools.count()
    elsewhere = type(fleet.position.incarnation)(os.urandom(16))

    async def looked(**terms: Any) -> Any:
        return replace(await fence(**terms), tip=Stamp(elsewhere, 0), confirmed=False, replicas=1)

    async def appended(*terms: Any, **more: Any) -> Any:
        told = await append(*terms, **more)
        at = told.stamp if next(appends) % servers == 0 else Stamp(elsewhere, told.stamp.revision)
        return replace(told, stamp=at)

    fleet.local.fence, fleet.local.append = looked, appended  # type: ignore[method-assign]


async def test_an_answer_that_nobody_confirms_appends_nothing_again_and_names_the_remedy() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    answer_as_an_old_primary(fleet)
    result = await invalidate(fleet, timeout_s=3)
    assert (result.unconfirmed, len(result.stamps)) == (Unconfirmed.REPLICATION, 1)
    assert fleet.log.calls["append"] == 1
    waited = await administration(fleet).await_fence(result.stamps[0], wait=Wait.HIDDEN, timeout_s=1)
    assert waited.unconfirmed is Unconfirmed.REPLICATION


async def test_two_servers_of_which_none_is_confirmed_are_no_log_that_begins_anew() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    answer_as_an_old_primary(fleet, servers=2)
    result = await invalidate(fleet, MODEL, EVERYTHING, timeout_s=3)
    assert (result.unconfirmed, result.stamps) == (Unconfirmed.REPLICATION, ())
    assert "replica" in result.why


async def test_waiting_for_records_of_another_incarnation_says_so_at_once() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    result = await administration(fleet).await_fence(
        Stamp(type(fleet.position.incarnation)(os.urandom(16)), 1),
        wait=Wait.HIDDEN,
        timeout_s=30,
    )
    assert (result.unconfirmed, result.waited_ms) == (Unconfirmed.INCARNATION, 0)
    assert "begun anew since, or never had it" in result.why


async def test_waiting_for_a_revision_that_the_log_has_not_reached_says_so_at_once() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    ahead = Stamp(fleet.position.incarnation, fleet.position.revision + 7)
    result = await administration(fleet).await_fence(ahead, wait=Wait.HIDDEN, timeout_s=30)
    assert (result.unconfirmed, result.stamps, result.waited_ms) == (Unconfirmed.INCARNATION, (), 0)
    assert f"revision {ahead.revision} is ahead of the log" in result.why
    assert "anew" not in result.why


async def test_a_repeated_request_appends_nothing_anew() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    request_id = os.urandom(16)
    first = await invalidate(fleet, MODEL, EVERYTHING, request_id=request_id)
    second = await invalidate(fleet, MODEL, EVERYTHING, request_id=request_id)
    assert first.stamps == second.stamps
    assert second.unconfirmed is None
    assert len(await fleet.records()) == 2
    await announce(fleet, "m", "2", request_id=request_id)
    await announce(fleet, "m", "2", request_id=request_id)
    assert len(await fleet.records()) == 4, "an announcement is another request, whatever its id"


async def test_what_was_not_asked_for_before_is_appended_whatever_the_request_id() -> None:
    """A prefix is applied in one namespace more when it is repeated; somebody uses an id again for something else."""
    fleet = await ScriptedFleet(ScriptedMember(), behind := ScriptedMember()).settled()
    request_id = os.urandom(16)
    first = await invalidate(fleet, MODEL, EVERYTHING, request_id=request_id)
    behind.acknowledges = False
    other = Selector(model="other")
    second = await invalidate(fleet, MODEL, other, EVERYTHING, request_id=request_id, timeout_s=1.0)
    assert (second.stamps[0], second.stamps[2]) == first.stamps
    assert [record.event for record in await fleet.records()][2:] == [Selected(other)]
    assert second.unconfirmed is Unconfirmed.MEMBERS, "the newest record is waited for, wherever it stands"
    assert set(second.missing) == {behind.id}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_append_whose_answer_is_lost_is_tried_again_and_stands_once(when: str) -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    getattr(fleet.log, when)["append"] = 3
    result = await invalidate(fleet)
    assert result.unconfirmed is None
    assert len(await fleet.records()) == 1


async def test_a_log_that_does_not_answer_at_all_is_an_error_and_nothing_was_appended() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    fleet.log.before["fence"] = 10**9
    with pytest.raises(LogUnreachableError, match="nothing was appended"):
        await invalidate(fleet, timeout_s=2)
    assert fleet.log.calls["append"] == 0


async def test_a_log_that_stops_answering_in_between_is_no_error_for_something_may_stand() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    fleet.log.after["append"] = 10**9
    result = await invalidate(fleet, MODEL, EVERYTHING, timeout_s=2)
    assert (result.unconfirmed, result.stamps) == (Unconfirmed.LOG, ())
    assert "may stand" in result.why
    assert len(await fleet.records()) == 1


async def test_a_log_that_stops_answering_during_the_wait_leaves_the_records_standing() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()

    async def cut() -> None:
        fleet.log.before["fence"] = 10**9

    fleet.members[0].acknowledges = False
    fleet.at_pause = [cut]
    result = await invalidate(fleet, timeout_s=2)
    assert (result.unconfirmed, len(result.stamps)) == (Unconfirmed.LOG, 1)


async def test_stamps_of_a_log_that_is_lost_are_not_told_as_standing() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    real = fleet.local.append

    async def begins_anew(*arguments: Any, **named: Any) -> Any:
        appended = await real(*arguments, **named)
        if fleet.log.calls["append"] == 1:
            await fleet.begin_anew()
        if fleet.log.calls["append"] == 2:
            fleet.log.before["append"] = 10**9
        return appended

    fleet.local.append = begins_anew  # type: ignore[method-assign]
    result = await invalidate(fleet, MODEL, MODEL, EVERYTHING, timeout_s=1)
    assert result.unconfirmed is Unconfirmed.LOG
    assert result.stamps == (fleet.position,)


async def test_nobody_waits_where_nobody_asked() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    fleet.members[0].acknowledges = False
    result = await invalidate(fleet, wait=None)
    assert (result.unconfirmed, len(result.stamps), result.waited_ms) == (Unconfirmed.NOT_ASKED, 1, 0)


async def test_waits_end_with_the_sidecar_and_say_so() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    fleet.members[0].acknowledges = False
    admin = administration(fleet)

    async def ending() -> None:
        admin.end()

    fleet.at_pause = [ending]
    result = await admin.invalidate(
        [MODEL], reason="", author="", wait=Wait.HIDDEN, timeout_s=30, request_id=bytes(16)
    )
    assert (result.unconfirmed, len(result.stamps)) == (Unconfirmed.ENDING, 1)
    with pytest.raises(LogUnreachableError, match="shutting down"):
        await admin.invalidate([MODEL], reason="", author="", wait=None, timeout_s=1, request_id=bytes(16))


async def test_cancelling_ends_the_wait_and_the_record_stands() -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    fleet.members[0].acknowledges = False
    waiting = asyncio.ensure_future(invalidate(fleet, timeout_s=3600))
    while not await fleet.records():
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(await fleet.records()) == 1


@pytest.mark.parametrize("count", [0, INVALIDATE_SELECTORS_MAX + 1])
async def test_one_call_takes_a_bounded_number_of_selectors(count: int) -> None:
    fleet = await ScriptedFleet(ScriptedMember()).settled()
    with pytest.raises(LimitExceededError, match=f"got {count}"):
        await administration(fleet).invalidate(
            [MODEL] * count, reason="", author="", wait=None, timeout_s=1, request_id=bytes(16)
        )
