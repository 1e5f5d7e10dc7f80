"""Tests of fleets can fail: with one rule taken away from a real sidecar, the judge finds the promise that broke."""

from __future__ import annotations

import pytest

from kv_types.clock import BoottimeClock
from tests.fleet.fleet import LEASE_S, Load, fleet_of
from tests.fleet.purging import purging, wait_s

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

BREAKS = {
    "hides nothing": "fence",
    "hides one record late": "fence",
    "judges nothing": "fence",
    "hides everything": "sparing",
}
_CLOCK = BoottimeClock()


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_that_is_missing_is_noticed(rule: str) -> None:
    program = ("-m", "tests.fleet.broken_sidecar", rule)
    with fleet_of(sidecars=1, load=Load(per_s=120.0), program=program) as fleet:
        broken: set[str] = set()
        for _ in range(10):
            with fleet.calmly(), purging(fleet, sidecars=(0,), pause_s=0.03):
                wait_s(0.8)
            broken |= {one.promise for one in fleet.newly_broken()}
            if BREAKS[rule] in broken:
                break
        assert BREAKS[rule] in broken, f"a sidecar that {rule} went unnoticed"


def test_a_sidecar_that_is_fresh_for_ever_is_noticed() -> None:
    program = ("-m", "tests.fleet.broken_sidecar", "is fresh for ever")
    with fleet_of(sidecars=1, program=program) as fleet:
        fleet.primary.kill()
        killed_ns = _CLOCK.now_ns()
        wait_s(LEASE_S + 0.3)
        fleet.is_dark(killed_ns, _CLOCK.now_ns())
        assert {one.promise for one in fleet.newly_broken()} == {"fail closed"}
