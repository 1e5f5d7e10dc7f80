"""What clients hold back, as LogShell tells it to the log and to people: engines acknowledgements, requests draining."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from cache_l2._native import Reader
from invalidation.notes import MemberNote
from kv_types.events import Selected
from kv_types.selectors import EVERYTHING
from kv_types.validity import EngineMode
from tests.support.following import FollowingSite

pytestmark = pytest.mark.asyncio
FOR_EVER = 2**64 - 1


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite()
    yield made
    made.close()


def reader_of(site: FollowingSite, row: int) -> Reader:
    control, clients, data = site.store.descriptors(writable=False)
    return Reader(
        control_fd=control, clients_fd=clients, data_fd=data, row=row, life=site.store.life, writable=False,
        prefault=False,
    )  # fmt: skip


async def test_an_engine_that_has_not_applied_holds_the_acknowledgement_back_and_is_named(
    site: FollowingSite,
) -> None:
    row = site.store.open_client(os.getpid(), engine=EngineMode.KEEP)
    reader = reader_of(site, row)
    reader.set_applied_view(1000)  # whatever it writes
    async with site.running() as shell:
        reader.set_applied_view(site.store.view)
        assert reader.claim_freshness(FOR_EVER)[0] == FOR_EVER
        last = await site.append(Selected(EVERYTHING))
        await site.time.run(3.0)
        state = shell.state()
        assert state.position is not None
        assert (state.position.revision, state.acknowledged) == (last, 0)
        assert f"pid {os.getpid()}" in state.held_by[0]
        member = site.log.members_seen[-1]
        assert (member.applied.revision, member.acknowledged) == (last, 0)
        assert "applied view" in member.note
        assert '"engines_keep":1' in member.note
        reader.set_applied_view(site.store.view)
        await site.time.run(0.1)
        assert site.log.members_seen[-1].acknowledged == last, (
            "told at once, not at the next renewal that is due"
        )
        assert shell.state().held_by == ()
        assert reader.close()
        site.store.end_client(row)


async def test_requests_in_flight_hold_back_what_is_drained_alone(site: FollowingSite) -> None:
    async with site.running() as shell:
        slot, *_ = site.store.reader.begin_request()
        last = await site.append(Selected(EVERYTHING))
        await site.caught_up(last)
        await site.time.run(1.0)
        state = shell.state()
        assert (state.acknowledged, state.drained, state.held_by) == (last, 0, ())
        (held,) = state.draining_held_by
        assert held.startswith(f"pid {os.getpid()} (calls over gRPC): a request of it began at view ")
        told = MemberNote.decode(site.log.members_seen[-1].note)
        assert told is not None
        assert told.held_back_by == (held,), "told with the acknowledgement"
        site.store.reader.end_request(slot)
        await site.time.run(0.2)
        assert site.log.members_seen[-1].drained == last
        assert shell.state().draining_held_by == ()
        assert "held_back_by" not in site.log.members_seen[-1].note


async def test_a_goodbye_below_which_engines_claim_nothing_says_that_none_serves_on(
    site: FollowingSite,
) -> None:
    """A gated engine of mode keep is attached and alive: below a closed header it serves nothing, so a fence may give us up."""
    row = site.store.open_client(os.getpid(), engine=EngineMode.KEEP)
    engine = reader_of(site, row)
    async with site.running() as shell:
        assert engine.claim_freshness(FOR_EVER)[0] == FOR_EVER
        engine.claim_freshness(0)
        site.store.drain()
        await shell.leave()
        (member,) = (await site.log.fence(deadline_ns=1 << 62)).members.values()
        assert member.gone
        assert '"engines_keep":0' in member.note
        assert not engine.keep_granted
        assert engine.claim_freshness(FOR_EVER) == (0, 0)
    assert engine.close()
    site.store.end_client(row)


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_goodbye_waits_a_moment_for_claims_and_leaves_none_behind(
    site: FollowingSite, is_given_up: bool
) -> None:
    row = site.store.open_client(os.getpid(), engine=EngineMode.KEEP)
    engine = reader_of(site, row)
    async with site.running() as shell:
        assert engine.claim_freshness(FOR_EVER)[0] == FOR_EVER
        site.store.drain()
        leaving = asyncio.create_task(shell.leave())
        await site.time.run(0.05)
        assert not leaving.done()
        if is_given_up:
            engine.claim_freshness(0)
        await site.time.run(0.2)
        await leaving
        (member,) = (await site.log.fence(deadline_ns=1 << 62)).members.values()
        assert (member.gone, '"engines_keep":0' in member.note) == (is_given_up, is_given_up)
    assert engine.close()
    site.store.end_client(row)
