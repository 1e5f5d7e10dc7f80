"""Following: this sidecar's part in its fleet's log, put together from the settings: shell, watch and timing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import replace

from cache_l2.store import ArenaStore
from invalidation.listing import Listings
from invalidation.notes import MemberNote
from invalidation.timing import Timing
from invalidation.validity import Validity
from kv_types.clock import Clock
from sidecar.config import Settings
from sidecar.log.choice import ChosenLog
from sidecar.log.directory import FleetDirectory
from sidecar.log.member_reaper import MemberReaper
from sidecar.log.shell import LogShell, ShellTiming
from sidecar.log.state import LogPicture
from sidecar.log.watch import LogWatch

_SECOND_NS = 1_000_000_000


class Following:
    """The log that was chosen, the shell that follows it, and what goes on beside."""

    def __init__(
        self,
        chosen: ChosenLog,
        store: ArenaStore,
        validity: Validity,
        listings: Listings,
        settings: Settings,
        *,
        version: str,
        clock: Clock,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """`observe` is told the seconds that applying records took."""
        self.chosen = chosen
        self.timing = Timing(
            lease_ns=int(settings.freshness_lease * _SECOND_NS),
            pause_ns=int(settings.pause_bound * _SECOND_NS),
            drift=settings.drift_bound,
        )
        call_ns = int(settings.log_deadline * _SECOND_NS)
        self.directory = FleetDirectory(chosen.log, store, listings, clock=clock, call_ns=call_ns)
        self.shell = LogShell(
            chosen.log,
            store,
            validity,
            clock=clock,
            timing=ShellTiming(
                lease_ns=self.timing.lease_ns,
                # Nobody else can be in a log of one's own, so that nobody could have missed its incarnation.
                settle_ns=self.timing.window_ns() if chosen.is_shared else 0,
                call_ns=call_ns,
            ),
            note=MemberNote(
                lease_ns=self.timing.lease_ns,
                engines_keep=0,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=version,
            ),
            admit=None if chosen.server is None else chosen.server.admit,
            enter=self.directory.enter_all,
            observe=observe,
        )
        self.directory.follow(self.shell)
        self._watch = LogWatch(
            self.shell,
            chosen.log,
            self.directory,
            clock=clock,
            call_ns=call_ns,
            look=None if chosen.server is None else chosen.server.look,
        )
        self._reaper = MemberReaper(self.shell, chosen.log, timing=self.timing, clock=clock, call_ns=call_ns)

    def start(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Begin; returns the tasks, which run until they are cancelled."""
        begun = [
            tasks.create_task(self.shell.run(), name="log"),
            tasks.create_task(self._watch.run(), name="log watch"),
        ]
        if self.chosen.is_shared:  # nobody else is a member of a log of one's own
            begun.append(tasks.create_task(self._reaper.run(), name="log members"))
        return begun

    def picture(self) -> LogPicture:
        """Return how things stand, for status and metrics."""
        chosen, state = self.chosen, self.shell.state()
        if chosen.server is not None:
            state = replace(
                state,
                candidates=chosen.candidates,
                server=chosen.server.label,
                server_errors=chosen.server.errors,
                server_warnings=chosen.server.warnings,
            )
        return LogPicture(
            fleet=chosen.fleet, kind=str(chosen.kind), address=chosen.address, why_local=chosen.why_local,
            state=state, weights=dict(self.shell.validity.weights),
        )  # fmt: skip

    async def wait_confirmed(self, timeout_s: float) -> bool:
        """Wait until the log has confirmed this sidecar for the first time; False when that takes longer."""
        try:
            await asyncio.wait_for(self.shell.confirmed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
