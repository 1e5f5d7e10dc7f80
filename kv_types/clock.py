"""The clock that leases and freshness are measured by, as a protocol so that tests can drive it; wall times for people."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

Pause = Callable[[float], Awaitable[None]]
"""Waits for seconds: asyncio.sleep, or what moves a test's or a simulation's clock."""


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


def unix_ms() -> int:
    """Wall-clock time, Unix ms: for what travels between nodes, never for leases."""
    return time.time_ns() // 1_000_000


def show_time(unix_ms: int) -> str:
    """Write a Unix time in ms as ISO 8601 in UTC, to the second; the number itself where no calendar reaches."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"
