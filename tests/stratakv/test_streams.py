"""Standard streams at their worst: closed, full, of few letters, or fed with bytes that are no text."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.stratakv.conftest import Command, selectors
from tests.support.admin_site import AdminSite
from tests.support.daemon import ROOT, clean_environment, run_command
from tests.support.polling import wait_until


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


READING = {
    "status": ("status",),
    "dry run": ("invalidate", "--all", "--dry-run"),
    "log": ("log",),
    "log that goes on": ("log", "--follow"),
    "members": ("members",),
    "namespaces": ("namespaces",),
    "inspect": ("inspect", "ab" * 32),
    "help": ("invalidate", "--help"),
    "version": ("--version",),
}
JSON = {"dry run", "log", "members", "namespaces"}
FORMS = [(name, ()) for name in READING] + [(name, ("--json",)) for name in READING if name in JSON]


@pytest.mark.parametrize(("name", "form"), FORMS, ids=[" ".join((name, *form)) for name, form in FORMS])
def test_what_only_shows_something_fails_in_a_line_where_there_is_no_room_and_ends_quietly_unread(
    site: AdminSite, stratakv: Command, name: str, form: tuple[str, ...]
) -> None:
    assert stratakv("invalidate", "--all", "--yes").exit_code == 0
    words = (*READING[name], *form)
    full = unheard(site, words, sink="full")
    assert (full.returncode, full.stderr) == (
        1,
        "stratakv: not all of the output could be written (No space left on device)\n",
    )
    unread = unheard(site, words, sink="pipe")
    assert (unread.returncode, unread.stderr) == (0, "")


def test_a_pipe_that_is_closed_in_between_ends_a_command_quietly(site: AdminSite, stratakv: Command) -> None:
    """As by head: what was read stands, and the exit code doesn't fail whoever checks all of a pipe."""
    for number in range(40):
        stratakv("invalidate", "--all", "--yes", "--reason", f"{number}" * 500)
    ended = in_shell(site, 'log --json | head -1; echo "${PIPESTATUS[0]}"')
    first, code = ended.stdout.splitlines()
    assert json.loads(first)["revision"] == 1
    assert (code, ended.stderr) == ("0", "")


CLOSED = ("2>&-", ">&-", "<&-", "<&- >&- 2>&-")


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("invalidate --all --yes", 0),
        ("invalidate --all --yes --json --timeout 100ms", 3),
        ("invalidate --all", 2),
        ("log", 0),
        ("status --endpoint /nowhere", 1),
    ],
)
def test_closed_streams_change_no_exit_code(site: AdminSite, closed: str, words: str, code: int) -> None:
    site.members[1].acknowledges = code != 3
    ended = in_shell(site, words, closed, where="--endpoint" not in words)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(selectors(site)) == ("--yes" in words)
    if code == 2 and "2>" not in closed:
        assert ended.stderr


@pytest.mark.parametrize(("words", "code"), [("invalidate --all --yes", 0), ("invalidate", 2), ("--help", 0)])
def test_errors_that_nobody_can_read_change_no_exit_code(site: AdminSite, words: str, code: int) -> None:
    assert in_shell(site, words, "2>/dev/full", where=words != "--help").returncode == code


def test_nothing_is_what_a_closed_input_holds(site: AdminSite) -> None:
    ended = in_shell(site, "invalidate --yes --prefix-tokens -", "<&-")
    assert (ended.returncode, "there are no token ids" in ended.stderr) == (2, True)


def test_a_sidecar_starts_and_serves_without_any_stream(tmp_path: Path) -> None:
    """Its sockets and its redis-server must not become what it prints to."""
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch:
        process = subprocess.Popen(
            f'exec {shlex.quote(sys.executable)} -m stratakv serve --runtime-dir {scratch}/run --arena-size 64MiB <&- >&- 2>&-',
            shell=True, cwd=ROOT, env=clean_environment(),
        )  # fmt: skip
        try:
            wait_until(
                lambda: run_command("status", "--runtime-dir", f"{scratch}/run").returncode == 0,
                timeout_s=30, what="a sidecar that answers",
            )  # fmt: skip
            done = run_command("invalidate", "--all", "--yes", "--runtime-dir", f"{scratch}/run")
            assert done.returncode == 0, done.stderr
        finally:
            process.terminate()
        assert process.wait(30) == 0


def in_shell(
    site: AdminSite, words: str, redirections: str = "", *, where: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does, with its redirections; what is behind a bar is another's."""
    ours, bar, others = words.partition("|")
    place = f"--runtime-dir {shlex.quote(str(site.runtime_dir))}" if where else ""
    line = f"{shlex.quote(sys.executable)} -m stratakv {ours} {place} {redirections} {bar}{others}"
    return subprocess.run(
        ["/bin/bash", "-c", line],
        cwd=ROOT, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def unheard(site: AdminSite, words: tuple[str, ...], *, sink: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard output is a pipe that nobody reads, or a disk without room."""
    place = [] if words == ("--version",) else ["--runtime-dir", str(site.runtime_dir)]
    reading, writing = os.pipe() if sink == "pipe" else (None, os.open("/dev/full", os.O_WRONLY))
    if reading is not None:
        os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "stratakv", *words, *place],
            cwd=ROOT, env=clean_environment(), stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writing)
