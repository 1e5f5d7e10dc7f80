"""Carrying out one invalidation, over gRPC or by the command, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc

from kv_types.clock import BoottimeClock
from kv_wire.admin_calls import AdminCalls
from kv_wire.admin_conversions import selector_to_wire
from kv_wire.channel import open_channel
from kv_wire.gen import admin_pb2
from tests.fleet.purges import Purge, Purged
from tests.support.daemon import run_command

UNREACHABLE, UNCONFIRMED = 1, 3

_CLOCK = BoottimeClock()


def invalidate(
    purge: Purge, runtime: Path, *, wait: str = "hidden", timeout_s: float = 10.0, by_command: bool = False
) -> Purged:
    """Invalidate through the sidecar of a runtime directory."""
    invoked_ns = _CLOCK.now_ns()
    call = _by_command if by_command else _by_grpc
    exit_code, told = call(purge, runtime, wait, timeout_s)
    return Purged(
        purge=purge,
        invoked_ns=invoked_ns,
        ended_ns=_CLOCK.now_ns(),
        exit_code=exit_code,
        reason=str(told.get("reason", "")),
        missing=[_pid(member) for member in told.get("missing", ())],
        gone=[_pid(member) for member in told.get("gone", ())],
    )


def _by_command(purge: Purge, runtime: Path, wait: str, timeout_s: float) -> tuple[int, dict[str, Any]]:
    done = run_command(
        "invalidate", *purge.arguments(), "--wait", wait, "--timeout", f"{timeout_s}s", "--json",
        "--reason", "a test", "--runtime-dir", str(runtime), timeout_s=timeout_s + 20.0,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else {"reason": done.stderr}


def _by_grpc(purge: Purge, runtime: Path, wait: str, timeout_s: float) -> tuple[int, dict[str, Any]]:
    request = admin_pb2.InvalidateRequest(
        selectors=[selector_to_wire(purge.selector())], reason="a test", author="tests",
        wait=f"WAIT_{wait.upper()}", timeout_ms=int(timeout_s * 1000),
    )  # fmt: skip
    with open_channel(f"unix:{runtime / 'grpc.sock'}") as channel:
        try:
            answer = AdminCalls(channel).invalidate(request, timeout=timeout_s + 2.0)
        except grpc.RpcError as error:
            return UNREACHABLE, {"reason": str(error)}
    reason = admin_pb2.Unconfirmed.Name(answer.unconfirmed).removeprefix("UNCONFIRMED_").lower()
    told = {
        "reason": "" if answer.confirmed else reason,
        "missing": [{"note": json.loads(member.note)} for member in answer.missing],
        "gone": [{"note": json.loads(member.note)} for member in answer.gone],
    }
    return 0 if answer.confirmed else UNCONFIRMED, told


def _pid(member: dict[str, Any]) -> int:
    note = member["note"]
    return int(note["pid"]) if isinstance(note, dict) and "pid" in note else 0
