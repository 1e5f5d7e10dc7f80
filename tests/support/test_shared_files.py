"""What a test left in shared memory is told from what others make there meanwhile."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.daemon import ROOT
from tests.support.shared_files import nothing_new_in_shared_memory

HOLDS = {
    "open": "import sys; file = open(sys.argv[1], 'w+b'); print('made', flush=True); sys.stdin.read()",
    "mapped": (
        "import mmap, sys; file = open(sys.argv[1], 'w+b'); file.truncate(4096); held = mmap.mmap(file.fileno(), 4096); "
        "file.close(); print('made', flush=True); sys.stdin.read()"
    ),
}


@pytest.fixture
def path() -> Iterator[Path]:
    path = Path("/dev/shm") / f"stratakv-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "package", ["kv_types", "kv_wire", "cache_l2", "invalidation", "sidecar", "stratakv"]
)
def test_nothing_of_the_daemon_uses_multiprocessing(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        if (
            path.name == "simulate.py"
        ):  # a command that replays traces in processes of its own, and has no daemon
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                named = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not any(name.split(".")[0] == "multiprocessing" for name in named), path


def test_what_nobody_uses_was_left(path: Path) -> None:
    with pytest.raises(AssertionError, match=path.name), nothing_new_in_shared_memory(timeout_s=0.0):
        path.touch()


def test_what_one_of_ours_uses_was_left(path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=path.name),
        nothing_new_in_shared_memory(ours={os.getpid()}, timeout_s=0.0),
        path.open("wb"),
    ):
        pass


@contextmanager
def holding(path: Path, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has made the file and uses it."""
    command = [sys.executable, "-c", HOLDS[how], str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        yield process


@pytest.mark.parametrize("how", HOLDS)
def test_what_another_living_process_uses_is_its_own(path: Path, how: str) -> None:
    with ExitStack() as stack, nothing_new_in_shared_memory(timeout_s=0.0):
        stack.enter_context(holding(path, how))


@pytest.mark.parametrize("how", HOLDS)
def test_what_a_killed_process_used_was_left(path: Path, how: str) -> None:
    with (
        pytest.raises(AssertionError, match=path.name),
        nothing_new_in_shared_memory(timeout_s=0.0),
        holding(path, how) as process,
    ):
        process.kill()
