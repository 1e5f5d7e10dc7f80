"""Files in /dev/shm that a test's own processes made: other programs of the machine make some there at any time, too."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import wait_until

_WHERE = Path("/dev/shm")
_OF_MULTIPROCESSING = "sem.mp-"
"""Semaphores of Python's multiprocessing. A test sees to it that what runs beside workers makes none."""


@contextmanager
def nothing_new_in_shared_memory(*, ours: Set[int] = frozenset(), timeout_s: float = 5.0) -> Iterator[None]:
    """The block leaves no file of its own behind; AssertionError names those that it does.

    A new file is the block's unless a living process uses it that is none of `ours` (pids), or it is a semaphore of
    multiprocessing, of which nobody shows the use: what processes that have ended left is used by nobody. Who has just
    made a file may not use it yet, so it is looked for again, for `timeout_s`.
    """
    before = set(_WHERE.iterdir())
    yield
    left: set[Path] = set()

    def none_is_left() -> bool:
        nonlocal left
        new = {path for path in _WHERE.iterdir() if not path.name.startswith(_OF_MULTIPROCESSING)} - before
        left = {path for path in new if not _others_use(path, ours)}
        return not left

    try:
        wait_until(none_is_left, timeout_s=timeout_s)
    except AssertionError:
        raise AssertionError(f"left in shared memory: {sorted(map(str, left))}") from None


def _others_use(path: Path, ours: Set[int]) -> bool:
    pids = (int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit())
    return any(_uses(pid, path) for pid in pids if pid not in ours)


def _uses(pid: int, path: Path) -> bool:
    process = Path("/proc") / str(pid)
    try:
        if any(line.endswith(str(path)) for line in (process / "maps").read_text().splitlines()):
            return True
        return any(_target(descriptor) == path for descriptor in (process / "fd").iterdir())
    except OSError:  # it has ended, or is another user's, whose files are none of a test's
        return False


def _target(descriptor: Path) -> Path | None:
    try:
        return descriptor.readlink()
    except OSError:
        return None
