"""What tests ask of a sidecar beside an engine: its figures, invalidations, and that nothing is under way."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.daemon import clean_environment
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess
from tests.vllm.engines import Engine

COMMAND_S_MAX = 60.0


def command(sidecar: SidecarProcess, *words: str, status: int = 0) -> str:
    """Run one of our commands against a sidecar; returns its output."""
    return run_command(*words, "--runtime-dir", str(sidecar.runtime), status=status)


def run_command(*words: str, status: int = 0) -> str:
    """Run one of our commands; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "stratakv", *words],
        capture_output=True, env=clean_environment(), timeout=COMMAND_S_MAX, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def status(sidecar: SidecarProcess) -> dict[str, int]:
    """Figures of its arena."""
    told: dict[str, Any] = json.loads(command(sidecar, "status", "--json"))
    return {name: int(value) for name, value in told["arena"].items()}


def records_stored(sidecar: SidecarProcess) -> int:
    """Pages that went into its L3."""
    return int(json.loads(command(sidecar, "status", "--json"))["l3"]["records"].get("stored", 0))


def invalidate(sidecar: SidecarProcess, *words: str) -> None:
    """Invalidate with a fence."""
    command(sidecar, "invalidate", *words, "--wait", "--yes")


def settled(engine: Engine) -> None:
    """Wait until an engine has nothing under way, its saves included."""
    wait_until(engine.is_idle, what="the engine's saves")


def found(tokens_asked: int, page_tokens: int) -> int:
    """Tokens of a prompt that can be found in whole pages: one is left to compute."""
    return (tokens_asked - 1) // page_tokens * page_tokens
