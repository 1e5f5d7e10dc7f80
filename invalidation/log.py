"""The contract of the invalidation log: verbs and their answers. `redis.log` and `local_log` implement it.

The log decides validity: a page may be served under its chain k1…kn iff its stamp belongs to the log's present
incarnation and no record after the stamp selects the page or anything it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from invalidation.records import LogEntry, LogRecord
from kv_types.errors import InvalidArgumentError
from kv_types.ids import LogIncarnation, NamespaceId, Stamp
from kv_types.limits import (
    FLEET_MEMBERS_MAX,
    FLEET_NAMESPACES_MAX,
    LOG_BATCH_RECORDS_MAX,
    LOG_RECORDS_KEPT_MAX,
    LOG_REQUESTS_KEPT_MAX,
    LOG_REVISION_MAX,
    LOG_SCOPES_MAX,
    LOG_TOMBSTONES_MAX,
    LOG_TOMBSTONES_PER_SCOPE_MAX,
    LOG_WEIGHTS_MAX,
)
from kv_types.selectors import Selector


class LogUnavailableError(Exception):
    """The log did not answer in time, or answered nonsense; `reason` is a short word for people and metrics."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def checked_number(value: int, what: str, *, least: int = 0) -> int:
    """Return a revision, or another number that a log counts; raises InvalidArgumentError beyond LOG_REVISION_MAX."""
    if not least <= value <= LOG_REVISION_MAX:
        raise InvalidArgumentError(f"{what} is {least} to {LOG_REVISION_MAX}; got {value}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """What bounds a log (invariant I8). The product has one set of them; tests make it smaller."""

    records: int = LOG_RECORDS_KEPT_MAX
    batch: int = LOG_BATCH_RECORDS_MAX
    per_scope: int = LOG_TOMBSTONES_PER_SCOPE_MAX
    tombstones: int = LOG_TOMBSTONES_MAX
    scopes: int = LOG_SCOPES_MAX
    requests: int = LOG_REQUESTS_KEPT_MAX
    weights: int = LOG_WEIGHTS_MAX
    namespaces: int = FLEET_NAMESPACES_MAX
    members: int = FLEET_MEMBERS_MAX


class RenewalStatus(Enum):
    """What the log answers to a member's renewal (rule R8)."""

    OK = "OK"
    NEW_INCARNATION = "INC"
    FORK = "FORK"
    GAP = "GAP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a member of the fleet says with each renewal. `id` is 16 random bytes, of one life (rule R13).

    `applied` is its position, hidden and published; `digest` that of the log there. `acknowledged` (≤ applied) is the
    revision up to which every engine below it has applied too (rule R18); `drained` (≤ acknowledged) that up to which
    nothing older is in use (rule R19). `note` tells people who it is and what holds it back, `{}` or one JSON object of
    at most MEMBER_NOTE_BYTES_MAX bytes.
    """

    id: bytes
    applied: Stamp
    digest: bytes
    acknowledged: int
    drained: int
    note: str = "{}"


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to renewal `number`: `records` after the applied revision, up to `tip` or a batch of them.

    `confirmed`: `replicas` configured replicas have acknowledged it (`WAIT` on the same connection, rule R10), whatever
    the status. What is not confirmed grants no freshness, and costs nobody their pages: an old primary may say it.
    """

    status: RenewalStatus
    incarnation: LogIncarnation
    number: int
    tip: int
    records: Sequence[LogRecord]
    confirmed: bool
    replicas: int


@dataclass(frozen=True, slots=True)
class Boot:
    """What a follower starts from, read in one step (rule R9)."""

    tip: Stamp
    digest: bytes
    floors: Mapping[NamespaceId | None, int]
    """Revision below which no stamp of a namespace is valid; under None that of everything."""
    tombstones: Mapping[Selector, int]
    """Revision of the newest record of each selector that has not become part of a floor (`invalidation.compaction`)."""
    weights: Mapping[str, str]
    """Weights version announced last for each model."""
    settled: bool
    replicas: int


@dataclass(frozen=True, slots=True)
class MemberState:
    """One member as the log has it. `number` is that of its last renewal.

    `gone`: it said goodbye, or a fence gave it up, while something older may still have been in use below it. It grants
    itself no freshness any more, so that only fences that wait for `drained` still ask for it; a renewal of it ends that.
    """

    number: int
    acknowledged: int
    drained: int
    note: str = "{}"
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FenceState:
    """What the evaluator of a fence needs. `confirmed` as in Renewal."""

    tip: Stamp
    settled: bool
    members: Mapping[bytes, MemberState]
    confirmed: bool
    replicas: int


@dataclass(frozen=True, slots=True)
class Directory:
    """The namespaces that the fleet has used in one incarnation, as canonical encodings, and the tip when they were read."""

    tip: Stamp
    canonicals: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an entry stands, and what must be known of the log to wait for it."""

    stamp: Stamp
    settled: bool
    members: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """Sizes that are bounded, and counters. Names of `counters` are the verbs called and why calls failed."""

    records: int
    tombstones: int
    floors: int
    members: int
    requests: int
    counters: Mapping[str, int] = field(default_factory=dict)


class InvalidationLog(Protocol):
    """One fleet's log. Every verb is one atomic step and bounded by `deadline_ns` (CLOCK_BOOTTIME).

    All raise LogUnavailableError when the log does not answer in time or refuses; a verb that changes something may
    then have been carried out. Revisions and other numbers beyond LOG_REVISION_MAX, and ids of another size, are
    InvalidArgumentError.
    """

    async def append(self, entry: LogEntry, *, request_id: bytes, deadline_ns: int) -> Appended:
        """Append one entry, and let `invalidation.compaction` keep what it selects (rule R4).

        Idempotent by `request_id` (16 random bytes, rule R7): the same again returns where its entry stands already.
        """
        ...

    async def renew(self, member: Member, *, number: int, deadline_ns: int) -> Renewal:
        """Confirm life and position, and get what follows; `number` grows with every renewal of a life (rule R8).

        NEW_INCARNATION: the position is of another one; nothing is registered. FORK: the position lies ahead of the tip,
        or the digest there is another, as the digest of the record after it shows. GAP: the record after it is kept no
        longer. OK registers the member, with at most LOG_BATCH_RECORDS_MAX records. A member that would be one
        too many takes the place of one that is gone; with FLEET_MEMBERS_MAX others it is refused (LogUnavailableError
        of reason "members").
        """
        ...

    async def boot(self, *, deadline_ns: int) -> Boot:
        """Read tip, digest, floors and tombstones in one step (rule R9)."""
        ...

    async def fence(self, *, deadline_ns: int) -> FenceState:
        """Read what decides whether an appended record is final (rule R12)."""
        ...

    async def fork(self, incarnation: LogIncarnation, *, deadline_ns: int) -> None:
        """Start a new incarnation if the present one is still `incarnation` (rule R8, FORK)."""
        ...

    async def settle(self, incarnation: LogIncarnation, *, deadline_ns: int) -> bool:
        """Declare an incarnation settled, by whoever has observed it for the fence's waiting time (rule R12)."""
        ...

    async def leave(self, member: bytes, *, number: int, drained: bool, deadline_ns: int) -> bool:
        """Deregister a member: itself, its header closed (rule R13), or one that a fence saw gone at renewal `number`.

        `drained`: nothing that its workers took from it is in use any more, and its entry goes. Otherwise it stays,
        marked as gone: an expiry never shows that something has drained (rule R12), so a fence that waits for that
        names it until whoever knows better calls this again with `drained`. Does nothing, and returns False, if the
        member has renewed since `number` or is not there.
        """
        ...

    async def set_replicas(self, replicas: int, *, deadline_ns: int) -> None:
        """Set the number of configured replicas, k (rule R10)."""
        ...

    async def read(self, after: int, *, count: int, deadline_ns: int) -> tuple[Stamp, Sequence[LogRecord]]:
        """Read kept records after a revision, oldest first, and the tip: `count` of them at most, which is 1 or more.

        None come after a revision that the log has not reached.
        """
        ...

    async def know(self, canonicals: Sequence[bytes], *, deadline_ns: int) -> Stamp:
        """Enter namespaces (canonical encodings) into the fleet's directory, bounded by FLEET_NAMESPACES_MAX.

        Returns a tip by which all of them were there. Raises LogUnavailableError, with the reason "incarnation" where
        the log began anew in between.
        """
        ...

    async def namespaces(self, *, deadline_ns: int) -> Directory:
        """Read the fleet's directory.

        Where it holds FLEET_NAMESPACES_MAX, there may have been more. Raises LogUnavailableError as `know` does.
        """
        ...

    async def woken(self, after: int, *, digest: bytes, deadline_ns: int) -> Sequence[LogRecord] | None:
        """Wait until the log may have grown past `after`, or the deadline: None.

        Returns what it grew by, LOG_BATCH_RECORDS_MAX records at most, where those follow `after` and the `digest` there:
        whoever is at that position may apply them. Nothing else where they don't, or where nobody can tell. None of it
        vouches for anything: a renewal does (rule R8).

        Whoever names a revision that the log has not reached waits for it.
        """
        ...

    async def statistics(self, *, deadline_ns: int) -> LogStatistics:
        """Sizes of what the log keeps."""
        ...

    async def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...
