"""The example with two servers shows what it says, and leaves nothing behind, interrupted or not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.vllm_models import cache_folder
from tests.support.daemon import ROOT, clean_environment
from tests.support.polling import wait_until
from tests.support.processes import heeding_interrupts

EXAMPLE_S_MAX = 420.0
LINE = re.compile(
    r"first token after +[\d.]+ s; of ([\d,]+) tokens ([\d,]+) from vLLM's own cache, ([\d,]+) from stratakv, ([\d,]+) computed"
)


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the example's folder goes; a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="skv-") as folder:
        yield Path(folder)


def start(place: Path) -> subprocess.Popen[str]:
    environment = {
        "PYTHON": sys.executable,
        "TMPDIR": str(place),
        "MODEL_CACHE": str(cache_folder()),
    }
    with heeding_interrupts():
        return subprocess.Popen(
            [str(ROOT / "examples" / "vllm_two_replicas.sh")], env=clean_environment(environment), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def left_behind(place: Path) -> list[list[str]]:
    """Command lines of processes that belong to the example of a place."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(str(place) in word for word in line)]


@pytest.mark.timeout(EXAMPLE_S_MAX + 60)
def test_two_replicas_share_until_it_is_invalidated(place: Path) -> None:
    example = start(place)
    said, _ = example.communicate(timeout=EXAMPLE_S_MAX)
    assert example.returncode == 0, said
    counts = [[int(number.replace(",", "")) for number in found] for found in LINE.findall(said)]
    assert len(counts) == 5, said
    tokens = counts[0][0]
    assert tokens > 1200
    assert all(sum(of[1:]) == of[0] == tokens for of in counts)
    most = (tokens - 1) // 128 * 128
    assert [tuple(of[1:3]) for of in counts] == [(0, 0), (0, most), (most, 0), (0, 0), (0, most)], said
    assert left_behind(place) == []
    assert list(place.iterdir()) == []


def test_an_interrupted_example_leaves_nothing_behind(place: Path) -> None:
    example = start(place)
    wait_until(lambda: len(left_behind(place)) >= 3, timeout_s=60, what="the sidecar and both servers")
    os.killpg(example.pid, signal.SIGINT)
    said, _ = example.communicate(timeout=60)
    assert example.returncode != 0, said
    assert left_behind(place) == []
    assert list(place.iterdir()) == []
