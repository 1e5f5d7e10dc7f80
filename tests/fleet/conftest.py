"""One fleet of real processes a module, whose history is judged after each of its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fleet.fleet import Fleet, fleet_of

# Before the first import of torch: threads that spin while they wait for each other would starve the fleet.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="module")
def fleet_of_module() -> Iterator[Fleet]:
    """Three sidecars with two workers each, one primary with one replica."""
    with fleet_of() as fleet:
        yield fleet


@pytest.fixture
def fleet(fleet_of_module: Fleet) -> Iterator[Fleet]:
    """The module's fleet, all of it well when a test begins; no promise was broken when it ends."""
    fleet_of_module.await_hits(timeout_s=10.0)
    yield fleet_of_module
    broken = fleet_of_module.newly_broken()
    assert not broken, f"{len(broken)} promises did not hold, the first: {broken[:3]}"
