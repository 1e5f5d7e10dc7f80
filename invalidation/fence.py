"""FenceEvaluation: decides when an appended record is final for the whole fleet (rules R11, R12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from invalidation.log import FenceState, MemberState
from invalidation.notes import MemberNote
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
    """The record is no part of the log any more: append again, under the same request id."""


Verdict = Pending | Reached | NewIncarnation


@dataclass(frozen=True, slots=True)
class _Seen:
    number: int
    first_ns: int


class FenceEvaluation:
    """Evaluates one fence: everything up to `stamp`, which was appended before this was made. Pure.

    A member has got there when it has acknowledged (drained) the revision. It is gone when it said so, or when its
    renewal number has not changed for the window on this evaluator's clock since it was first seen with it: then the
    freshness of its last renewal, sent before it was seen, is over, and each later renewal would bring it the record.
    A member with clients whose own caches go on without it (`engines_keep`), or whose note can't be read, is never gone.
    Members that join later start at or above the revision, or must acknowledge it as all others.
    """

    def __init__(self, *, stamp: Stamp, wait: Wait, timing: Timing) -> None:
        self._stamp = stamp
        self._wait = wait
        self._timing = timing
        self._seen: dict[bytes, _Seen] = {}

    def observe(self, state: FenceState, *, now_ns: int) -> Verdict:
        """Judge what `InvalidationLog.fence` returned; `now_ns` (CLOCK_BOOTTIME) is read after it did, never before."""
        if state.tip.incarnation != self._stamp.incarnation or state.tip.revision < self._stamp.revision:
            return NewIncarnation()
        if not state.confirmed:
            # what an old primary says of members is no observation
            return Pending(f"replication not confirmed: {state.replicas} configured replicas must answer")
        missing = {
            member: now
            for member, now in state.members.items()
            if (now.drained if self._wait is Wait.DRAINED else now.acknowledged) < self._stamp.revision
        }
        self._watch(missing, now_ns)
        gone = {
            member: now
            for member, now in missing.items()
            if self._wait is Wait.HIDDEN and self._is_gone(member, now, now_ns)
        }
        if not state.settled:
            return Pending("the log's incarnation is not settled yet", _without(missing, gone))
        if len(gone) < len(missing):
            return Pending("members have not acknowledged", _without(missing, gone))
        return Reached(gone)

    def _watch(self, missing: Mapping[bytes, MemberState], now_ns: int) -> None:
        self._seen = {
            member: seen
            if (seen := self._seen.get(member)) is not None and seen.number == now.number
            else _Seen(now.number, now_ns)
            for member, now in missing.items()
        }

    def _is_gone(self, member: bytes, now: MemberState, now_ns: int) -> bool:
        silent_ns = now_ns - self._seen[member].first_ns
        if not now.gone and silent_ns < self._timing.window_ns():  # no note says less: it need not be read
            return False
        note = MemberNote.decode(now.note)
        if note is None or note.engines_keep:
            return False
        return now.gone or silent_ns >= self._timing.window_ns(lease_ns=note.lease_ns)


def _without(
    missing: Mapping[bytes, MemberState], gone: Mapping[bytes, MemberState]
) -> dict[bytes, MemberState]:
    return {member: now for member, now in missing.items() if member not in gone}
