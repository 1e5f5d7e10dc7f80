"""The demo is honest: whatever it promises of its nodes and its invalidation and does not hold is said, and is a failure."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support.daemon import ROOT
from tests.support.polling import wait_until

STEP = {"reused": 1392, "pages_l1": 0, "pages_l2": 87, "pages_stored": 0, "off": "", "first_token_s": 0.2}
GOOD: dict[str, Any] = {
    "tokens": 1400,
    "kept_tokens": 16,
    "counted": {
        "exit_code": 0,
        "said": "",
        "told": {"tiers": [{"tier": "L2", "pages": 107, "bytes": 1 << 20}]},
    },
    "command": {
        "exit_code": 0,
        "said": "",
        "told": {"confirmed": True, "waited_ms": 4, "appended": [{"incarnation": "ab" * 16, "revision": 1}]},
    },
    "before": dict(STEP),
    "after": {**STEP, "reused": 16, "pages_l1": 1, "pages_l2": 0, "pages_stored": 86},
    "again": dict(STEP),
    "same_first_token": True,
    "logits_difference": 1e-5,
}
BREAKS: dict[str, tuple[tuple[str, ...], Any]] = {
    "nothing was reused before": (("before", "reused"), 0),
    "the dry run selects nothing": (("counted", "told"), {"tiers": []}),
    "the command fails": (("command", "exit_code"), 3),
    "the command confirms nothing": (("command", "told", "confirmed"), False),
    "a stale page is reused": (("after", "reused"), 32),
    "more goes than was named": (("after", "reused"), 0),
    "nothing is stored anew": (("after", "pages_stored"), 0),
    "reuse is off": (("after", "off"), "the sidecar is gone"),
    "it does not hit again": (("again", "reused"), 16),
    "computed and reused answers differ": (("logits_difference",), 0.5),
    "another token comes first": (("same_first_token",), False),
}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts there import each other as python runs them: by their own folder."""
    monkeypatch.syspath_prepend(ROOT / "examples")


def test_a_demo_that_went_well_breaks_no_promise() -> None:
    import demo_purge

    assert demo_purge.broken_promises(GOOD) == []


@pytest.mark.parametrize("name", BREAKS)
def test_each_promise_that_is_broken_is_said(name: str) -> None:
    import demo_purge

    (*way, last), value = BREAKS[name]
    purged = copy.deepcopy(GOOD)
    at = purged
    for step in way:
        at = at[step]
    at[last] = value
    assert len(demo_purge.broken_promises(purged)) == 1


ROW = {
    "tokens": 1400, "reused": 1392, "pages_l1": 0, "pages_l2": 0, "pages_l3": 87, "ended_by": "none",
}  # fmt: skip
SHARED: dict[str, Any] = {
    "rows": [ROW], "off": "", "warm_s": 0.2, "cold_s": 2.0, "logits_difference": 1e-5, "same_first_token": True,
}  # fmt: skip
THERE: dict[str, Any] = {"namespaces": [{"l3_pages": 87}]}
NODE_BREAKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reuse is off": ({"off": "the sidecar is gone"}, THERE),
    "too little is reused": ({"rows": [{**ROW, "reused": 1000}]}, THERE),
    "a page was there before": ({"rows": [{**ROW, "pages_l2": 1}]}, THERE),
    "the sidecar counts otherwise": ({}, {"namespaces": [{"l3_pages": 86}]}),
    "logits differ": ({"logits_difference": 0.5}, THERE),
    "another token comes first": ({"same_first_token": False}, THERE),
    "it comes later": ({"warm_s": 2.5}, THERE),
}


def test_a_node_that_shared_well_breaks_no_promise() -> None:
    import demo_share

    assert demo_share.broken_promises(demo_share.Shared(stored=107, result=SHARED, there=THERE)) == []


@pytest.mark.parametrize("name", NODE_BREAKS)
def test_each_promise_of_another_node_that_is_broken_is_said(name: str) -> None:
    import demo_share

    changed, there = NODE_BREAKS[name]
    shared = demo_share.Shared(stored=107, result={**SHARED, **changed}, there=there)
    assert len(demo_share.broken_promises(shared)) == 1


KEEPS_REDIS = """
import pathlib, sys, rich.console
from demo_nodes import SharedRedis
from demo_processes import Children
folder = pathlib.Path(sys.argv[1])
children = Children(rich.console.Console(), folder)
shared = SharedRedis(children, folder)
children.stop(keep=[shared.process])
print(shared.process.pid)
"""


def test_what_is_kept_outlives_the_demo(tmp_path: Path) -> None:
    """With --keep: sidecars whose log and pages had gone would serve nothing any more."""
    path = os.pathsep.join((str(ROOT / "examples"), str(ROOT)))
    demo = subprocess.run(
        [sys.executable, "-c", KEEPS_REDIS, str(tmp_path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    pid = int(demo.stdout)
    with Redis(unix_socket_path=str(tmp_path / "redis.sock")) as client:
        try:
            assert client.ping()
        finally:
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not (tmp_path / "redis.sock").exists(), what="the redis-server to end")
