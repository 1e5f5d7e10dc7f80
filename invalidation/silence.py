"""Silence: which members of a fleet have not been heard of for so long that their freshness is over for sure (rule R11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from invalidation.log import FenceState, MemberState
from invalidation.notes import MemberNote
from invalidation.timing import Timing
from kv_types.ids import LogIncarnation
from kv_types.limits import LOG_REAP_AGAIN_S, LOG_REAP_S, MEMBERS_LISTED_MAX

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Seen:
    number: int
    first_ns: int


class Silence:
    """Remembers since when each member has been seen with its renewal number. Pure.

    A member is gone when it said so, or when its number has not changed for the window on the observer's clock since it
    was first seen with it: then the freshness of its last renewal, sent before it was seen, is over. One with clients
    whose own caches go on without it (`engines_keep`), or whose note can't be read, is never gone.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._seen: dict[bytes, _Seen] = {}

    def observe(self, members: Mapping[bytes, MemberState], *, now_ns: int) -> dict[bytes, MemberState]:
        """Return those of the members that are gone; whoever is not among `members` is forgotten."""
        self._watch(members, now_ns)
        return {member: now for member, now in members.items() if self._is_gone(member, now, now_ns)}

    def _watch(self, members: Mapping[bytes, MemberState], now_ns: int) -> None:
        self._seen = {
            member: seen
            if (seen := self._seen.get(member)) is not None and seen.number == now.number
            else _Seen(now.number, now_ns)
            for member, now in members.items()
        }

    def _is_gone(self, member: bytes, now: MemberState, now_ns: int) -> bool:
        silent_ns = now_ns - self._seen[member].first_ns
        if not now.gone and silent_ns < self._timing.window_ns():  # no note says less: it need not be read
            return False
        note = MemberNote.decode(now.note)
        if note is None or note.engines_keep:
            return False
        return now.gone or silent_ns >= self._timing.window_ns(lease_ns=note.lease_ns)


class Reaping:
    """Decides when a member looks for silent others without any fence, and whom it gives up then. Pure.

    Lives that ended without a goodbye stay in the log's bounded table; full of them, it would refuse newcomers. A
    member that was refused looks at once, and again each LOG_REAP_AGAIN_S; others each LOG_REAP_S while the table is
    more than half full, `spread` (0 to 1) of that later the first time, so that a fleet does not look all at once.
    """

    def __init__(self, timing: Timing, *, me: bytes, members_max: int, spread: float) -> None:
        self._me = me
        self._members_max = members_max
        self._silence = Silence(timing)
        self._incarnation: LogIncarnation | None = None
        self._spread = spread
        self._refusals = 0
        self._refused_ns: int | None = None
        self._rarely_ns: int | None = None

    def is_due(self, *, refusals: int, members: int, now_ns: int) -> bool:
        """Whether to look now; `refusals` of this member so far, and `members` in the table as far as is known."""
        if refusals > self._refusals:
            if self._refused_ns is not None and now_ns - self._refused_ns < LOG_REAP_AGAIN_S * _SECOND_NS:
                return False
            self._refusals, self._refused_ns = refusals, now_ns
            return True
        if 2 * members <= self._members_max:
            return False
        if self._rarely_ns is None:
            self._rarely_ns = now_ns + int(self._spread * LOG_REAP_S * _SECOND_NS)
        if now_ns < self._rarely_ns:
            return False
        self._rarely_ns = now_ns + int(LOG_REAP_S * _SECOND_NS)
        return True

    def observe(self, state: FenceState, *, now_ns: int) -> dict[bytes, int]:
        """Members to give up and their renewal numbers, of what `InvalidationLog.fence` returned before `now_ns` was read."""
        if not state.confirmed:
            return {}  # what an old primary says of members is no observation
        if state.tip.incarnation != self._incarnation:
            self._incarnation = state.tip.incarnation
            self._silence.observe({}, now_ns=now_ns)
        gone = self._silence.observe(state.members, now_ns=now_ns)
        fresh = [(member, now.number) for member, now in gone.items() if not now.gone and member != self._me]
        return dict(fresh[:MEMBERS_LISTED_MAX])
