"""InvalidationLogConformance: what every InvalidationLog must do, as tests that a subclass runs on its own log.

    class TestMyLog(InvalidationLogConformance):
        @pytest_asyncio.fixture
        async def harness(self) -> AsyncIterator[LogHarness]: ...

Expectations come from the protocol, from `tests.conformance.log_harness` and from compaction's rule, never from the log.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from invalidation.log import LogUnavailableError, Member, MemberState, RenewalStatus
from invalidation.records import NO_DIGEST, LogEntry
from kv_types.errors import InvalidArgumentError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import Stamp, new_log_incarnation
from kv_types.limits import REPLICAS_MAX
from kv_types.selectors import EVERYTHING, Selector
from tests.conformance.log_harness import (
    SMALL_LIMITS,
    LogHarness,
    at,
    chained,
    covers,
    kept_of,
    selected,
    some_id,
    some_selector,
)
from tests.conformance.log_news import LogNewsConformance
from tests.conformance.log_positions import LogPositionsConformance
from tests.support.logs import patiently

UNKNOWN_PAYLOAD = b"\xff" + bytes(range(64))
"""A payload of a version that nobody here knows."""


@pytest.mark.asyncio
class InvalidationLogConformance(LogPositionsConformance, LogNewsConformance):
    """The suite. Every test gets an empty log by the fixture `harness`."""

    # --- appending ---

    async def test_a_new_log_holds_nothing(self, harness: LogHarness) -> None:
        boot = await harness.boot()
        assert boot.tip.revision == 0
        assert boot.digest == NO_DIGEST
        assert (boot.floors, boot.tombstones, boot.weights) == ({}, {}, {})
        assert not boot.settled
        assert boot.replicas == 0
        stamp, records = await harness.log.read(0, count=5, deadline_ns=harness.deadline_ns)
        assert (stamp, list(records)) == (boot.tip, [])
        state = await harness.log.fence(deadline_ns=harness.deadline_ns)
        assert (state.tip, state.members, state.confirmed) == (boot.tip, {}, True)

    async def test_entries_come_back_as_they_were_appended(self, harness: LogHarness) -> None:
        entries = [
            LogEntry(event=Selected(EVERYTHING)),
            LogEntry(event=selected(1), reason="naïve\0", author="a b", appended_wall_ms=2**64 - 1),
            LogEntry(event=WeightsAnnounced("m\0", "v ü"), reason="weights"),
        ]
        for entry in entries:
            await harness.log.append(entry, request_id=some_id(), deadline_ns=harness.deadline_ns)
        stamp, records = await harness.log.read(0, count=5, deadline_ns=harness.deadline_ns)
        assert [record.entry for record in records] == entries
        assert [record.revision for record in records] == [1, 2, 3]
        assert stamp.revision == 3

    async def test_digests_chain_every_payload(self, harness: LogHarness) -> None:
        payloads = []
        for number in range(4):
            await harness.append(selected(number))
            payloads.append(LogEntry(event=selected(number)).encode())
        _, records = await harness.log.read(0, count=5, deadline_ns=harness.deadline_ns)
        expected = [chained(payloads[: count + 1]) for count in range(4)]
        assert [record.digest for record in records] == expected
        assert (await harness.boot()).digest == expected[-1]

    async def test_a_repeated_request_is_appended_once(self, harness: LogHarness) -> None:
        entry, request = LogEntry(event=selected(1)), some_id()
        first = await harness.log.append(entry, request_id=request, deadline_ns=harness.deadline_ns)
        await harness.append(selected(2))
        again = await asyncio.gather(
            *(
                harness.log.append(entry, request_id=request, deadline_ns=harness.deadline_ns)
                for _ in range(5)
            )
        )
        assert {appended.stamp for appended in again} == {first.stamp}
        assert (await harness.boot()).tip.revision == 2

    async def test_requests_are_remembered_within_bounds(self, harness: LogHarness) -> None:
        requests = [some_id() for _ in range(3 * SMALL_LIMITS.requests)]
        for number, request in enumerate(requests):
            entry = LogEntry(event=selected(number))
            await harness.log.append(entry, request_id=request, deadline_ns=harness.deadline_ns)
        sizes = await harness.log.statistics(deadline_ns=harness.deadline_ns)
        assert sizes.requests == SMALL_LIMITS.requests
        for back in range(1, SMALL_LIMITS.requests + 1):
            again = await harness.log.append(
                LogEntry(event=selected(0)), request_id=requests[-back], deadline_ns=harness.deadline_ns
            )
            assert again.stamp.revision == len(requests) + 1 - back

    # --- renewing ---

    async def test_a_renewal_registers_the_member_and_brings_what_follows(self, harness: LogHarness) -> None:
        member = replace(await harness.member(), note='{"host":"ä"}', drained=0)
        tip = await harness.append(selected(1), selected(2))
        renewal = await harness.log.renew(member, number=7, deadline_ns=harness.deadline_ns)
        assert (renewal.status, renewal.incarnation, renewal.tip) == (RenewalStatus.OK, tip.incarnation, 2)
        assert (renewal.number, renewal.confirmed) == (7, True)
        assert [record.event for record in renewal.records] == [selected(1), selected(2)]
        state = await harness.log.fence(deadline_ns=harness.deadline_ns)
        assert state.members == {member.id: MemberState(7, 0, 0, '{"host":"ä"}', gone=False)}
        caught_up = replace(at(member, tip, renewal.records[-1].digest), drained=1)
        renewal = await harness.log.renew(caught_up, number=8, deadline_ns=harness.deadline_ns)
        assert (renewal.status, list(renewal.records)) == (RenewalStatus.OK, [])
        state = await harness.log.fence(deadline_ns=harness.deadline_ns)
        assert state.members == {member.id: MemberState(8, 2, 1, '{"host":"ä"}', gone=False)}

    async def test_many_records_come_in_batches_without_a_gap(self, harness: LogHarness) -> None:
        member = await harness.member()
        tip = await harness.append(*(selected(number) for number in range(SMALL_LIMITS.records)))
        seen = 0
        for number in range(1, 100):
            renewal = await harness.log.renew(member, number=number, deadline_ns=harness.deadline_ns)
            assert (renewal.status, renewal.tip) == (RenewalStatus.OK, tip.revision)
            assert len(renewal.records) <= SMALL_LIMITS.batch
            for record in renewal.records:
                assert record.event == selected(seen)
                seen += 1
                assert record.revision == seen
            if not renewal.records:
                break
            last = renewal.records[-1]
            member = at(member, Stamp(tip.incarnation, last.revision), last.digest)
        assert seen == tip.revision

    async def test_a_position_of_another_incarnation_is_told_so(self, harness: LogHarness) -> None:
        member = await harness.member()
        foreign = replace(member, applied=Stamp(new_log_incarnation(), 0))
        renewal = await harness.log.renew(foreign, number=1, deadline_ns=harness.deadline_ns)
        assert renewal.status is RenewalStatus.NEW_INCARNATION
        assert renewal.incarnation == member.applied.incarnation
        assert list(renewal.records) == []
        assert await self._members(harness) == {}, "it follows nothing here"

    async def test_a_position_that_the_log_never_had_is_a_fork(self, harness: LogHarness) -> None:
        await harness.append(selected(1), selected(2))
        there = await harness.member()
        tip = await harness.append(selected(3))
        forked = b"\x01" * len(NO_DIGEST)
        for position in (
            replace(there, digest=forked),
            replace(there, applied=Stamp(tip.incarnation, 0), digest=forked),
            replace(there, applied=tip, digest=there.digest),
            replace(there, applied=Stamp(tip.incarnation, 4)),
        ):
            renewal = await harness.log.renew(position, number=1, deadline_ns=harness.deadline_ns)
            assert renewal.status is RenewalStatus.FORK, position
            assert list(renewal.records) == []
        assert await self._members(harness) == {}
        assert (await harness.log.renew(there, number=1, deadline_ns=harness.deadline_ns)).tip == 3

    async def test_who_is_further_behind_than_records_are_kept_has_a_gap(self, harness: LogHarness) -> None:
        beginner = await harness.member()
        stamps, digests = [beginner.applied], [beginner.digest]
        for number in range(SMALL_LIMITS.records + 3):
            stamps.append(await harness.append(selected(number)))
            digests.append((await harness.boot()).digest)
        for applied, expected in (
            (0, RenewalStatus.GAP),
            (2, RenewalStatus.GAP),
            (3, RenewalStatus.OK),
            (4, RenewalStatus.OK),
        ):
            position = at(beginner, stamps[applied], digests[applied])
            renewal = await harness.log.renew(position, number=1, deadline_ns=harness.deadline_ns)
            assert renewal.status is expected, applied
            first = [record.revision for record in renewal.records][:1]
            assert first == ([applied + 1] if expected is RenewalStatus.OK else [])
        sizes = await harness.log.statistics(deadline_ns=harness.deadline_ns)
        assert sizes.records == SMALL_LIMITS.records

    # --- starting ---

    async def test_a_start_brings_the_newest_revision_of_each_selector(self, harness: LogHarness) -> None:
        await harness.append(selected(1), selected(2), WeightsAnnounced("m", "1"), selected(1))
        tip = await harness.append(WeightsAnnounced("m", "2"), WeightsAnnounced("n", "9"))
        boot = await harness.boot()
        assert boot.tip == tip
        assert boot.tombstones == {selected(1).selector: 4, selected(2).selector: 2}
        assert boot.floors == {}
        assert boot.weights == {"m": "2", "n": "9"}
        after = await harness.append(Selected(EVERYTHING))
        boot = await harness.boot()
        assert (boot.floors, boot.tombstones) == ({None: after.revision}, {})

    @pytest.mark.parametrize("seed", range(4))
    async def test_compaction_follows_its_rule_and_loses_nothing(
        self, harness: LogHarness, seed: int
    ) -> None:
        draw = random.Random(seed)
        appended: list[Selector] = []
        for step in range(1, 221):
            appended.append(some_selector(draw))
            await harness.append(Selected(appended[-1]))
            if step % 11:
                continue
            boot = await harness.boot()
            kept = kept_of(appended)
            assert boot.tombstones == kept.tombstones
            assert boot.floors == kept.floors | ({None: kept.floor} if kept.floor else {})
            assert len(boot.tombstones) <= SMALL_LIMITS.tombstones
            assert len(boot.floors) <= SMALL_LIMITS.scopes + 1
            for revision, selector in enumerate(appended, start=1):
                assert covers(boot, selector, revision), (seed, revision, selector)

    async def test_a_start_amid_appends_sees_one_moment(self, harness: LogHarness) -> None:
        draw = random.Random(5)
        appended = [some_selector(draw) for _ in range(120)]

        async def write() -> None:
            for selector in appended:
                await harness.append(Selected(selector))

        writing = asyncio.create_task(write())
        boots = []
        while not writing.done():
            boots.append(await harness.boot())
            await asyncio.sleep(0)
        await writing
        boots.append(await harness.boot())
        for boot in boots:
            kept = kept_of(appended[: boot.tip.revision])
            assert boot.tombstones == kept.tombstones, boot.tip.revision
            assert boot.floors.get(None, 0) == kept.floor

    async def test_announced_weights_are_bounded_and_the_newest_stay(self, harness: LogHarness) -> None:
        await harness.append(*(WeightsAnnounced(f"m{number}", "1") for number in range(SMALL_LIMITS.weights)))
        await harness.append(WeightsAnnounced("m0", "2"), WeightsAnnounced("new", "1"))
        expected = {f"m{number}": "1" for number in range(2, SMALL_LIMITS.weights)} | {"m0": "2", "new": "1"}
        assert (await harness.boot()).weights == expected

    async def test_what_nobody_understands_selects_everything(self, harness: LogHarness) -> None:
        if harness.append_raw is None:
            pytest.skip("nothing goes around its verbs")
        member = await harness.member()
        await harness.append(selected(1))
        await harness.append_raw(UNKNOWN_PAYLOAD)
        await harness.append(selected(2))
        renewal = await harness.log.renew(member, number=1, deadline_ns=harness.deadline_ns)
        assert [record.event for record in renewal.records] == [
            selected(1),
            Selected(EVERYTHING),
            selected(2),
        ]
        payloads = [LogEntry(event=selected(1)).encode(), UNKNOWN_PAYLOAD]
        assert renewal.records[1].digest == chained(payloads)
        boot = await harness.boot()
        assert covers(boot, Selector(model="any"), 2)
        assert covers(boot, selected(2).selector, 3)

    # --- incarnations ---

    async def test_a_fork_begins_anew_once(self, harness: LogHarness) -> None:
        member = await harness.member()
        request = some_id()
        for number in range(3):
            await harness.append(selected(number))
        await harness.log.append(
            LogEntry(event=selected(9)), request_id=request, deadline_ns=harness.deadline_ns
        )
        await harness.log.renew(member, number=1, deadline_ns=harness.deadline_ns)
        await harness.log.settle(member.applied.incarnation, deadline_ns=harness.deadline_ns)
        await asyncio.gather(
            *(harness.log.fork(member.applied.incarnation, deadline_ns=harness.deadline_ns) for _ in range(4))
        )
        boot = await harness.boot()
        assert boot.tip.incarnation != member.applied.incarnation
        assert (boot.tip.revision, boot.digest, boot.tombstones) == (0, NO_DIGEST, {})
        assert not boot.settled
        assert await self._members(harness) == {}
        renewal = await harness.log.renew(member, number=2, deadline_ns=harness.deadline_ns)
        assert renewal.status is RenewalStatus.NEW_INCARNATION
        again = await harness.log.append(
            LogEntry(event=selected(9)), request_id=request, deadline_ns=harness.deadline_ns
        )
        assert again.stamp == Stamp(boot.tip.incarnation, 1), "no request of the old one counts"

    async def test_settling_is_for_the_present_incarnation(self, harness: LogHarness) -> None:
        boot = await harness.boot()
        assert not await harness.log.settle(new_log_incarnation(), deadline_ns=harness.deadline_ns)
        assert not (await harness.log.fence(deadline_ns=harness.deadline_ns)).settled
        for _ in range(2):
            assert await harness.log.settle(boot.tip.incarnation, deadline_ns=harness.deadline_ns)
        assert (await harness.log.fence(deadline_ns=harness.deadline_ns)).settled
        assert (await harness.boot()).settled
        appended = await harness.log.append(
            LogEntry(event=selected(0)), request_id=some_id(), deadline_ns=harness.deadline_ns
        )
        assert appended.settled

    async def test_a_log_that_lost_everything_is_another(self, harness: LogHarness) -> None:
        if harness.lose is None:
            pytest.skip("it can lose nothing while it lives")
        member = await self._lived_in(harness)
        await harness.lose()
        await self._is_another(harness, member.applied)
        renewal = await harness.log.renew(member, number=2, deadline_ns=harness.deadline_ns)
        assert renewal.status is RenewalStatus.NEW_INCARNATION

    async def test_a_log_restored_from_an_old_copy_is_another(self, harness: LogHarness) -> None:
        if harness.copy is None:
            pytest.skip("nobody can put an old copy in its place")
        member = await self._lived_in(harness)
        restore = await harness.copy()
        later = await harness.append(selected(8))
        await restore()
        await self._is_another(harness, later)
        renewal = await harness.log.renew(member, number=2, deadline_ns=harness.deadline_ns)
        assert renewal.status is RenewalStatus.NEW_INCARNATION, "its history is not that of the copy"

    # --- members ---

    async def test_who_has_drained_leaves_without_a_trace(self, harness: LogHarness) -> None:
        member = await harness.member()
        await harness.log.renew(member, number=3, deadline_ns=harness.deadline_ns)
        assert not await self._leave(harness, member.id, number=2, drained=True), "it has renewed since"
        assert not await self._leave(harness, some_id(), number=3, drained=True), "nobody of that name"
        assert list(await self._members(harness)) == [member.id]
        assert await self._leave(harness, member.id, number=3, drained=True)
        assert await self._members(harness) == {}
        assert not await self._leave(harness, member.id, number=3, drained=True)

    async def test_who_may_not_have_drained_stays_known_as_gone(self, harness: LogHarness) -> None:
        member = replace(await harness.member(), note='{"a":1}')
        await harness.log.renew(member, number=3, deadline_ns=harness.deadline_ns)
        assert not await self._leave(harness, member.id, number=4, drained=False)
        assert await self._leave(harness, member.id, number=3, drained=False)
        assert await self._members(harness) == {member.id: MemberState(3, 0, 0, '{"a":1}', gone=True)}
        await harness.log.renew(member, number=4, deadline_ns=harness.deadline_ns)
        assert await self._members(harness) == {member.id: MemberState(4, 0, 0, '{"a":1}', gone=False)}
        await self._leave(harness, member.id, number=4, drained=False)
        assert await self._leave(harness, member.id, number=4, drained=True)
        assert await self._members(harness) == {}

    async def test_who_renews_while_it_is_given_up_stays(self, harness: LogHarness) -> None:
        member = await harness.member()
        for number in range(1, 40, 2):
            await harness.log.renew(member, number=number, deadline_ns=harness.deadline_ns)
            await asyncio.gather(
                self._leave(harness, member.id, number=number, drained=bool(number % 4 == 1)),
                harness.log.renew(member, number=number + 1, deadline_ns=harness.deadline_ns),
            )
            assert await self._members(harness) == {member.id: MemberState(number + 1, 0, 0)}

    async def test_members_are_bounded_and_who_is_gone_makes_room(self, harness: LogHarness) -> None:
        members = [await harness.member() for _ in range(SMALL_LIMITS.members + 2)]
        full, last = members[: SMALL_LIMITS.members], members[-1]
        for member in full:
            await harness.log.renew(member, number=1, deadline_ns=harness.deadline_ns)
        with pytest.raises(LogUnavailableError) as refused:
            await harness.log.renew(last, number=1, deadline_ns=harness.deadline_ns)
        assert refused.value.reason == "members"
        for member in full:
            renewal = await harness.log.renew(member, number=2, deadline_ns=harness.deadline_ns)
            assert renewal.status is RenewalStatus.OK
        await self._leave(harness, full[1].id, number=2, drained=False)
        renewal = await harness.log.renew(last, number=2, deadline_ns=harness.deadline_ns)
        assert renewal.status is RenewalStatus.OK
        assert set(await self._members(harness)) == {member.id for member in (*full, last)} - {full[1].id}

    async def test_an_append_tells_who_is_to_acknowledge_it(self, harness: LogHarness) -> None:
        member = await harness.member()
        await harness.log.renew(member, number=1, deadline_ns=harness.deadline_ns)
        appended = await harness.log.append(
            LogEntry(event=selected(0)), request_id=some_id(), deadline_ns=harness.deadline_ns
        )
        assert appended.members == {member.id}

    # --- replicas, namespaces, the end ---

    async def test_replicas_that_do_not_answer_confirm_nothing(self, harness: LogHarness) -> None:
        member = await harness.member()
        for replicas in (1, 0):
            await harness.log.set_replicas(replicas, deadline_ns=harness.deadline_ns)
            renewal = await patiently(
                lambda: harness.log.renew(member, number=1, deadline_ns=harness.soon_ns)
            )
            state = await patiently(lambda: harness.log.fence(deadline_ns=harness.soon_ns))
            assert renewal.status is RenewalStatus.OK
            assert renewal.confirmed == state.confirmed == (replicas == 0)
            assert renewal.replicas == state.replicas == replicas
        await harness.log.set_replicas(2, deadline_ns=harness.deadline_ns)
        await harness.log.fork(member.applied.incarnation, deadline_ns=harness.deadline_ns)
        assert (await harness.boot()).replicas == 2, "k is the operator's, whatever begins anew"
        for wrong in (-1, REPLICAS_MAX + 1):
            with pytest.raises(InvalidArgumentError):
                await harness.log.set_replicas(wrong, deadline_ns=harness.deadline_ns)

    async def test_namespaces_are_known_once_and_bounded(self, harness: LogHarness) -> None:
        some = [b"space %d" % number for number in range(SMALL_LIMITS.namespaces)]
        await harness.log.know(some[:3], deadline_ns=harness.deadline_ns)
        await harness.log.know([*some[1:], some[0]], deadline_ns=harness.deadline_ns)
        assert sorted((await harness.log.namespaces(deadline_ns=harness.deadline_ns)).canonicals) == some
        await harness.log.know([], deadline_ns=harness.deadline_ns)
        more = [b"more %d" % number for number in range(SMALL_LIMITS.namespaces - 1)]
        await harness.log.know(more, deadline_ns=harness.deadline_ns)
        known = list((await harness.log.namespaces(deadline_ns=harness.deadline_ns)).canonicals)
        assert len(known) == SMALL_LIMITS.namespaces
        assert set(more) < set(known)

    async def test_closing_twice_is_closing_once(self, harness: LogHarness) -> None:
        await harness.append(selected(1))
        await harness.log.close()
        await harness.log.close()

    # --- helpers ---

    async def _members(self, harness: LogHarness) -> dict[bytes, MemberState]:
        return dict((await harness.log.fence(deadline_ns=harness.deadline_ns)).members)

    async def _leave(self, harness: LogHarness, member: bytes, *, number: int, drained: bool) -> bool:
        return await harness.log.leave(
            member, number=number, drained=drained, deadline_ns=harness.deadline_ns
        )

    async def _lived_in(self, harness: LogHarness) -> Member:
        """Let the log have records and a member; returns the member, at the tip."""
        await harness.append(selected(1), Selected(Selector(tenant="t")), WeightsAnnounced("m", "1"))
        member = await harness.member()
        await harness.log.renew(member, number=1, deadline_ns=harness.deadline_ns)
        await harness.log.settle(member.applied.incarnation, deadline_ns=harness.deadline_ns)
        await harness.log.know([b"space"], deadline_ns=harness.deadline_ns)
        return member

    async def _is_another(self, harness: LogHarness, before: Stamp) -> None:
        boot = await harness.boot()
        assert boot.tip.incarnation != before.incarnation
        assert boot.tip.revision == 0
        assert (boot.floors, boot.tombstones, boot.weights) == ({}, {}, {})
        state = await harness.log.fence(deadline_ns=harness.deadline_ns)
        assert (dict(state.members), state.settled) == ({}, False)
        assert list((await harness.log.namespaces(deadline_ns=harness.deadline_ns)).canonicals) == []
