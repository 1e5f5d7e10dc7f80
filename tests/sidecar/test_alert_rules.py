"""The alert rules: they name what a sidecar shows, each has a case in which it fires, and promtool, if there is one, agrees."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from cache_l2.attach_messages import Speeds
from cache_l3.lossy import PageError
from cache_l3.lossy_tally import LossyTally
from cache_l3.page_codecs import Packed
from kv_types.ids import NamespaceId
from kv_types.record import Codec
from sidecar.metrics import Metrics
from tests.sidecar.l3.test_tier import STATE
from tests.sidecar.test_metrics import snapshot
from tests.support.daemon import ROOT

RULES_FILE = ROOT / "deploy" / "prometheus-rules.yml"
CASES_FILE = ROOT / "deploy" / "prometheus-rules-test.yml"
RULES = [
    rule
    for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """All series of a sidecar of which everything is known."""
    tally = LossyTally()
    tally.count(NamespaceId(b"a" * 32), Packed(Codec.INT8, memoryview(b""), PageError(0.01, 0.01)))
    state = replace(
        snapshot(1), l3=replace(STATE, lossy=tally.read()), speeds={1: Speeds(8000.0, 0.00001, 1e10)}
    )
    metrics = Metrics(version="1", life=b"l" * 16, snapshot=lambda: state)
    return [
        line for line in generate_latest(metrics.registry).decode().splitlines() if not line.startswith("#")
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_rules_name_metrics_that_there_are(rule: dict[str, Any], lines: list[str]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert re.fullmatch(r"[1-9]\d*[smh]", rule["for"])
    assert rule["expr"].count("(") == rule["expr"].count(")")
    there = {re.split(r"[{ ]", line)[0] for line in lines}
    named = set(re.findall(r"stratakv_\w+", rule["expr"]))
    assert named
    assert named <= there
    for metric, labels in re.findall(r"(stratakv_\w+)\{([^}]*)\}", rule["expr"]):
        for label, _, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', labels):
            told = [re.search(rf'{label}="([^"]*)"', line) for line in lines if line.startswith(metric + "{")]
            assert any(one is not None and re.fullmatch(value, one[1]) for one in told), (
                metric,
                label,
                value,
            )


def test_each_alert_is_shown_firing() -> None:
    cases = yaml.safe_load(CASES_FILE.read_text(encoding="utf-8"))["tests"]
    fired = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: Debian has it in the package prometheus")
@pytest.mark.parametrize(
    "words", [("check", "rules", RULES_FILE), ("test", "rules", CASES_FILE)], ids=["check", "test"]
)
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
