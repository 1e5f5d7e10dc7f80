"""MemberReaper: lives that crashed without a goodbye do not keep newcomers out, in a local log and by the real script."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from invalidation.log import InvalidationLog, LogLimits, LogUnavailableError, Member
from invalidation.notes import MemberNote
from invalidation.timing import Timing
from kv_types.limits import LOG_REAP_S
from sidecar.log.member_reaper import MemberReaper
from tests.support.following import LEASE_NS, FollowingSite
from tests.support.logs import Follower, Logs, within
from tests.support.manual_time import SECOND_NS
from tests.support.redis_servers import RedisServers, redis_servers

pytestmark = pytest.mark.asyncio
LIMITS = LogLimits(members=4)
TIMING = Timing(lease_ns=LEASE_NS, pause_ns=2 * SECOND_NS, drift=0.001)
NOTE = MemberNote(lease_ns=LEASE_NS, engines_keep=0)


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite(limits=LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


async def crash(log: InvalidationLog, count: int, note: MemberNote = NOTE) -> list[bytes]:
    """Lives of sidecars that renewed once and were never heard of again."""
    boot = await log.boot(deadline_ns=within())
    crashed = [os.urandom(16) for _ in range(count)]
    for id in crashed:
        revision = boot.tip.revision
        member = Member(
            id=id, applied=boot.tip, digest=boot.digest, acknowledged=revision, drained=revision,
            note=note.encode(),
        )  # fmt: skip
        await log.renew(member, number=1, deadline_ns=within())
    return crashed


def reaper_of(site: FollowingSite, log: InvalidationLog) -> MemberReaper:
    return MemberReaper(
        site.shell, log, timing=TIMING, clock=site.time, call_ns=5 * SECOND_NS,
        members_max=LIMITS.members, pause=site.time.pause,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def reaping(site: FollowingSite) -> AsyncIterator[None]:
    task = asyncio.create_task(reaper_of(site, site.log).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_newcomer_that_a_table_full_of_crashed_lives_refuses_joins_by_itself(
    site: FollowingSite,
) -> None:
    await crash(site.log, LIMITS.members)
    async with site.running(joined=False) as shell:
        await site.time.run(60.0)
        assert not shell.confirmed.is_set(), "nobody but a fence gives them up"
        async with reaping(site):
            await site.time.run(4.0)
            assert not shell.confirmed.is_set(), "not before the window is over"
            await site.time.run(5.0)
        assert shell.confirmed.is_set()
        members = (await site.log.fence(deadline_ns=1 << 62)).members
        assert shell.member in members
        assert len(members) == LIMITS.members


async def test_who_keeps_engines_or_lives_is_never_given_up(site: FollowingSite) -> None:
    kept = await crash(site.log, 2, replace(NOTE, engines_keep=1))
    living = [Follower(site.log) for _ in range(2)]
    async with site.running(joined=False) as shell, contextlib.AsyncExitStack() as stack:
        for one in living:
            await one.boot()
        await stack.enter_async_context(reaping(site))
        for _ in range(30):
            for one in living:
                await one.renew()
            await site.time.run(1.0)
        assert not shell.confirmed.is_set()
        members = (await site.log.fence(deadline_ns=1 << 62)).members
        assert set(members) == {*kept, *(one.id for one in living)}
        assert not any(member.gone for member in members.values())


async def test_a_table_that_fills_heals_before_it_is_full(site: FollowingSite) -> None:
    crashed = await crash(site.log, LIMITS.members - 1)
    site.shell = site.make_shell()
    site.shell.counters.statistics = await site.log.statistics(deadline_ns=1 << 62)
    async with reaping(site):
        await site.time.run(LOG_REAP_S + 10.0)
    members = (await site.log.fence(deadline_ns=1 << 62)).members
    assert [members[one].gone for one in crashed] == [True] * len(crashed)
    assert [entry[1] for entry in site.trace].count("fence") <= 2 * 2 + 1, "rarely"


async def test_the_real_script_makes_room_for_who_it_refused(
    site: FollowingSite, servers: RedisServers
) -> None:
    logs = Logs()
    try:
        log = logs.open(servers.start(), limits=LIMITS)
        crashed = await crash(log, LIMITS.members)
        newcomer = Follower(log)
        await newcomer.boot()
        with pytest.raises(LogUnavailableError) as refused:
            await newcomer.renew()
        assert refused.value.reason == "members"
        site.shell = site.make_shell()
        look = asyncio.create_task(reaper_of(site, log).look())
        async with asyncio.timeout(20.0):
            while not look.done():
                await site.time.run(0.1)  # the server's answers come in real time
        await look
        members = (await log.fence(deadline_ns=within())).members
        assert all(members[one].gone for one in crashed)
        assert (await newcomer.renew()).confirmed
        members = (await log.fence(deadline_ns=within())).members
        assert newcomer.id in members
        assert len(members) == LIMITS.members
    finally:
        await logs.close()
