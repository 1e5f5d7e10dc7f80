"""What each worker is in the midst of, one byte a worker in a shared file, for whoever kills it to see."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path


class Activity(IntEnum):
    """What a worker may be in the midst of."""

    NOTHING = 0
    PUT = 1
    GET = 2
    LEASE = 3


class Doing:
    """A worker's own mark. Without a file, nothing is marked."""

    def __init__(self, path: str, worker: int) -> None:
        self._file = _mapped(Path(path)) if path else None
        self._worker = worker

    @contextmanager
    def __call__(self, activity: Activity) -> Iterator[None]:
        """The block is this activity."""
        if self._file is None:
            yield
            return
        self._file[self._worker] = activity
        try:
            yield
        finally:
            self._file[self._worker] = Activity.NOTHING


class Doings:
    """The marks of workers 0…`workers` − 1, all at NOTHING at first."""

    def __init__(self, path: Path, workers: int) -> None:
        path.write_bytes(bytes(workers))
        self._file = _mapped(path)

    def __getitem__(self, worker: int) -> Activity:
        return Activity(self._file[worker])

    def forget(self, worker: int) -> None:
        """Another process takes the place of one that was killed."""
        self._file[worker] = Activity.NOTHING


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
