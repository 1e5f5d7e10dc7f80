"""`stratakv serve` that notes when it is about to publish each revision. Arguments: the file of notes, then serve …"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cache_l2.store import ArenaStore
from kv_types.clock import BoottimeClock
from kv_types.events import Event
from kv_types.ids import Stamp
from stratakv.cli import main

NOTES = 4096
"""Revisions whose times are kept."""


def notes(path: Path) -> npt.NDArray[np.int64]:
    """Map a file of notes: int64 [NOTES, 2], revision and CLOCK_BOOTTIME ns, at revision mod NOTES."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, NOTES * 16)
        return np.frombuffer(mmap.mmap(descriptor, NOTES * 16), dtype=np.int64).reshape(NOTES, 2)
    finally:
        os.close(descriptor)


def _note_publishing(path: Path) -> None:
    """The time is read before the view is published, so that what is measured from it is never too short."""
    noted, clock, publish = notes(path), BoottimeClock(), ArenaStore.publish

    def noting(store: ArenaStore, event: Event, stamp: Stamp) -> int:
        noted[stamp.revision % NOTES] = stamp.revision, clock.now_ns()
        return publish(store, event, stamp)

    ArenaStore.publish = noting  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    _note_publishing(Path(sys.argv.pop(1)))
    main()
