"""Processes that tests stop or interrupt: what /proc says of them, and how they come to heed Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import wait_until


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """Processes started in the block heed SIGINT, even where the tests themselves were started without heeding it.

    A shell without job control starts what it puts into the background so (`pytest &` in a script), and programs
    inherit it: that a command keeps it is as it should be. For the main thread.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def wait_until_stopped(pid: int) -> None:
    """Wait until every thread of a process that got SIGSTOP has stopped."""
    wait_until(lambda: all(state == "T" for state in _states(pid)), what=f"process {pid} to stop")


def wait_until_running(pid: int) -> None:
    """Wait until no thread of a process that got SIGCONT is stopped any more."""
    wait_until(lambda: "T" not in _states(pid), what=f"process {pid} to go on")


def _states(pid: int) -> list[str]:
    files = Path(f"/proc/{pid}/task").glob("*/stat")
    return [file.read_text().rsplit(")", 1)[1].split()[0] for file in files]
