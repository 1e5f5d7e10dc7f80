"""A moment of a sidecar that follows its log, for tests that need none to be followed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kv_types.ids import Stamp, log_incarnation
from sidecar.l3.tier import L3State
from sidecar.log.state import LogPicture, LogState

STATE = LogState(
    phase="following", reason="", member=b"m" * 16, position=Stamp(log_incarnation(b"i" * 16), 41), tip=44,
    acknowledged=40, drained=39, settled=True, replicas=1, confirmed_ago_s=0.5, held_by=(), draining_held_by=(),
    renewals={"ok": 3}, sizes={"tombstones": 7, "log_records": 44}, pages_hidden=5, records_applied=41,
)  # fmt: skip


NO_L3 = L3State(why_off="no servers are named")


def no_l3() -> L3State:
    """Of a sidecar without L3."""
    return NO_L3


def log_state(**changes: Any) -> LogState:
    return replace(STATE, **changes)


def log_picture(**changes: Any) -> LogPicture:
    """One of a shared log; `changes` are to its state."""
    return LogPicture(
        fleet="default", kind="redis", address="redis://log:6379", why_local="", state=log_state(**changes),
        weights={"llama": "v2"},
    )  # fmt: skip
