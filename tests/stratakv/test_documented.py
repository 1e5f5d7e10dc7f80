"""What documents say of the command is there: verbs, options, JSON keys and reasons."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sidecar.admin.fencing import Unconfirmed
from stratakv.cli import app
from tests.stratakv.conftest import Command
from tests.support.admin_site import AdminSite
from tests.support.daemon import ROOT
from tests.test_documents import DOCUMENTS
from tests.test_tidy import _name

_PAGE = ROOT / "docs" / "invalidation.md"
_INLINE = re.compile(r"`(stratakv [^`]+)`")
_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _commands(text: str) -> Iterator[list[str]]:
    """Words of each command that a document shows; what stands behind # is left out."""
    lines = [
        line for block in _BLOCK.findall(text) for line in block.splitlines() if line.startswith("stratakv ")
    ]
    for line in lines + _INLINE.findall(text):
        yield shlex.split(line.replace("…", ""), comments=True)[1:]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_commands_and_options_that_are_shown_exist(path: Path) -> None:
    for words in _commands(path.read_text(encoding="utf-8")):
        command: Any = typer.main.get_command(app)
        while words and (inner := getattr(command, "get_command", None)) is not None:
            word = words.pop(0)
            if word.startswith("-"):
                words.insert(0, word)
                break
            command = inner(None, word)
            assert command is not None, f"{_name(path)} shows the verb {word!r}"
        options = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in options | {"--help"}, (
                    f"{_name(path)} shows {word} of {command.name}"
                )


def test_every_reason_and_every_key_of_the_json_is_documented(site: AdminSite, stratakv: Command) -> None:
    documented = set(re.findall(r"`(\w+)`", _PAGE.read_text(encoding="utf-8")))
    assert {str(reason) for reason in Unconfirmed} | {"connection"} <= documented
    site.members[1].is_silent = True
    answers = [
        stratakv.json("invalidate", "--namespace", site.store.namespaces()[0].id.hex()),
        stratakv.json("invalidate", "--all", "--dry-run"),
        stratakv.json("weights", "set-version", "2", "--model", "m", "--from", "1"),
        stratakv.json("members"),
        stratakv.json("namespaces"),
        stratakv.json("inspect", "00" * 32),
        {**stratakv.json("members", "--forget-gone", "--forget", "00" * 16, code=3), "reasons": {}},
    ]
    for answer in answers:
        assert _keys(answer) <= documented


def _keys(value: Any) -> set[str]:
    """All keys in a JSON value, but those of sizes, which are names of things, and of selectors, which are options."""
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    if not isinstance(value, dict):
        return set()
    inner = (_keys(part) for name, part in value.items() if name not in ("sizes", "selectors"))
    return set(value) | set().union(*inner)


def test_the_table_of_mutations_names_tests_that_are_there() -> None:
    """Broken twins by their parameters' names, as pytest shows them."""
    from docs.generate_mutations import BROKEN_TWINS, MUTATIONS

    assert list(MUTATIONS) == list(range(1, 35))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests" / "invalidation").glob("*.py"))
    for test in BROKEN_TWINS.values():
        name, _, parameter = test.partition("[")
        assert f"def {name}(" in sources
        assert parameter.rstrip("]") in sources
