"""Tests that need huge pages: what this machine has set apart is used, nothing is set apart by a test."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2.memory_probe import MemoryProbe

_LOCK = Path(tempfile.gettempdir()) / "stratakv-tests-huge-pages.lock"


def available() -> int:
    """Explicit huge pages that could be had now."""
    pool = MemoryProbe().huge_page_pool()
    return 0 if pool is None else pool.available


@contextlib.contextmanager
def set_apart(pages: int) -> Iterator[int]:
    """Have the pool to oneself, among tests, and yield what can be had of it; skips the test where that is less than `pages`.

    Every test that takes huge pages of the machine, if only for a moment and none in the end, takes them in here.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = available()
        if there < pages:
            pytest.skip(f"needs {pages} huge pages set apart (sysctl vm.nr_hugepages); {there} are to be had")
        yield there


def need_transparent() -> None:
    """Skip the test where the kernel gives shared memory no huge pages by itself."""
    offered = MemoryProbe().shared_huge_pages()
    if offered not in ("always", "advise", "within_size", "force"):
        pytest.skip(f"needs transparent_hugepage/shmem_enabled to be advise; it is {offered or 'not there'}")
