"""What goes on beside following the log: being woken by it, looking at clients, the fleet's directory, figures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from invalidation.log import InvalidationLog, LogUnavailableError
from kv_types.clock import Clock, Pause
from kv_types.limits import (
    CLIENTS_WATCH_S_MAX,
    CLIENTS_WATCH_S_MIN,
    LOG_BACKOFF_S_MAX,
    LOG_SERVER_LOOK_S,
    LOG_STATISTICS_S,
    LOG_WAKE_S_MAX,
    RENEWALS_PER_S_MAX,
)
from sidecar.log.directory import FleetDirectory
from sidecar.log.shell import LogShell

_SECOND_NS = 1_000_000_000
_FIGURES_S = 0.25
_GROWTH = 1.5


class LogWatch:
    """Tasks around one LogShell. None of them decides anything: what a renewal returns does."""

    def __init__(
        self,
        shell: LogShell,
        log: InvalidationLog,
        directory: FleetDirectory,
        *,
        clock: Clock,
        call_ns: int,
        look: Callable[[], Awaitable[None]] | None = None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        """`look` looks at the log's server, and says what has changed; raises LogUnavailableError."""
        self._shell = shell
        self._log = log
        self._directory = directory
        self._clock = clock
        self._call_ns = call_ns
        self._look = look
        self._pause = pause

    async def run(self) -> None:
        """Run all of them until cancelled. Raises whatever is no failure of the log."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._be_woken(), name="log wake-ups")
                tasks.create_task(self._watch_clients(), name="clients")
                tasks.create_task(self._directory.run(), name="log directory")
                tasks.create_task(self._keep_figures(), name="log figures")
                if self._look is not None:
                    tasks.create_task(self._look_at_server(self._look), name="log server")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _be_woken(self) -> None:
        """Wait for the log to grow while nothing else would see it; then let some milliseconds' records come together.

        What it grew by comes with the wake-up, so that a fleet hides a record without asking its log first, all at once.
        """
        while True:
            await self._shell.idle.wait()
            position = self._shell.position
            assert position is not None, "nothing is followed before a log is joined"
            deadline_ns = self._clock.now_ns() + int(LOG_WAKE_S_MAX * _SECOND_NS)
            try:
                news = await self._log.woken(
                    position.revision, digest=self._shell.digest, deadline_ns=deadline_ns
                )
                if news is not None:
                    self._shell.hear(position, news)
                await self._pause(1 / RENEWALS_PER_S_MAX)
            except LogUnavailableError:
                await self._pause(LOG_BACKOFF_S_MAX)  # renewals will say what is wrong

    async def _watch_clients(self) -> None:
        """Look at clients that hold something back, often while a fence may wait for them."""
        period_s = CLIENTS_WATCH_S_MIN
        while True:
            moved = self._shell.look_at_clients()
            if moved or not self._shell.waits_for_acknowledgement:
                period_s = CLIENTS_WATCH_S_MIN
            else:
                period_s = min(period_s * _GROWTH, CLIENTS_WATCH_S_MAX)
            quick = self._shell.waits_for_acknowledgement
            await self._pause(period_s if quick else CLIENTS_WATCH_S_MAX)

    async def _keep_figures(self) -> None:
        while True:
            if self._shell.is_following:
                try:
                    figures = await self._log.statistics(deadline_ns=self._deadline_ns())
                except LogUnavailableError:
                    figures = None  # the last ones are better than none
                if figures is not None:
                    self._shell.counters.statistics = figures
            await self._pause(LOG_STATISTICS_S if self._shell.counters.statistics else _FIGURES_S)

    async def _look_at_server(self, look: Callable[[], Awaitable[None]]) -> None:
        """A server may be configured otherwise while it is followed, which nothing else would tell before it is joined anew."""
        while True:
            await self._pause(LOG_SERVER_LOOK_S)
            if self._shell.is_following:
                with contextlib.suppress(LogUnavailableError):  # renewals say it
                    await look()

    def _deadline_ns(self) -> int:
        return self._clock.now_ns() + self._call_ns
