"""Engines that keep their pages past freshness (R18): not before the log knows of them, whatever becomes of the sidecar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cache_l2.reader import AttachedArena
from invalidation.fence import FenceEvaluation, Pending, Reached, Wait
from invalidation.local_log import LocalLog
from invalidation.log import LogUnavailableError
from invalidation.timing import Timing
from kv_types.clock import BoottimeClock
from kv_types.events import Selected
from kv_types.ids import Stamp
from kv_types.selectors import EVERYTHING
from kv_types.validity import EngineMode
from sidecar.attach.server import AttachServer
from sidecar.l3.residency import ResidentOnly
from tests.support.directory import EverythingListed
from tests.support.following import LEASE_NS, FollowingSite
from tests.support.manual_time import SECOND_NS, settle

pytestmark = pytest.mark.asyncio
FOR_EVER = 2**64 - 1
TIMING = Timing(lease_ns=LEASE_NS, pause_ns=2 * SECOND_NS, drift=0.001)


@pytest.fixture
def site() -> Iterator[FollowingSite]:
    made = FollowingSite(settle_ns=0)
    yield made
    made.close()


class Node:
    """A sidecar's shell and attach server, and engines behind real connections."""

    def __init__(self, site: FollowingSite, path: Path) -> None:
        self.site = site
        self.path = path
        self.engines: list[AttachedArena] = []
        self.held: asyncio.Event | None = None

    async def attach(self, mode: EngineMode = EngineMode.KEEP) -> AttachedArena:
        engine = await asyncio.to_thread(
            AttachedArena.connect, str(self.path), prefault=False, deadline_s=5.0, engine=mode
        )
        self.engines.append(engine)
        return engine

    def hold_renewals(self) -> None:
        """The next one doesn't reach the log."""
        gate = self.held = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        self.site.log.before_renewal = wait

    def let_go(self) -> None:
        assert self.held is not None
        self.held.set()
        self.site.log.before_renewal = None

    async def detach(self, engine: AttachedArena) -> None:
        self.engines.remove(engine)
        await asyncio.to_thread(engine.close)
        await settle()


@asynccontextmanager
async def running(site: FollowingSite, folder: Path) -> AsyncIterator[Node]:
    async with site.running() as shell:
        server = AttachServer(
            site.store,
            folder / "a",
            clock=BoottimeClock(),
            directory=EverythingListed(),
            loads=ResidentOnly(site.store),
            engine_came=shell.look_at_clients,
        )
        await server.start()
        node = Node(site, folder / "a")
        try:
            yield node
        finally:
            for engine in list(node.engines):
                await node.detach(engine)
            await server.stop(0.0)


def claim(engine: AttachedArena) -> int:
    return engine.reader.claim_freshness(FOR_EVER)[0]


async def verdict_without_it(site: FollowingSite) -> tuple[Any, int]:
    """What a fence says that begins now, once the window is over in which nobody hears of the sidecar; and when."""
    revision = await site.append(Selected(EVERYTHING))
    boot = await LocalLog.boot(site.log, deadline_ns=FOR_EVER)
    fence = FenceEvaluation(
        stamp=Stamp(boot.tip.incarnation, revision), wait=Wait.HIDDEN, timing=TIMING, me=b"m" * 16
    )
    begun_ns = site.time.now_ns()
    state = await LocalLog.fence(site.log, deadline_ns=FOR_EVER)
    assert isinstance(fence.observe(state, now_ns=begun_ns), Pending)
    over_ns = begun_ns + TIMING.window_ns()
    return fence.observe(state, now_ns=over_ns), over_ns


