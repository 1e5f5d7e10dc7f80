"""Tests that need huge pages: what this machine has set apart is used, nothing is set apart by a test."""

from __future__ import annotations

import pytest

from cache_l2.memory_probe import MemoryProbe


def available() -> int:
    """Explicit huge pages that could be had now."""
    pool = MemoryProbe().huge_page_pool()
    return 0 if pool is None else pool.available


def need_pool(pages: int) -> None:
    """Skip the test where fewer explicit huge pages than that are to be had."""
    if available() < pages:
        pytest.skip(
            f"needs {pages} huge pages set apart (sysctl vm.nr_hugepages); {available()} are to be had"
        )


def need_transparent() -> None:
    """Skip the test where the kernel gives shared memory no huge pages by itself."""
    offered = MemoryProbe().shared_huge_pages()
    if offered not in ("always", "advise", "within_size", "force"):
        pytest.skip(f"needs transparent_hugepage/shmem_enabled to be advise; it is {offered or 'not there'}")
