"""Connections that have not said hello yet: bounded, each for a time, and nobody's many keep out another's one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from kv_types.limits import ATTACH_DEADLINE_S_DEFAULT, ATTACH_HANDSHAKES_MAX
from sidecar.attach.connection import Connection


class Strangers:
    """Who is connected and has not attached, oldest first. `too_late` is called with whoever takes too long."""

    def __init__(self, too_late: Callable[[Connection], None]) -> None:
        self._too_late = too_late
        self._timers: dict[Connection, asyncio.TimerHandle] = {}

    def admit(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> Connection | None:
        """Take one in; returns whom to close for it where they are too many: the oldest one of the process that has most."""
        self._timers[connection] = loop.call_later(ATTACH_DEADLINE_S_DEFAULT, self._too_late, connection)
        if len(self._timers) <= ATTACH_HANDSHAKES_MAX:
            return None
        by_process = Counter(stranger.pid for stranger in self._timers)
        most = max(by_process.values())
        return next(stranger for stranger in self._timers if by_process[stranger.pid] == most)

    def leave(self, connection: Connection) -> None:
        """It has attached, or is closed."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
