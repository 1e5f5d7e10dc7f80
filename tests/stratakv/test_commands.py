"""Options as every verb reads them: each once, and none taken for the value of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

from kv_types.limits import LOG_REVISION_MAX, REPLICAS_MAX
from stratakv.cli import app
from tests.stratakv.conftest import Command
from tests.support.admin_site import AdminSite

VERBS = ("status", "invalidate", "log", "members", "namespaces", "inspect", "weights", "replicas")
VALUES = {"int": "1", "float": "1", "str": "x", "Path": "/x"}


def commands_of(name: str, command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(command, TyperGroup):
        for inner, found in command.commands.items():
            yield (name, inner), found
    else:
        yield (name,), command


def valued_options() -> Iterator[tuple[tuple[str, ...], str]]:
    root: Any = typer.main.get_command(app)
    for verb in VERBS:
        for words, command in commands_of(verb, root.get_command(None, verb)):
            for parameter in command.params:
                is_option = parameter.param_type_name == "option"
                if (
                    is_option
                    and not parameter.multiple
                    and (parameter.secondary_opts or not parameter.is_flag)
                ):
                    yield words, parameter.opts[0]


OPTIONS = list(valued_options())


def test_there_are_options_to_look_at() -> None:
    assert len(OPTIONS) > 50
    for known in (
        (("invalidate",), "--tenant"), (("weights", "set-version"), "--model"), (("log",), "--after"),
        (("replicas", "set"), "--endpoint"), (("inspect",), "--special-tokens"), (("status",), "--deadline"),
    ):  # fmt: skip
        assert known in OPTIONS
    assert (("members",), "--forget") not in OPTIONS


@pytest.mark.parametrize(
    ("words", "option"), OPTIONS, ids=[f"{' '.join(words)} {one}" for words, one in OPTIONS]
)
def test_an_option_that_is_given_twice_is_a_usage_error(words: tuple[str, ...], option: str) -> None:
    forms = [(option, "1"), (f"{option}=2",)]
    if option == "--special-tokens":
        forms = [(option,), ("--no-special-tokens",)]
    for first, second in (forms, forms[::-1]):
        refused = CliRunner().invoke(app, [*words, *first, *second])
        shown = " ".join(refused.stderr.replace("│", " ").split())
        assert refused.exit_code == 2
        assert f"give {option} once" in shown or f"give {second[0].partition('=')[0]} once" in shown, shown


def test_flags_say_the_same_however_often(site: AdminSite, stratakv: Command) -> None:
    assert stratakv("invalidate", "--all", "--yes", "--yes").exit_code == 0
    assert stratakv("members", "--forget", "ab" * 16, "--forget", "cd" * 16).exit_code == 3


@pytest.mark.parametrize(
    "words",
    [
        ("invalidate", "--all", "--yes", "--reason", "--wait"),
        ("invalidate", "--all", "--yes", "--reason", "--wait=drained"),
        ("invalidate", "--yes", "--tenant", "--model", "m"),
        ("invalidate", "--all", "--reason", "--yes"),
        ("weights", "set-version", "2", "--model", "m", "--reason", "--no-wait"),
        ("members", "--forget", "--forget-gone"),
        ("log", "--endpoint", "--json"),
    ],
)
def test_an_option_is_not_taken_for_the_value_of_another(
    site: AdminSite, stratakv: Command, words: tuple[str, ...]
) -> None:
    refused = stratakv(*words)
    assert refused.exit_code == 2
    assert "has no value" in refused.stderr
    assert site.call(site.fleet.records) == ()


def test_values_that_look_like_options_can_be_said(site: AdminSite, stratakv: Command) -> None:
    assert stratakv("invalidate", "--all", "--yes", "--reason=--wait").exit_code == 0
    assert stratakv("invalidate", "--all", "--yes", "--reason", "-- no more").exit_code == 0
    assert [record.entry.reason for record in site.call(site.fleet.records)] == ["--wait", "-- no more"]


@pytest.mark.parametrize(
    "wait", [("--wait",), ("--wait", "--yes"), ("--yes", "--wait", "hidden"), ("--wait=hidden",)]
)
def test_wait_may_stand_alone(stratakv: Command, wait: tuple[str, ...]) -> None:
    told = stratakv.json("invalidate", "--namespace", "ab" * 32, *wait)
    assert told["wait"] == "hidden"


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("log", "--after"), LOG_REVISION_MAX),
        (("invalidate", "--dry-run", "--since-revision"), LOG_REVISION_MAX),
        (("invalidate", "--dry-run", "--until-revision"), LOG_REVISION_MAX),
        (("replicas", "set"), REPLICAS_MAX),
    ],
)
def test_numbers_have_bounds(stratakv: Command, words: tuple[str, ...], most: int) -> None:
    assert stratakv(*words, str(most)).exit_code == 0
    for beyond in (most + 1, 2**63, 2**64, 10**23, "9" * 5000, "1.5", "x", ""):
        refused = stratakv(*words, str(beyond))
        assert (refused.exit_code, type(refused.exception)) == (2, SystemExit), beyond
        assert refused.stderr


@pytest.mark.parametrize("deadline", ["nan", "inf", "-1", "0", "1e400", "4000"])
def test_a_deadline_is_a_time(stratakv: Command, deadline: str) -> None:
    refused = stratakv("status", "--deadline", deadline)
    assert (refused.exit_code, type(refused.exception)) == (2, SystemExit)
