"""Why a page of L3 can't be served, out of why the arena would refuse it."""

from __future__ import annotations

from kv_types.ids import Stamp
from kv_types.outcomes import MissReason, RefuseReason

_MISSES = {
    RefuseReason.NONE: MissReason.NONE,
    RefuseReason.FULL: MissReason.NO_ROOM,
    RefuseReason.TOO_LARGE: MissReason.NO_ROOM,
    RefuseReason.QUOTA: MissReason.NO_ROOM,
    RefuseReason.INVALIDATED: MissReason.INVALIDATED,
    RefuseReason.CLOSED: MissReason.CLOSED,
    RefuseReason.CORRUPT: MissReason.CORRUPT,
    RefuseReason.EXPIRED: MissReason.EXPIRED,
    RefuseReason.UNKNOWN_NAMESPACE: MissReason.UNKNOWN_NAMESPACE,
}


def miss_of(reason: RefuseReason, *, stamp: Stamp | None = None, position: Stamp | None = None) -> MissReason:
    """Reason of the miss. A foreign `stamp` is of another incarnation than `position`, or ahead of it: then this is stale."""
    if reason is RefuseReason.STAMP_FOREIGN:
        is_ahead = stamp is not None and position is not None and stamp.incarnation == position.incarnation
        return MissReason.STALE if is_ahead else MissReason.INVALIDATED
    return _MISSES.get(reason, MissReason.ABSENT)
