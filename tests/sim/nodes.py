"""Machines of a simulation: clocks that drift, stand still and step, and the processes that share them."""

from __future__ import annotations

from tests.sim.clockwork import Clockwork, Process

PPM = 1_000_000


class Node:
    """One machine. `rate_ppm` is how much its boot clock gains on true time, in millionths."""

    def __init__(self, clockwork: Clockwork, name: str, *, rate_ppm: int = 0, boot_ns: int = 0) -> None:
        self.name = name
        self.processes: list[Process] = []
        self._paused: list[Process] = []
        self._clockwork = clockwork
        self._rate = PPM + rate_ppm
        self._since_ns = clockwork.now_ns
        self._boot_ns = boot_ns
        self._stands_still = False
        self.stood_still = False
        """Whether its clock has stood still in this simulation; more than once might be longer than the bound."""
        self._asleep_ns = 0
        self._asleep_since_ns: int | None = None
        self.wall_offset_ns = 1_700_000_000 * 1_000_000_000

    def __repr__(self) -> str:
        return self.name

    def process(self, name: str) -> Process:
        """Start a process here."""
        process = Process(f"{self.name}.{name}", self)
        self.processes = [one for one in self.processes if one.alive]
        self.processes.append(process)
        return process

    @property
    def is_paused(self) -> bool:
        """Whether nothing here runs now."""
        return self._stands_still or self._asleep_since_ns is not None

    # --- clocks ---

    def now_ns(self) -> int:
        """CLOCK_BOOTTIME; conforms to kv_types.clock.Clock."""
        if self._stands_still:
            return self._boot_ns
        return self._boot_ns + (self._clockwork.now_ns - self._since_ns) * self._rate // PPM

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC: as the boot clock, but suspended time doesn't count."""
        asleep_ns = self._asleep_ns
        if self._asleep_since_ns is not None:
            asleep_ns += self.now_ns() - self._asleep_since_ns
        return self.now_ns() - asleep_ns

    def wall_ns(self) -> int:
        """CLOCK_REALTIME, which steps."""
        return self._clockwork.now_ns + self.wall_offset_ns

    def true_delay_ns(self, own_ns: int) -> int:
        """True time in which this node's clock gains `own_ns`, if nothing happens to it meanwhile."""
        return -(-max(0, own_ns) * PPM // self._rate)

    # --- what befalls a machine ---

    def pause(self, *, clock_stands_still: bool) -> None:
        """Nothing here runs: a machine paused so that its clock doesn't notice, or suspended so that the boot clock does."""
        self._paused = [process for process in self.processes if process.alive]
        for process in self._paused:
            self._clockwork.stop(process)
        if clock_stands_still:
            self._boot_ns = self.now_ns()
            self._stands_still = self.stood_still = True
        else:
            self._asleep_since_ns = self.now_ns()

    def unpause(self) -> None:
        """Go on."""
        if self._stands_still:
            self._since_ns = self._clockwork.now_ns
            self._stands_still = False
        elif self._asleep_since_ns is not None:
            self._asleep_ns += self.now_ns() - self._asleep_since_ns
            self._asleep_since_ns = None
        for process in self._paused:
            self._clockwork.resume(process)
        self._paused = []
