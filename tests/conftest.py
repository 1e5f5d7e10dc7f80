"""What every module of tests owes the next one in its process: no arena left mapped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

MAPS = Path("/proc/self/maps")


def _mapped_arenas() -> list[str]:
    """The shared memory of arenas that this process maps, by name."""
    return [line.split(maxsplit=5)[5] for line in MAPS.read_text().splitlines() if "memfd:stratakv" in line]


def pytest_collection_finish() -> None:
    """Raises pytest.UsageError where the import of a test module has mapped an arena: it would stay for all modules."""
    if mapped := _mapped_arenas():
        raise pytest.UsageError(f"a test module maps an arena when it is imported; use a fixture: {mapped}")


@pytest.fixture(scope="module", autouse=True)
def _no_arena_stays_mapped() -> Iterator[None]:
    """Tests of what a process maps count all of it: a module that leaves some makes another one fail, now and then."""
    before = _mapped_arenas()
    yield
    if len(_mapped_arenas()) > len(before):
        gc.collect()
    left = _mapped_arenas()
    assert len(left) <= len(before), f"close the readers, clients and arenas of this module's tests: {left}"
