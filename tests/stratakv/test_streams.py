"""Standard streams at their worst: closed, full, of few letters, or fed with bytes that are no text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.stratakv.conftest import Command, selectors
from tests.support.admin_site import AdminSite
from tests.support.daemon import ROOT, clean_environment, run_command


@pytest.mark.parametrize("sink", ["pipe", "full"])
@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("code", [0, 3])
def test_an_answer_that_nobody_can_read_changes_no_exit_code(
    site: AdminSite, sink: str, form: tuple[str, ...], code: int
) -> None:
    site.members[1].acknowledges = code == 0
    words = ("invalidate", "--all", "--yes", "--timeout", "100ms", *form)
    ended = unheard(site, words, sink=sink)
    assert ended.returncode == code, ended.stderr
    assert "not all of the answer could be written" in ended.stderr
    assert ("not confirmed" in ended.stderr) == (code == 3)
    assert "Traceback" not in ended.stderr
    assert len(selectors(site)) == 1


@pytest.mark.parametrize(
    "words",
    [("replicas", "set", "0"), ("members", "--forget-gone"), ("weights", "set-version", "8", "--model", "m")],
)
def test_what_was_done_is_exit_0_whoever_reads_it(site: AdminSite, words: tuple[str, ...]) -> None:
    ended = unheard(site, words, sink="full")
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr


@pytest.mark.parametrize("verb", ["invalidate", "log", "weights"])
def test_names_that_a_terminal_has_no_letters_for_are_escaped(site: AdminSite, verb: str) -> None:
    words = {
        "invalidate": ("invalidate", "--model", "m\u6a21", "--yes"),
        "log": ("log",),
        "weights": ("weights", "set-version", "\u6a21", "--model", "m"),
    }[verb]
    run_command("invalidate", "--model", "m\u6a21", "--yes", "--runtime-dir", str(site.runtime_dir))
    ended = run_command(
        *words, "--runtime-dir", str(site.runtime_dir), environment={"PYTHONIOENCODING": "ascii"}
    )
    assert ended.returncode == 0, ended.stderr
    assert "\\u6a21" in ended.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("invalidate", "--all", "--yes", "--reason", "\udcff"),
        ("invalidate", "--model", "\udcff", "--yes"),
        ("weights", "set-version", "1", "--model", "\udcff"),
        ("weights", "set-version", "\udcff", "--model", "m"),
        ("weights", "set-version", "1", "--model", "m", "--from", "\udcff"),
    ],
)
def test_what_is_no_text_is_a_usage_error(site: AdminSite, stratakv: Command, words: tuple[str, ...]) -> None:
    ended = stratakv(*words)
    assert ended.exit_code == 2, ended.exception
    assert "text" in ended.stderr
    assert selectors(site) == []


def unheard(site: AdminSite, words: tuple[str, ...], *, sink: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard output is a pipe that nobody reads, or a disk without room."""
    reading, writing = os.pipe() if sink == "pipe" else (None, os.open("/dev/full", os.O_WRONLY))
    if reading is not None:
        os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "stratakv", *words, "--runtime-dir", str(site.runtime_dir)],
            cwd=ROOT, env=clean_environment(), stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writing)
