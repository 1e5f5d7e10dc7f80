"""Outcomes of look-ups and puts: values with reasons, never exceptions.

The numbers are part of the shared-memory contract and of the gRPC schema; they are never reused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kv_types.loading import LoadDecision


class Tier(IntEnum):
    """Where a page was found."""

    L1 = 1
    L2 = 2
    L3 = 3


class MissReason(IntEnum):
    """Why the pages after a hit's end (or all pages) are not served."""

    NONE = 0
    """Nothing was missed: all pages asked for are served."""
    ABSENT = 1
    """No page under the next key."""
    STALE = 2
    """The sidecar has not confirmed the log's tip within the freshness lease."""
    CLOSED = 3
    """The sidecar is draining or has ended."""
    INVALIDATED = 4
    """An invalidation selects the page."""
    LEASE_EXPIRED = 5
    """A timed copy took longer than its lease; its destination must not be used."""
    LEASE_LIMIT = 6
    """This client already leases as much as it may."""
    ABORTED = 7
    """The client died or cancelled before the look-up completed."""
    DEADLINE = 8
    """The deadline passed first."""
    UNREACHABLE = 9
    """No sidecar answers."""
    UNCACHEABLE = 10
    """The computation has no complete identity."""
    CORRUPT = 11
    """A stored page failed its checks and was dropped."""
    RACED = 12
    """Events were published during each of the bounded attempts."""
    EXPIRED = 13
    """The page's time to live has passed."""
    UNKNOWN_NAMESPACE = 14
    """The sidecar does not know the namespace (for example after its restart)."""
    OVERLOADED = 15
    """The sidecar sheds load."""
    L3_UNAVAILABLE = 16
    """The shared store is down, too slow, or shed by its breaker."""
    NO_ROOM = 17
    """L2 has no place that could be given to what L3 has."""
    COMPUTE_IS_FASTER = 18
    """Loading the page from L3 would take longer than computing it."""
    UNREADABLE = 19
    """A stored page is of a kind that only newer versions read; it was left as it is."""


class PutStatus(IntEnum):
    """What became of one page of a put."""

    STORED = 0
    KNOWN = 1
    REFUSED = 2


class RefuseReason(IntEnum):
    """Why a page was not stored."""

    NONE = 0
    FULL = 1
    """Every slot of the size is leased, reserved or an ancestor of the page itself."""
    TOO_LARGE = 2
    """The page is larger than a segment of the arena."""
    PARENT_ABSENT = 3
    """The page's parent is not resident, so nobody could ever reach the page."""
    STAMP_FOREIGN = 4
    """The stamp is of another log incarnation or ahead of the sidecar."""
    INVALIDATED = 5
    """A record newer than the stamp selects the page."""
    CLOSED = 6
    """The sidecar is draining or has ended."""
    UNREACHABLE = 7
    """No sidecar answers."""
    DEADLINE = 8
    """The deadline passed first."""
    BUSY = 9
    """Another writer holds a reservation for the same key."""
    UNCACHEABLE = 10
    """The computation has no complete identity."""
    QUOTA = 11
    """This client already reserves as many pages as it may."""
    EXPIRED = 12
    """The reservation ran out before it was committed."""
    CORRUPT = 13
    """The bytes that arrived fail their checksum."""
    UNKNOWN_NAMESPACE = 14
    """The sidecar does not know the namespace (for example after its restart)."""
    OVERLOADED = 15
    """The sidecar sheds load."""
    UNLISTED = 16
    """The fleet's log has not entered the namespace in its directory, or had not when the page's request began."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The longest prefix of valid pages: `pages` of those asked for, and why it ended there.

    `tier` is where its last page was found. The last `pages_l3` were brought from L3 for this very look-up. `load` is what was
    chosen between loading and computing, where L3 was asked and had something; it makes no outcome unequal.
    """

    pages: int
    tier: Tier
    ended_by: MissReason = MissReason.NONE
    pages_l3: int = 0
    load: LoadDecision | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Miss:
    """No page is served, and why; `load` as in Hit."""

    reason: MissReason
    load: LoadDecision | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Pending:
    """A load of `pages` pages is under way; ask again under `ticket`."""

    pages: int
    ticket: int


LookUpOutcome = Hit | Miss | Pending


@dataclass(frozen=True, slots=True)
class Stored:
    """The page is visible to everybody on this node."""


@dataclass(frozen=True, slots=True)
class Known:
    """A valid page under this key was resident already; nothing was copied."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The page was not stored, and why."""

    reason: RefuseReason


PutOutcome = Stored | Known | Refused

STORED = Stored()
KNOWN = Known()


def put_outcome(status: int, reason: int) -> PutOutcome:
    """Turn the two numbers of the wire into an outcome; raises ValueError on numbers of no known meaning."""
    kind = PutStatus(status)
    if kind is PutStatus.STORED:
        return STORED
    if kind is PutStatus.KNOWN:
        return KNOWN
    return Refused(RefuseReason(reason))
