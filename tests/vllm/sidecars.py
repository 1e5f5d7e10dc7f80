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
    return {name: int(value) for name, value in _told(sidecar)["arena"].items()}


def records(sidecar: SidecarProcess, name: str) -> int:
    """How often something has become of records of its L3 in this life: stored, corrupt, ..."""
    return int(_told(sidecar)["l3"]["records"].get(name, 0))


def attached(sidecar: SidecarProcess, engine: Engine) -> None:
    """Wait until both sides of an engine have come to this life of a sidecar, and find all it has, its L3 included.

    Whoever asks before that misses, and computes and stores what there is already.
    """
    told: dict[str, Any] = {}

    def found_all() -> bool:
        told.update(_told(sidecar), seen_by=engine.inside("tests.vllm.load_faults:headers"))
        if not all(side["is_fresh"] and side["life"] == told["life"] for side in told["seen_by"]):
            return False
        servers = _servers(told)
        return all(server["breaker"] == "closed" and server["connections"] for server in servers)

    wait_until(
        found_all,
        what=lambda: f"the engine's return to life {told['life']}: {told['seen_by']}, {_servers(told)}",
    )


def _servers(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of its L3; none where there is none."""
    return list((told["l3"] or {}).get("servers", ()))


def _told(sidecar: SidecarProcess) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(command(sidecar, "status", "--json"))
    return told


def invalidate(sidecar: SidecarProcess, *words: str) -> None:
    """Invalidate with a fence."""
    command(sidecar, "invalidate", *words, "--wait", "--yes")


def idle(engine: Engine) -> None:
    """Wait until an engine has nothing under way, its saves included; a sidecar that stands still has not seen them."""
    wait_until(engine.is_idle, what="the engine's saves")


def settled(engine: Engine) -> None:
    """Wait until an engine has nothing under way, and its sidecar has what it saved: who looks for it finds it."""
    idle(engine)
    wait_until(
        lambda: not engine.inside("tests.vllm.load_faults:posted_pages"),
        what="the sidecar to take over what was saved",
    )


def found(tokens_asked: int, page_tokens: int) -> int:
    """Tokens of a prompt that can be found in whole pages: one is left to compute."""
    return (tokens_asked - 1) // page_tokens * page_tokens
