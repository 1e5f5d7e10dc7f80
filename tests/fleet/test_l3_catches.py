"""Tests of fleets with an L3 can fail: with one rule taken away, the judge finds the promise that broke."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest

from tests.fleet.faults import Fault
from tests.fleet.fleet import Fleet, Load
from tests.fleet.l3_faults import line_flips, line_is_long, line_stalls
from tests.fleet.l3_fleets import LOAD, fleet_on_a_line
from tests.fleet.purges import Purge
from tests.fleet.purging import purging, wait_s

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_SIDECAR, _WORKER = "tests.fleet.broken_sidecar", "tests.fleet.broken_worker"
ROUNDS = 12


def _nothing(fleet: Fleet) -> AbstractContextManager[None]:
    return nullcontext()


PATIENT = replace(LOAD, deadlines_ms=(500.0,))
SPREAD = replace(LOAD, chains=150, per_s=25.0, compute_ms_max=20.0)
"""So many chains that a node is asked for most of them long after another has computed them."""

BREAKS: dict[str, tuple[str, Load, Fault, str]] = {
    "judges no loads": (_SIDECAR, LOAD, _nothing, "fence"),
    "judges loads before they come alone": (_SIDECAR, PATIENT, line_is_long, "fence"),
    "checks no sums": (_SIDECAR, LOAD, line_flips, "whole"),
    "shares nothing": (_SIDECAR, SPREAD, _nothing, "sharing"),
    "waits for ever": (_WORKER, LOAD, line_stalls, "deadline"),
}


def broken_by(fleet: Fleet, fault: Fault, promise: str) -> set[str]:
    """What broke until the promise did, or after some rounds."""
    broken: set[str] = set()
    for number in range(ROUNDS):
        if promise == "sharing":
            fleet.purge(Purge(), via=0)
            with fleet.calmly():
                wait_s(4.0)
        else:
            with purging(fleet, sidecars=(0, 1), pause_s=0.25, seed=number), fault(fleet):
                wait_s(2.0)
        broken |= {one.promise for one in fleet.newly_broken()}
        if promise in broken:
            break
    return broken


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_that_is_missing_is_noticed(rule: str) -> None:
    program, load, fault, promise = BREAKS[rule]
    start: dict[str, tuple[str, ...]] = {
        "program" if program == _SIDECAR else "worker_program": ("-m", program, rule)
    }
    with fleet_on_a_line(load, sidecars=2, **start) as fleet:
        broken = broken_by(fleet, fault, promise)
        assert promise in broken, f"what {rule} went unnoticed; broken: {broken}"
