"""A fleet in one process: a real LocalLog that can be made to fail, members as scripts, and a clock that pauses advance."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from invalidation.local_log import LocalLog
from invalidation.log import LogUnavailableError, Member
from invalidation.notes import MemberNote
from invalidation.timing import Timing
from kv_types.clock import BoottimeClock, ManualClock
from kv_types.ids import Stamp

SECOND_NS = 1_000_000_000
TIMING = Timing(lease_ns=3 * SECOND_NS, pause_ns=2 * SECOND_NS, drift=0.001)
WINDOW_S = TIMING.window_ns() / SECOND_NS


class FailingLog:
    """A log of which calls fail: `before` they do anything, or `after`, when the work was done and the answer lost."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self.before: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls[verb] += 1
            if self.before[verb]:
                self.before[verb] -= 1
                raise LogUnavailableError("unreachable", "a test cut the line")
            answer = await getattr(self._log, verb)(*arguments, **named)
            if self.after[verb]:
                self.after[verb] -= 1
                raise LogUnavailableError("timeout", "a test lost the answer")
            return answer

        return call


class ScriptedMember:
    """A member that renews when the fleet's clock moves, as its fields say at that time."""

    def __init__(self, *, engines_keep: int = 0, lease_ns: int = TIMING.lease_ns) -> None:
        self.id = os.urandom(16)
        self.number = 0
        self.is_silent = False
        self.acknowledges = True
        self.drains = True
        self.note = MemberNote(lease_ns=lease_ns, engines_keep=engines_keep, host="node", pid=1).encode()
        self._acknowledged = 0
        self._drained = 0

    async def renew(self, log: LocalLog) -> None:
        """One renewal that says what this member has got to; silent ones say nothing."""
        if self.is_silent:
            return
        boot = await log.boot(deadline_ns=0)
        if self.acknowledges:
            self._acknowledged = boot.tip.revision
        if self.acknowledges and self.drains:
            self._drained = boot.tip.revision
        self.number += 1
        said = Member(
            id=self.id,
            applied=boot.tip,
            digest=boot.digest,
            acknowledged=min(self._acknowledged, boot.tip.revision),
            drained=min(self._drained, boot.tip.revision),
            note=self.note,
        )
        await log.renew(said, number=self.number, deadline_ns=0)


class ScriptedFleet:
    """The clock, the log and its members; `pause` moves the clock, and then everybody renews."""

    def __init__(self, *members: ScriptedMember) -> None:
        self.clock = ManualClock()
        self.local = LocalLog(clock=BoottimeClock())
        self.log = FailingLog(self.local)
        self.members = list(members)
        self.at_pause: list[Callable[[], Awaitable[None]]] = []
        """Called at the next pauses, one at each."""

    @property
    def member(self) -> bytes:
        """Of the sidecar under test: the first one."""
        return self.members[0].id

    @property
    def position(self) -> Stamp:
        """Where the sidecar under test stands: always at the tip."""
        return self.local._now.stamp

    def wake(self) -> None:
        """Nobody sleeps here: everybody renews at each pause."""

    async def pause(self, seconds: float) -> None:
        self.clock.advance(max(1_000, int(seconds * SECOND_NS)))
        if self.at_pause:
            await self.at_pause.pop(0)()
        await self.renew()
        await asyncio.sleep(0)

    async def renew(self) -> None:
        for member in self.members:
            await member.renew(self.local)

    async def settled(self) -> ScriptedFleet:
        """Settle the incarnation, with every member in it."""
        await self.renew()
        await self.settle()
        return self

    async def settle(self) -> None:
        boot = await self.local.boot(deadline_ns=0)
        await self.local.settle(boot.tip.incarnation, deadline_ns=0)

    async def begin_anew(self) -> None:
        """A new incarnation, that nobody is in yet and that isn't settled."""
        boot = await self.local.boot(deadline_ns=0)
        await self.local.fork(boot.tip.incarnation, deadline_ns=0)

    async def records(self) -> Sequence[Any]:
        return (await self.local.read(0, count=1000, deadline_ns=0))[1]
