"""FenceEvaluation: decides when an appended record is final for the whole fleet (rules R11, R12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from invalidation.log import FenceState, MemberState
from invalidation.silence import Silence
from invalidation.timing import Timing
from kv_types.ids import Stamp


class Wait(StrEnum):
    """What a fence promises once it is reached."""

    HIDDEN = "hidden"
    """No look-up invoked from now on gets a page that the record selects, on any node and tier."""
    DRAINED = "drained"
    """And nothing that uses one is left anywhere. Never concluded from silence."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: `why`, and the members that have not got there, by id."""

    why: str
    missing: Mapping[bytes, MemberState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reached:
    """The promise holds. `gone`: members given up, whose pages nobody is served any more; have them `leave`, undrained."""

    gone: Mapping[bytes, MemberState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewIncarnation:
    """The record is no part of the log, which stands at `tip`: append again, under the same request id."""

    tip: Stamp


Verdict = Pending | Reached | NewIncarnation


class FenceEvaluation:
    """Evaluates one fence: everything up to `stamp`, which was appended before this was made. Pure.

    A member has got there when it has acknowledged (drained) the revision, or is gone, as Silence judges it: each later
    renewal of it would bring it the record. Members that join later start at or above the revision, or must acknowledge
    it as all others.

    Who has not joined serves nothing, but requests may run below it. The log can't know of it; whoever evaluates knows of
    itself, so that nothing counts as drained before `me`, its own id, is a member.
    """

    def __init__(self, *, stamp: Stamp, wait: Wait, timing: Timing, me: bytes) -> None:
        self._stamp = stamp
        self._wait = wait
        self._me = me
        self._silence = Silence(timing)

    def observe(self, state: FenceState, *, now_ns: int) -> Verdict:
        """Judge what `InvalidationLog.fence` returned; `now_ns` (CLOCK_BOOTTIME) is read after it did, never before."""
        if not state.confirmed:
            # an old primary may say it: neither what it says of members nor its incarnation is an observation
            return Pending(f"replication not confirmed: {state.replicas} configured replicas must answer")
        if state.tip.incarnation != self._stamp.incarnation or state.tip.revision < self._stamp.revision:
            return NewIncarnation(state.tip)
        missing = {
            member: now
            for member, now in state.members.items()
            if (now.drained if self._wait is Wait.DRAINED else now.acknowledged) < self._stamp.revision
        }
        silent = self._silence.observe(missing, now_ns=now_ns)
        gone = silent if self._wait is Wait.HIDDEN else {}
        if not state.settled:
            return Pending("the log's incarnation is not settled yet", _without(missing, gone))
        if len(gone) < len(missing):
            behind = "acknowledged" if self._wait is Wait.HIDDEN else "drained"
            return Pending(f"members have not {behind}", _without(missing, gone))
        if self._wait is Wait.DRAINED and self._me not in state.members:
            return Pending("this sidecar has not joined the log yet, and what runs below it is not counted")
        return Reached(gone)


def _without(
    missing: Mapping[bytes, MemberState], gone: Mapping[bytes, MemberState]
) -> dict[bytes, MemberState]:
    return {member: now for member, now in missing.items() if member not in gone}
