"""LogShell over a real arena and a log that tests trouble: the order of R14, freshness, storms, gaps, goodbyes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
import structlog

from cache_l2.store import NamespaceRecord
from invalidation.log import LogLimits, LogUnavailableError
from invalidation.records import LogEntry, LogRecord
from kv_types.errors import ConfigError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import PageKey, Stamp
from kv_types.limits import HIDING_STEP_WORK_MAX, RENEWALS_BURST_MAX, RENEWALS_PER_S_MAX
from kv_types.outcomes import STORED, PutStatus, Refused, RefuseReason
from kv_types.selectors import EVERYTHING, Selector
from kv_types.validity import NO_INSTANCE, EngineMode
from tests.support.following import LEASE_NS, MIB, SETTLE_NS, FollowingSite, Trace
from tests.support.manual_time import SECOND_NS, settle
from tests.support.pages import chain, namespace_of, packed, page_of
from tests.support.stores import add

pytestmark = pytest.mark.asyncio


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite()
    yield made
    made.close()


def put(
    site: FollowingSite, record: NamespaceRecord, keys: list[PageKey], *, stamp: Stamp | None = None
) -> list[object]:
    sources = [memoryview(page_of(key, record.page_bytes)) for key in keys]
    return list(site.store.put(record.id, keys, sources, stamp=stamp or site.store.stamp()))


def resident(site: FollowingSite, keys: list[PageKey]) -> list[bool]:
    return [site.store.inspect(key) is not None for key in keys]


def places(trace: Trace, *what: object) -> list[int]:
    """Where entries that begin like this stand."""
    return [place for place, entry in enumerate(trace) if entry[: len(what)] == what]


# --- R14 ---


async def test_floors_then_pages_then_events_then_the_acknowledgement(site: FollowingSite) -> None:
    record = add(site.store, namespace_of())
    keys = [chain(1)[0] for _ in range(3)]
    async with site.running():
        for key in keys:
            assert put(site, record, [key]) == [STORED]
        site.trace.clear()
        last = await site.append(*(Selected(Selector(key=key)) for key in keys), WeightsAnnounced("m", "2"))
        await site.caught_up(last)
    trace = site.trace
    hidden = places(trace, "hidden")
    assert sum(trace[place][1] for place in hidden) == 3
    for revision in range(1, 5):
        (floors,), (published,) = (
            places(trace, "floors", revision),
            [place for place in places(trace, "published") if trace[place][2] == revision],
        )
        acknowledged = next(place for place in places(trace, "renewing") if trace[place][2] >= revision)
        assert floors < min(hidden), "a commit between two steps of hiding must be judged by the record"
        assert max(hidden) < published, "no view may promise what is not hidden yet"
        assert published < acknowledged
        assert all(trace[place][1] < revision for place in places(trace, "renewing") if place < published)
    assert [entry[1] for entry in trace if entry[0] == "published"] == ["Selected"] * 3 + ["WeightsAnnounced"]
    assert resident(site, keys) == [False] * 3
    assert site.validity.weights == {"m": "2"}


async def test_freshness_counts_from_before_the_renewal_was_sent_and_comes_after_what_it_brought(
    site: FollowingSite,
) -> None:
    async def slow() -> None:
        site.time.advance(SECOND_NS // 2)

    async with site.running():
        site.log.before_renewal = slow
        site.trace.clear()
        last = await site.append(Selected(EVERYTHING))
        await site.caught_up(last)
    trace = site.trace
    sent = {trace[place][3] for place in places(trace, "renewing")}
    granted = [trace[place][1] for place in places(trace, "fresh")]
    assert granted
    assert all(freshness_ns - LEASE_NS in sent for freshness_ns in granted), "F is t0 + L"
    first_fresh = places(trace, "fresh")[0]
    assert places(trace, "published", "Selected", last)[0] < first_fresh, (
        "F must not vouch for a view before the record's"
    )


async def test_hiding_lets_others_run_and_what_they_commit_is_judged_by_the_record(tmp_path: object) -> None:
    site = FollowingSite(arena_bytes=160 * MIB, segment_bytes=MIB, pages_max=40_000)
    record = add(site.store, namespace_of())
    pages = 2 * HIDING_STEP_WORK_MAX + 1000
    async with site.running():
        for _ in range(0, pages, 1000):
            keys = chain(1000)
            rows = site.store.reserve(site.store.own_row, record, None, packed(keys))
            ids = [reservation for status, _, reservation, _ in rows if status == PutStatus.STORED]
            site.store.commit(site.store.own_row, ids, stamp=site.store.stamp(), rests_on=NO_INSTANCE)
        count = site.store.statistics()["entries_visible"]
        assert count > 2 * HIDING_STEP_WORK_MAX
        before = site.store.stamp()
        turns: list[object] = []

        async def commit_meanwhile() -> None:
            while not places(site.trace, "floors"):
                await asyncio.sleep(0)
            while not places(site.trace, "published", "Selected"):
                turns.extend(put(site, record, chain(1), stamp=before))
                assert site.store.stamp() == before
                await asyncio.sleep(0)

        site.trace.clear()
        meanwhile = asyncio.create_task(commit_meanwhile())
        last = await site.append(Selected(Selector(model=record.namespace.model)))
        await site.caught_up(last)
        await meanwhile
    steps = [entry[1] for entry in site.trace if entry[0] == "hidden"]
    assert sum(steps) == count
    assert max(steps) <= HIDING_STEP_WORK_MAX, "the loop must not be kept for long"
    assert len(turns) >= len(steps) - 1, "others ran between the steps"
    assert set(map(str, turns)) == {str(Refused(RefuseReason.INVALIDATED))}, "BrokeInFlight"
    assert site.store.statistics()["entries_visible"] == 0
    site.close()


async def test_a_storm_is_followed_at_a_bounded_rate_of_renewals(site: FollowingSite) -> None:
    record = add(site.store, namespace_of())
    seconds, rate = 2, 1000
    async with site.running():
        kept = chain(1)
        put(site, record, kept)
        renewals = len(site.log.members_seen)
        last = 0
        for _ in range(seconds * rate // 10):
            last = await site.append(*(Selected(Selector(key=key)) for key in chain(10)))
            await site.time.run(0.01)
        await site.caught_up(last)
        assert (
            len(site.log.members_seen) - renewals <= RENEWALS_BURST_MAX + (seconds + 0.5) * RENEWALS_PER_S_MAX
        )
        assert site.shell.state().records_applied == last == seconds * rate
        assert resident(site, kept) == [True], "sparing"
    assert site.store.view == last + 2


async def test_one_record_is_applied_and_acknowledged_within_milliseconds(site: FollowingSite) -> None:
    async with site.running():
        await site.time.run(1.0)
        renewals = len(site.log.members_seen)
        last = await site.append(Selected(EVERYTHING))
        await settle()
        assert site.store.stamp().revision == last, "applied as soon as the log has woken us"
        await site.time.run(0.003)
        assert site.log.members_seen[-1].acknowledged == last
        assert len(site.log.members_seen) == renewals + 1, (
            "it came with the wake-up, and is only acknowledged"
        )


async def test_news_that_do_not_follow_are_asked_for(site: FollowingSite) -> None:
    async with site.running() as shell:
        await site.time.run(1.0)
        position = shell.position
        assert position is not None
        renewals = len(site.log.members_seen)
        for records in ([], [LogRecord(position.revision + 2, LogEntry(event=Selected(EVERYTHING)))]):
            shell.hear(position, records)
            await settle()
            await site.time.run(0.003)
        assert len(site.log.members_seen) == renewals + 2
        assert shell.position == position


# --- troubles ---


async def test_a_log_out_of_reach_grants_nothing_says_why_and_heals(site: FollowingSite) -> None:
    with structlog.testing.capture_logs() as lines:
        async with site.running() as shell:
            assert shell.state().reason == ""
            site.log.trouble = LogUnavailableError("timeout", "no answer within 1 s")
            await settle()
            site.trace.clear()
            await site.time.run(20.0)
            assert not places(site.trace, "fresh"), "BrokeFailClosed"
            state = shell.state()
            assert (state.phase, state.reason) == (
                "unreachable",
                "unreachable: timeout: no answer within 1 s",
            )
            assert state.renewals["timeout"] > 5
            assert state.confirmed_ago_s is not None
            assert state.confirmed_ago_s > 19
            site.log.trouble = None
            await site.time.run(2.0)
            state = shell.state()
            assert (state.phase, state.reason) == ("following", "")
            assert places(site.trace, "fresh")
    told = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert len(told) == 1, "a trouble that goes on is not told anew at each attempt"
    assert any("confirms again" in line["event"] for line in lines)


async def test_a_log_that_is_down_at_the_start_is_joined_when_it_comes(site: FollowingSite) -> None:
    site.log.trouble = LogUnavailableError("connect", "nobody listens")
    async with site.running(joined=False) as shell:
        await site.time.run(5.0)
        state = shell.state()
        assert (state.position, state.phase) == (None, "unreachable")
        assert "nobody listens" in state.reason
        assert state.confirmed_ago_s is None
        site.log.trouble = None
        await site.time.run(2.0)
        assert shell.state().reason == ""


async def test_a_log_is_judged_whenever_it_is_joined(site: FollowingSite) -> None:
    verdicts: list[Exception] = [
        LogUnavailableError("loading", "it loads"),
        *[ConfigError("allkeys-lru could evict the log; set volatile-lru")] * 4,
    ]

    async def admit() -> None:
        if verdicts:
            raise verdicts.pop(0)

    site.admit = admit
    async with site.running(joined=False) as shell:
        await settle()
        assert "it loads" in shell.state().reason
        await site.time.run(0.1)
        assert shell.state().reason.startswith("unreachable: refused: allkeys-lru could evict")
        assert not places(site.trace, "called"), "nothing is asked of it before it is judged"
        await site.time.run(4.0)
        assert shell.state().reason == ""
        verdicts += [ConfigError("the new primary would evict the log")] * 99
        position = shell.position
        assert position is not None
        await site.log.fork(position.incarnation, deadline_ns=1 << 62)
        site.trace.clear()
        await site.time.run(4.0)
        assert "the new primary" in shell.state().reason
        assert not places(site.trace, "fresh"), "BrokeFailClosed"
        verdicts.clear()
        await site.time.run(4.0)
        assert shell.state().reason == ""


async def test_a_log_that_keeps_no_deadline_is_given_up(site: FollowingSite) -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    site.call_ns = SECOND_NS // 50
    async with site.running() as shell:
        site.log.before_renewal = for_ever
        await site.time.run(2.0)
        async with asyncio.timeout(10):
            while not shell.state().renewals.get("timeout"):
                await asyncio.sleep(0)
        site.log.before_renewal = None
        async with asyncio.timeout(10):  # another call may hang by now, until it is given up too
            while shell.state().reason:
                await site.time.run(0.1)


async def test_a_gap_hides_what_was_missed_and_nothing_else() -> None:
    site = FollowingSite(limits=LogLimits(records=4))
    record = add(site.store, namespace_of())
    async with site.running() as shell:
        missed, kept = chain(2), chain(2)
        for keys in (missed, kept):
            put(site, record, keys)
        site.log.trouble = LogUnavailableError("timeout")
        await site.time.run(1.0)
        site.log.trouble = None
        site.trace.clear()
        last = await site.append(
            Selected(Selector(key=missed[0])), *(Selected(Selector(key=key)) for key in chain(9))
        )
        await site.caught_up(last)
        assert places(site.trace, "restart", last)
        assert resident(site, [*missed, *kept]) == [False, False, True, True]
        (published,) = places(site.trace, "published")
        assert site.trace[published][1:] == ("LogStarted", last), (
            "workers drop their L1: they know none of the records"
        )
        assert places(site.trace, "hidden")[-1] < published
        assert shell.state().acknowledged == last
    site.close()


async def test_another_incarnation_voids_everything_and_is_settled_after_it_was_observed(
    site: FollowingSite,
) -> None:
    record = add(site.store, namespace_of())
    async with site.running() as shell:
        old = site.store.stamp()
        await site.time.run(SETTLE_NS / SECOND_NS + 1)
        assert shell.state().settled
        keys = chain(1)
        put(site, record, keys)
        await site.append(Selected(Selector(tenant="nobody")))
        await site.time.run(1.0)
        await site.log.fork(old.incarnation, deadline_ns=1 << 62)
        await site.time.run(1.0)
        state = shell.state()
        assert state.position == site.store.stamp()
        assert state.position is not None
        assert state.position.incarnation != old.incarnation
        assert (state.position.revision, state.acknowledged, state.drained) == (0, 0, 0)
        assert resident(site, keys) == [False]
        assert put(site, record, keys, stamp=old) == [Refused(RefuseReason.STAMP_FOREIGN)]
        assert not state.settled, "others may not have seen it yet"
        await site.time.run(SETTLE_NS / SECOND_NS)
        assert shell.state().settled
        assert site.log.known == [record.namespace.canonical] * 2, "the directory began anew too"


async def test_nobody_waits_for_settling_where_nobody_else_can_be() -> None:
    site = FollowingSite(settle_ns=0)
    async with site.running() as shell:
        await settle()
        assert shell.state().settled
    site.close()


async def test_a_fault_of_this_program_ends_following_with_its_error(
    site: FollowingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("the arena is broken")

    async def follow() -> None:
        async with site.running():
            monkeypatch.setattr(site.store, "publish", broken)
            await site.append(Selected(EVERYTHING))
            await site.time.run(5.0)

    with pytest.raises(RuntimeError, match="the arena is broken"):
        await follow()


# --- the end ---


async def test_the_goodbye_comes_last_and_after_a_renewal_under_way(site: FollowingSite) -> None:
    gate = asyncio.Event()

    async def held() -> None:
        await gate.wait()

    async with site.running() as shell:
        site.log.before_renewal = held
        site.trace.clear()
        await site.append(Selected(EVERYTHING))
        await site.time.run(0.01)
        assert len(places(site.trace, "renewing")) == 1
        site.store.drain()
        leaving = asyncio.create_task(shell.leave())
        await settle()
        assert not places(site.trace, "called", "leave"), (
            "the log would carry out the renewal after the goodbye"
        )
        gate.set()
        await leaving
        assert places(site.trace, "closed")[0] < places(site.trace, "called", "renew")[0]
        assert places(site.trace, "called", "renew")[-1] < places(site.trace, "called", "leave")[0]
        state = await site.log.fence(deadline_ns=1 << 62)
        assert state.members == {}, "nothing is in use any more"
        await site.time.run(5.0)
        assert (await site.log.fence(deadline_ns=1 << 62)).members == {}


async def test_a_goodbye_with_clients_left_says_that_something_may_still_be_in_use(
    site: FollowingSite,
) -> None:
    row = site.store.open_client(os.getpid())
    async with site.running() as shell:
        site.store.drain()
        await shell.leave()
        (member,) = (await site.log.fence(deadline_ns=1 << 62)).members.values()
        assert member.gone
    site.store.end_client(row)


async def test_a_goodbye_is_not_drained_while_the_sidecar_itself_holds_pages(site: FollowingSite) -> None:
    """Nothing has selected them yet: a record that comes after the goodbye may."""
    record = add(site.store, namespace_of("m"))
    async with site.running() as shell:
        keys = chain(1)
        assert put(site, record, keys) == [STORED]
        lease = site.store.lease(record.id, keys)
        assert lease.pages == 1
        site.store.drain()
        await shell.leave()
        (member,) = (await site.log.fence(deadline_ns=1 << 62)).members.values()
        assert member.gone
        lease.release()


async def test_a_goodbye_names_the_engines_that_are_left_as_they_are_then(site: FollowingSite) -> None:
    """A fence never gives up a member whose note tells of engines that serve on; one that has ended must not be told."""
    engine = site.store.open_client(os.getpid(), engine=EngineMode.KEEP)
    plain = site.store.open_client(os.getpid())
    async with site.running() as shell:
        assert '"engines_keep":1' in site.log.members_seen[-1].note
        site.store.end_client(engine)
        site.store.drain()
        await shell.leave()
        (member,) = (await site.log.fence(deadline_ns=1 << 62)).members.values()
        assert member.gone
        assert '"engines_keep":0' in member.note
    site.store.end_client(plain)


async def test_a_goodbye_that_nobody_hears_is_over_in_time(site: FollowingSite) -> None:
    with structlog.testing.capture_logs() as lines:
        async with site.running() as shell:
            site.log.trouble = LogUnavailableError("timeout", "no answer")
            site.store.drain()
            await shell.leave()
    assert any("goodbye" in line["event"] for line in lines)
