"""How measured fleets are led and their figures made: the board, what a storm takes, and the parts of the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import fleet_report, invalidate, log_load
from benchmarks.board import MATCHES, READY, Board, Mode
from benchmarks.fence_rounds import percentiles
from benchmarks.report import DOCS, Part, document, parts_of
from benchmarks.storm import Slice, slowdown
from benchmarks.timed_sidecar import NOTES, notes


def test_a_board_is_one_memory_for_all_who_map_it(tmp_path: Path) -> None:
    driver, worker = (Board(tmp_path / "board", workers=3) for _ in range(2))
    driver.begin(Mode.ROUND, 7)
    assert (worker.mode, worker.round) == (Mode.ROUND, 7)
    worker.state[2, MATCHES] += 5
    assert driver.state[2, MATCHES] == 5
    assert driver.state[1, MATCHES] == 0
    worker.state[:2, READY] = 7
    with pytest.raises(RuntimeError, match=r"the pages: workers \[2\]"):
        driver.wait(READY, 7, timeout_s=0.01, what="the pages")
    worker.state[2, READY] = 7
    driver.wait(READY, 7, timeout_s=0.01, what="the pages")


def test_notes_of_publishing_are_one_memory_too(tmp_path: Path) -> None:
    sidecar, driver = notes(tmp_path / "notes"), notes(tmp_path / "notes")
    sidecar[(NOTES + 3) % NOTES] = NOTES + 3, 99
    assert driver[3].tolist() == [NOTES + 3, 99]


def counted(matches: float, cpu_s: float) -> Slice:
    return Slice(np.array([matches]), np.array([cpu_s]), took_s=2.0, sidecar_cpu_s=0.0)


def test_what_a_storm_takes_is_the_same_whatever_share_of_a_processor_a_worker_has() -> None:
    whole = slowdown(counted(1800.0, 2.0), counted(2000.0, 2.0))
    assert whole == pytest.approx(1 - 1800 / 2000)
    half = slowdown(counted(800.0, 1.0), counted(1000.0, 1.0))
    assert half == pytest.approx(whole), "the same 0.2 s of 2 s went on the storm"
    assert slowdown(counted(1000.0, 1.0), counted(1000.0, 1.0)) == pytest.approx(0.0)


def test_percentiles_come_with_how_many_there_were() -> None:
    figures = percentiles("x_ms", [float(at) for at in range(101)])
    assert figures == {"x_ms_p99": 99.0, "x_ms_p50": 50.0, "x_ms_samples": 101.0}


def test_each_part_of_the_page_can_be_written_anew_alone() -> None:
    parts = {part: f"## {part}\n\n| a |" for part in Part}
    assert parts_of(document(parts)) == parts
    assert parts_of("# an old page") == {}
    assert set(parts_of((DOCS / "benchmarks.md").read_text())) == set(Part)


def test_the_page_tells_every_budget_and_whether_it_is_met() -> None:
    fleet = {key: budget if budget is not None else 1.0 for key, _, _, budget in invalidate.BUDGETS}
    fleet |= {key.replace("_p99", "_p50"): 1.0 for key in fleet if key.endswith("_p99")}
    fleet |= {f"{name}_ms_samples": 3.0 for name in ("invalidate_l1", "invalidate_l2", "fence")}
    fleet |= dict.fromkeys(
        ("storm_records_per_s", "storm_slices", "storm_calm_sidecar_cores", "storm_look_ups_not_served"), 1.0
    )
    loads = [
        {key: 1.0 for key, _, _ in log_load.ROWS} | {"members": 1000.0, "replicas": float(at)}
        for at in (0, 1)
    ]

    def page() -> str:
        return "\n".join([*fleet_report.fleet_lines(fleet), *fleet_report.redis_lines(loads)])

    assert all(key in page() for key, _, _, budget in invalidate.BUDGETS if budget is not None)
    assert "missed" not in page()
    fleet["invalidate_l2_ms_p99"] *= 1.01
    assert page().count("**missed**") == 1
