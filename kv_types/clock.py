"""The clock that leases and freshness are measured by, as a protocol so that tests can drive it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never steps and counts suspended time."""

    def now_ns(self) -> int:
        """Nanoseconds since boot."""
        ...


class BoottimeClock:
    """CLOCK_BOOTTIME: the only clock that the validity protocol trusts (rule R11)."""

    def now_ns(self) -> int:
        """Nanoseconds since boot, suspended time included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Nanoseconds that the test has set."""
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        """Move forward by `delta_ns`; raises ValueError when it would step back."""
        if delta_ns < 0:
            raise ValueError(f"a boot clock never steps back; got {delta_ns} ns")
        self._now_ns += delta_ns
