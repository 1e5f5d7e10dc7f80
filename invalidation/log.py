"""The contract of the invalidation log: records, positions, renewals and fences. Implementations come with validity.

The log decides validity: a page may be served under its chain k1…kn iff its stamp belongs to the log's present
incarnation and no record after the stamp selects the page or anything it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kv_types.ids import LogIncarnation, NamespaceId, PageKey, Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """What a record selects: every field that is set must match (fields combine by "and"); none set selects
    everything.

    `model`, `tenant`, `weights_version` (kv_types' Weights.version) and `adapter` (Adapter.name) are fields of a
    Namespace. `key` selects the page and everything computed on top of it (rule R3). `producer` and `tag` are those of
    a RecordHeader, its lineage included, and match a record whose lineage or tags overflowed. `since_ms` and `until_ms`
    (Unix ms) select what was computed in an interval that overlaps theirs, widened by the skew bound;
    `since_revision` and `until_revision` bound the stamp. Sidecars tell their workers as `kv_types.events` what they
    hid for it: everything, a namespace, or pages.
    """

    namespace: NamespaceId | None = None
    model: str | None = None
    weights_version: str | None = None
    adapter: str | None = None
    tenant: str | None = None
    key: PageKey | None = None
    producer: bytes | None = None
    tag: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    since_revision: int | None = None
    until_revision: int | None = None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One invalidation: its position, what it selects, who asked for it and why."""

    revision: int
    selector: Selector
    reason: str
    author: str
    appended_wall_ms: int
    """Wall clock of the appender, Unix ms: for people only, never compared."""


class RenewalStatus(Enum):
    """What the log answers to a member's renewal (rule R8)."""

    OK = "ok"
    NEW_INCARNATION = "new_incarnation"
    FORK = "fork"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Renewal:
    """An answer to `renew`: `records` after the applied revision, up to `tip`, when the status is OK."""

    status: RenewalStatus
    incarnation: LogIncarnation
    number: int
    tip: int
    records: Sequence[LogRecord]


@dataclass(frozen=True, slots=True)
class Boot:
    """What a follower starts from: tip, floors and tombstones read in one step (rule R9)."""

    tip: Stamp
    digest: bytes
    floors: Mapping[NamespaceId | None, int]
    """Revision below which no stamp of a namespace is valid; under None that of everything."""
    tombstones: Mapping[Selector, int]
    """Revision of the newest record of each selector that the floors do not cover yet."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What the evaluator of a fence needs: position, whether settled, and each member's renewal number and position."""

    tip: Stamp
    settled: bool
    members: Mapping[bytes, tuple[int, int, int]]
    """member id -> (renewal number, acknowledged revision, drained revision)"""


class InvalidationLog(Protocol):
    """One fleet's log. Every verb is atomic and bounded by `deadline_ns` (CLOCK_BOOTTIME)."""

    async def append(
        self, selector: Selector, *, reason: str, author: str, request_id: bytes, deadline_ns: int
    ) -> Stamp:
        """Append one record and return its position; idempotent by `request_id` (rule R7)."""
        ...

    async def renew(
        self, *, member: bytes, number: int, applied: Stamp, digest: bytes, drained: int, deadline_ns: int
    ) -> Renewal:
        """Confirm life and position; returns what follows `applied`. Replicated before it returns (rule R10)."""
        ...

    async def boot(self, *, deadline_ns: int) -> Boot:
        """Read tip, floors and tombstones in one step."""
        ...

    async def fence(self, *, deadline_ns: int) -> Fence:
        """Read what decides whether an appended record is final. Replicated before it returns."""
        ...

    async def settle(self, incarnation: LogIncarnation, *, deadline_ns: int) -> bool:
        """Declare an incarnation settled, by whoever has observed it for the fence's waiting time (rule R12)."""
        ...

    async def leave(self, *, member: bytes, deadline_ns: int) -> None:
        """Deregister a member whose header is closed (rule R13)."""
        ...
