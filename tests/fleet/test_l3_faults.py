"""Three sidecars share pages in Redis, which dies, stops, fills up, forgets: no byte is wrong, nobody waits, all heals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.fleet.checker import availability
from tests.fleet.faults import FAULTS_OF_NODES, Fault
from tests.fleet.fleet import Fleet
from tests.fleet.l3_faults import (
    FAULTS_OF_A_CLUSTER,
    FAULTS_OF_A_CLUSTER_WITH_THE_LOG,
    FAULTS_OF_A_LINE,
    FAULTS_OF_A_PAIR,
)
from tests.fleet.l3_fleets import (
    SOAK_S,
    fleet_on_a_cluster,
    fleet_on_a_line,
    fleet_on_a_pair,
    fleet_on_one_cluster,
    suffer,
    wind_up,
)
from tests.fleet.purges import Purge
from tests.fleet.purging import purging
from tests.support.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + SOAK_S)]

_PLACES: dict[str, tuple[Callable[[], AbstractContextManager[Fleet]], tuple[Fault, ...]]] = {
    "a server with a replica": (fleet_on_a_pair, FAULTS_OF_A_PAIR),
    "a cluster of six": (fleet_on_a_cluster, FAULTS_OF_A_CLUSTER),
    "one cluster for pages and log": (fleet_on_one_cluster, FAULTS_OF_A_CLUSTER_WITH_THE_LOG),
    "a bad line": (fleet_on_a_line, FAULTS_OF_A_LINE),
}


@pytest.fixture(scope="module", params=_PLACES)
def placed(request: pytest.FixtureRequest) -> Iterator[tuple[Fleet, tuple[Fault, ...]]]:
    """A fleet, and what can happen to its L3."""
    make, faults = _PLACES[request.param]
    with make() as fleet:
        yield fleet, faults


@pytest.fixture
def faults(placed: tuple[Fleet, tuple[Fault, ...]]) -> tuple[Fault, ...]:
    return placed[1]


@pytest.fixture
def fleet_of_module(placed: tuple[Fleet, tuple[Fault, ...]]) -> Fleet:
    return placed[0]


def test_without_a_fault_what_one_node_has_all_have(fleet: Fleet) -> None:
    assert fleet.purge(Purge()).is_confirmed
    with fleet.calmly(), purging(fleet) as purges:
        wait_until(lambda: purges.count >= 15, timeout_s=30.0, what="15 invalidations")
        fleet.await_l3_hits(timeout_s=10.0)
    ends = availability(fleet.look_ups(), fleet.calm)
    print(ends)
    assert ends["full"] > 100


def test_whatever_happens_to_l3(fleet: Fleet, faults: tuple[Fault, ...]) -> None:
    """STRATAKV_SOAK_S says for how much longer; the seed is printed, and STRATAKV_SOAK_SEED takes it up again."""
    suffer(fleet, faults, FAULTS_OF_NODES)


def test_when_all_is_over_nothing_is_left(fleet_of_module: Fleet) -> None:
    wind_up(fleet_of_module, never_killed=(1,))
    broken = fleet_of_module.newly_broken()
    assert not broken, f"{len(broken)} promises did not hold, the first: {broken[:3]}"
