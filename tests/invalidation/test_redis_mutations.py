"""Each breach that only real servers show is found by the test that is named for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.invalidation.redis_mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
_TESTS_FAILED = 1
"""What pytest exits with when tests ran and failed, and with nothing else."""


@pytest.mark.parametrize("number", MUTATIONS)
def test_a_test_against_real_servers_finds_it(number: str) -> None:
    command = [sys.executable, "-m", "tests.invalidation.redis_mutations", number]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == _TESTS_FAILED, done.stdout[-2000:] + done.stderr[-2000:]
    assert MUTATIONS[number][1] in done.stdout
