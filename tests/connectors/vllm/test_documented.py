"""docs/vllm.md lists every setting with its default, and every counter, and no others."""

from __future__ import annotations

import dataclasses
import json
import re
from enum import StrEnum

import pytest

from inference_worker.connectors.vllm.metric_names import FAMILIES
from inference_worker.connectors.vllm.settings import ConnectorSettings
from kv_types.errors import ConfigError
from kv_types.namespace import UncacheableReason
from kv_types.outcomes import MissReason, RefuseReason
from tests.test_tidy import ROOT

PAGE = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Rows of the first table below a heading, without its head."""
    lines = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert rows, f"no table below {heading!r}"
    return rows[2:]


SETTINGS = {row[0].strip("`"): row for row in table("Settings")}


def test_every_setting_is_listed() -> None:
    with pytest.raises(ConfigError) as told:
        ConnectorSettings.of({"": 0})
    known = str(told.value).partition("Known keys: ")[2].split(", ")
    assert sorted(SETTINGS) == sorted(known)


@pytest.mark.parametrize("key", SETTINGS)
def test_defaults_are_those_that_hold(key: str) -> None:
    shown = json.loads(SETTINGS[key][1].strip("`"))
    assert ConnectorSettings.of({key: shown}) == ConnectorSettings.of({})


CHOICES = {
    field.name: type(field.default)
    for field in dataclasses.fields(ConnectorSettings)
    if isinstance(field.default, StrEnum)
}


@pytest.mark.parametrize("name", CHOICES)
def test_all_choices_are_listed(name: str) -> None:
    row = SETTINGS["tenant" if name == "tenant_source" else name]
    assert set(re.findall(r'`"([a-z_]+)', row[2])) == {str(member) for member in CHOICES[name]}


def test_every_counter_is_listed_with_its_label() -> None:
    listed = {row[0].strip("`"): row[1].strip("`") for row in table("Looking at it")}
    assert listed == {family.name: family.label for family in FAMILIES}


def test_reasons_that_are_listed_exist() -> None:
    listed = {name for row in table("What is cached, and when") for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == {str(reason) for reason in UncacheableReason}


def test_reasons_of_a_low_hit_rate_exist() -> None:
    named = {
        name for row in table("Why a hit rate can be 0") for name in re.findall(r'"([a-z0-9_]+)"', row[0])
    }
    known = {reason.name.lower() for reason in (*MissReason, *RefuseReason)} | {"emptied"}
    assert named
    assert named <= known
