"""The measurement of a fleet's load measures what it says: it runs, its shares add up, and a renewal stays cheap."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import log_load
from kv_types.limits import FRESHNESS_LEASE_S_DEFAULT


def test_a_small_fleet_is_measured() -> None:
    app = typer.Typer()
    app.command()(log_load.main)
    result = CliRunner().invoke(app, ["--members", "24", "--rounds", "2", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    for key, replicas in (("without_replica", 0), ("with_replica", 1)):
        figures = told[key]
        assert (figures["members"], figures["replicas"]) == (24, replicas)
        assert figures["renewals_per_s"] == pytest.approx(24 * 4 / FRESHNESS_LEASE_S_DEFAULT)
        share = figures["renewals_per_s"] * figures["renew_cpu_us"] / 1e6
        assert figures["renewals_core_share"] == pytest.approx(share)
        assert 0 < figures["renew_script_us"] < 5_000
        assert 0 < figures["record_heard_cpu_ms"] < figures["record_cpu_ms"]
