"""What /proc says about processes that tests stop."""

from __future__ import annotations

from pathlib import Path

from tests.support.polling import wait_until


def wait_until_stopped(pid: int) -> None:
    """Wait until every thread of a process that got SIGSTOP has stopped."""
    wait_until(lambda: all(state == "T" for state in _states(pid)), what=f"process {pid} to stop")


def _states(pid: int) -> list[str]:
    files = Path(f"/proc/{pid}/task").glob("*/stat")
    return [file.read_text().rsplit(")", 1)[1].split()[0] for file in files]
