"""MemberReaper: gives up silent members of the fleet where no fence does, so that the log's table of members stays open."""

from __future__ import annotations

import asyncio

from invalidation.log import InvalidationLog, LogUnavailableError
from invalidation.silence import Reaping
from invalidation.timing import Timing
from kv_types.clock import Clock, Pause
from kv_types.limits import FLEET_MEMBERS_MAX, LOG_REAP_LOOK_S
from sidecar.log.shell import LogShell
from sidecar.logs import logger

_SECOND_NS = 1_000_000_000

_log = logger("fleet")


class MemberReaper:
    """Carries out what Reaping decides, beside the shell of one member."""

    def __init__(
        self,
        shell: LogShell,
        log: InvalidationLog,
        *,
        timing: Timing,
        clock: Clock,
        call_ns: int,
        members_max: int = FLEET_MEMBERS_MAX,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._shell = shell
        self._log = log
        self._clock = clock
        self._call_ns = call_ns
        self._pause = pause
        self._window_s = timing.window_ns() / _SECOND_NS
        self._reaping = Reaping(
            timing, me=shell.member, members_max=members_max,
            spread=int.from_bytes(shell.member[2:4], "little") / 65536,
        )  # fmt: skip

    async def run(self) -> None:
        """Look, whenever it is due, until cancelled."""
        while True:
            await self._pause(LOG_REAP_LOOK_S)
            counters = self._shell.counters
            members = counters.statistics.members if counters.statistics is not None else 0
            if self._reaping.is_due(
                refusals=counters.renewals["members"], members=members, now_ns=self._clock.now_ns()
            ):
                await self.look()

    async def look(self) -> None:
        """Look at the members twice, a fence's window apart, and give up those that were silent."""
        try:
            await self._give_up()
            await self._pause(self._window_s)
            await self._give_up()
        except LogUnavailableError as error:
            _log.warning("could not look for silent members", reason=str(error))

    async def _give_up(self) -> None:
        state = await self._log.fence(deadline_ns=self._deadline_ns())
        for member, number in self._reaping.observe(state, now_ns=self._clock.now_ns()).items():
            if await self._log.leave(member, number=number, drained=False, deadline_ns=self._deadline_ns()):
                _log.warning("gave up a silent member", member=member.hex(), renewal=number)

    def _deadline_ns(self) -> int:
        return self._clock.now_ns() + self._call_ns