async def test_a_sidecar_that_dies_before_the_log_knows_of_its_engine_is_given_up_when_the_engine_has_ended_to_serve(
    site: FollowingSite, tmp_path: Path
) -> None:
    async with running(site, tmp_path) as node:
        node.hold_renewals()
        engine = await node.attach()
        await site.time.run(0.1)
        assert site.log.members_seen[-1].note.count('"engines_keep":1'), "it is on its way at once"
        claimed = claim(engine)
        assert claimed == site.store.reader.freshness_ns(), "as any other engine"
        verdict, now_ns = await verdict_without_it(site)
        assert isinstance(verdict, Reached)
        assert len(verdict.gone) == 1
        assert claimed <= now_ns, "nothing is served any more"
        node.let_go()
        await settle()


async def test_a_sidecar_that_dies_afterwards_is_never_given_up(site: FollowingSite, tmp_path: Path) -> None:
    async with running(site, tmp_path) as node:
        engine = await node.attach()
        await site.time.run(0.1)
        assert claim(engine) == FOR_EVER, "told at once, not at the next renewal that is due"
        node.hold_renewals()
        verdict, _ = await verdict_without_it(site)
        assert isinstance(verdict, Pending)
        assert list(verdict.missing) == [site.shell.member]
        node.let_go()
        await settle()


async def test_a_newer_engine_waits_for_a_renewal_that_counts_it(site: FollowingSite, tmp_path: Path) -> None:
    async with running(site, tmp_path) as node:
        first = await node.attach()
        node.hold_renewals()
        await site.time.run(0.1)
        second = await node.attach()
        await settle()
        assert site.log.members_seen[-1].note.count('"engines_keep":1')
        sent = node.held
        assert sent is not None
        node.hold_renewals()
        sent.set()
        await site.time.run(0.1)
        assert site.log.members_seen[-1].note.count('"engines_keep":2'), "the next one is on its way"
        claims = [claim(engine) for engine in (first, second)]
        assert FOR_EVER not in claims, "what was sent before the second came says nothing of it"
        node.let_go()
        await site.time.run(0.1)
        assert [claim(engine) for engine in (first, second)] == [FOR_EVER, FOR_EVER]


async def test_it_is_taken_back_when_the_last_one_has_ended(site: FollowingSite, tmp_path: Path) -> None:
    async with running(site, tmp_path) as node:
        first, second = await node.attach(), await node.attach()
        other = await node.attach(EngineMode.NONE)
        await site.time.run(0.1)
        await node.detach(first)
        assert claim(second) == FOR_EVER
        await node.detach(second)
        assert claim(other) < FOR_EVER, "the log will be told that there are none"
        await site.time.run(2.0)
        assert '"engines_keep":0' in site.log.members_seen[-1].note
        node.hold_renewals()
        assert claim(await node.attach()) < FOR_EVER
        node.let_go()
        await settle()


async def test_a_renewal_that_nobody_confirms_grants_nothing(site: FollowingSite, tmp_path: Path) -> None:
    async with running(site, tmp_path) as node:
        site.log.trouble = LogUnavailableError("timeout", "no answer")
        engine = await node.attach()
        await site.time.run(2.0)
        assert claim(engine) < FOR_EVER
        site.log.trouble = None
        await site.time.run(2.0)
        assert claim(engine) == FOR_EVER
        site.log.trouble = LogUnavailableError("timeout", "no answer")
        await site.time.run(60.0)
        assert claim(engine) == FOR_EVER, "that is what it is for"


async def test_another_incarnation_has_to_be_told_anew(site: FollowingSite, tmp_path: Path) -> None:
    async with running(site, tmp_path) as node:
        engine = await node.attach()
        await site.time.run(0.1)
        boot = await LocalLog.boot(site.log, deadline_ns=FOR_EVER)
        await LocalLog.fork(site.log, boot.tip.incarnation, deadline_ns=FOR_EVER)
        seen: list[int] = []

        async def look() -> None:
            seen.append(claim(engine))

        site.log.before_renewal = look
        await site.time.run(3.0)
        assert seen[0] == FOR_EVER, "the renewal that finds out"
        assert seen[1] < FOR_EVER, "the first one of the new incarnation"
        assert claim(engine) == FOR_EVER
