"""The board of a measured fleet: numbers in shared memory by which the driver leads its workers and reads what they saw."""

from __future__ import annotations

import mmap
import os
import time
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

POLL_S = 0.0005
Words = npt.NDArray[np.int64]


class Mode(IntEnum):
    """What workers do now."""

    REST = 0
    """Look up what is resident at a steady pace."""
    ROUND = 1
    """Have the round's pages, and look them up until they are gone."""
    FLAT_OUT = 2
    """Those of the round's bits: look up what is resident without a pause, and count; the others rest."""
    END = 3


class Board:
    """A file of 64-bit words, mapped by all. Every word has one writer; times are CLOCK_BOOTTIME ns, 0 where none yet."""

    _DRIVERS, _PER_WORKER = 16, 16

    def __init__(self, path: Path, *, workers: int) -> None:
        words = self._DRIVERS + self._PER_WORKER * workers
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, words * 8)
            memory = mmap.mmap(descriptor, words * 8)
        finally:
            os.close(descriptor)
        board = np.frombuffer(memory, dtype=np.int64)
        self._control: Words = board[: self._DRIVERS]
        self.state = board[self._DRIVERS :].reshape(workers, self._PER_WORKER)

    @property
    def mode(self) -> Mode:
        """What is to be done."""
        return Mode(int(self._control[0]))

    @property
    def round(self) -> int:
        """Number of the round, which names its pages; of FLAT_OUT bit w for worker w."""
        return int(self._control[1])

    def begin(self, mode: Mode, number: int = 0) -> None:
        """Have everybody do something else."""
        self._control[1] = number
        self._control[0] = int(mode)

    def wait(self, column: int, number: int, *, timeout_s: float, what: str) -> None:
        """Wait until all workers have written `number` into a column; raises RuntimeError."""
        until = time.monotonic() + timeout_s
        while not bool(np.all(self.state[:, column] == number)):
            if time.monotonic() > until:
                late = np.flatnonzero(self.state[:, column] != number).tolist()
                raise RuntimeError(f"{what}: workers {late} were not done after {timeout_s} s")
            time.sleep(POLL_S)


READY, DONE, LAST_L1_NS, LAST_ANY_NS, MISSED_NS, MATCHES, BAD, CPU_NS = range(8)
"""Columns of a worker: rounds prepared and finished, its last answers with a page, the first one without; look-ups that it
counted, those not served wholly, and the processor time that it has had."""
