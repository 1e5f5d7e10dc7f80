"""Forks and spawns: both children get answers, what the parent holds stays the parent's, nothing hangs (C22)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.daemon import ROOT
from tests.support.sidecar_process import SidecarProcess

ANSWER_S_MAX = 5.0


@pytest.fixture(params=["shared_memory", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(scenario: str, sidecar: SidecarProcess, transport: str) -> dict[str, Any]:
    """Run a scenario of forking_worker in a process of its own."""
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.inference_worker.forking_worker",
            scenario, str(sidecar.runtime), transport,
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def expect_answers(report: dict[str, Any], transport: str) -> None:
    """Whether a process got all that it asked for, in time."""
    assert "error" not in report, report
    assert report.get("status", 0) == 0, report
    right = {name: report[name] for name in ("hit", "right", "stored", "leased", "stamped")}
    assert right == dict.fromkeys(right, True), report
    assert report["took_s"] < ANSWER_S_MAX
    assert report["transport"] == transport


def test_c22_forked_and_spawned_children_get_answers(shared_sidecar: SidecarProcess, transport: str) -> None:
    report = run("both_kinds", shared_sidecar, transport)
    for name in ("before", "forked", "spawned", "parent", "grandchild"):
        expect_answers(report[name], transport)
    assert report["forked"]["forks"] == 1
    assert report["forked"]["look_ups"] == 2, "a child counts its own look-ups only"
    assert report["parent"]["forks"] == 0


def test_c22_a_fork_while_threads_are_inside_the_client(
    shared_sidecar: SidecarProcess, transport: str
) -> None:
    report = run("under_load", shared_sidecar, transport)
    for child in report["children"]:
        expect_answers(child, transport)
    expect_answers(report["parent"], transport)
    assert report["failures"] == []


def test_what_the_parent_holds_is_closed_in_the_child_and_stays_in_the_parent(
    shared_sidecar: SidecarProcess,
) -> None:
    report = run("held_over", shared_sidecar, "shared_memory")
    child = report["child"]
    expect_answers(child, "shared_memory")
    touched = {name: child[name] for name in ("pages", "index", "iterate", "put", "match")}
    assert touched == dict.fromkeys(touched, "ClosedError")
    assert report["readable"]
    assert report["stored"]
    assert (report["held"], report["released"]) == (1, 0)


def test_a_childs_client_leaves_no_descriptor_open(shared_sidecar: SidecarProcess) -> None:
    report = run("descriptors", shared_sidecar, "shared_memory")
    expect_answers(report["child"], "shared_memory")
    # In the child its report's pipe is open.
    assert report["child"]["left"] <= 1
    assert report["parent_left"] == 0
