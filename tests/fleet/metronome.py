"""A process that does nothing but wake up: when it comes late, the machine had no CPU for whoever wanted one.

Run as `python -m tests.fleet.metronome FILE`, one thread a CPU; ends when its standard input does. A line a pause: when it was
due and when it came, CLOCK_BOOTTIME ns.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_types.clock import BoottimeClock
from tests.support.daemon import ROOT, clean_environment

_BEAT_NS = 5_000_000
_LATE_NS = 2_000_000
_CLOCK = BoottimeClock()


@dataclass(frozen=True, slots=True)
class Pause:
    """A stretch of time in which a process that was due did not run, CLOCK_BOOTTIME ns."""

    since_ns: int
    until_ns: int


class Pauses:
    """Pauses without overlaps, in order."""

    def __init__(self, pauses: Iterable[Pause]) -> None:
        self._pauses: list[Pause] = []
        for pause in sorted(pauses, key=lambda one: one.since_ns):
            last = self._pauses[-1] if self._pauses else None
            if last is not None and pause.since_ns <= last.until_ns:
                self._pauses[-1] = Pause(last.since_ns, max(last.until_ns, pause.until_ns))
            else:
                self._pauses.append(pause)

    def within_ns(self, since_ns: int, until_ns: int) -> int:
        """How much of a stretch of time they take."""
        return sum(
            max(0, min(until_ns, pause.until_ns) - max(since_ns, pause.since_ns)) for pause in self._pauses
        )


class Metronome:
    """The process, and what it has written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.metronome", str(path)],
            cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE,
        )  # fmt: skip

    def pauses(self) -> Pauses:
        """All up to now."""
        if not self._path.exists():
            return Pauses(())
        lines = self._path.read_text().rpartition("\n")[0].splitlines()
        return Pauses(Pause(*map(int, line.split())) for line in lines)

    def end(self) -> None:
        self._process.communicate(timeout=10)


def _beat(cpu: int, sink: int, ending: int) -> None:
    os.sched_setaffinity(0, {cpu})
    due_ns = _CLOCK.now_ns() + _BEAT_NS
    while not select.select([ending], [], [], max(0.0, (due_ns - _CLOCK.now_ns()) / 1e9))[0]:
        now_ns = _CLOCK.now_ns()
        if now_ns - due_ns > _LATE_NS:
            os.write(sink, f"{due_ns} {now_ns}\n".encode())
        due_ns = now_ns + _BEAT_NS


def main(arguments: Sequence[str]) -> None:
    sink = os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    beats = [
        threading.Thread(target=_beat, args=(cpu, sink, sys.stdin.fileno()))
        for cpu in os.sched_getaffinity(0)
    ]
    for beat in beats:
        beat.start()
    for beat in beats:
        beat.join()


if __name__ == "__main__":
    main(sys.argv[1:])
