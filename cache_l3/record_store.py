"""The contract of L3: page records by key, all or nothing, within a deadline. Implementations come with the tier.

A record is a header (`kv_types.record`) and its payload, written and read as one value, so that no part can be evicted
without the rest. A store never retries beyond the deadline it is given and never serves what it could not verify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_types.ids import NamespaceId, PageKey
from kv_types.outcomes import MissReason, PutOutcome
from kv_types.record import RecordHeader


@dataclass(frozen=True, slots=True)
class LoadedRecord:
    """One page as it came from L3: verified against its checksum, key and namespace, not yet against the log."""

    key: PageKey
    header: RecordHeader
    """Its stamp, lineage and tags decide validity at publish (rule R2)."""
    payload: memoryview
    """page_bytes of payload, decoded, in the place that the caller had reserved for it."""


class RecordStore(Protocol):
    """Pages of many nodes under namespace and key."""

    async def load(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        places: Sequence[memoryview],
        *,
        deadline_ns: int,
    ) -> list[LoadedRecord | MissReason]:
        """Read records into `places` (writable, page_bytes each, one a key); one result a key, in order.

        `keys` are consecutive pages of one chain; what is behind a miss is the caller's not to serve (I4).
        `deadline_ns` is CLOCK_BOOTTIME. A late, short, foreign or damaged record is a miss with its reason, never
        bytes.
        """
        ...

    async def store(
        self,
        records: Sequence[tuple[RecordHeader, memoryview]],
        *,
        ttl_s: int,
        deadline_ns: int,
    ) -> list[PutOutcome]:
        """Write records of (header, stored payload), each under its namespace and key and as a whole.

        One outcome a record, in order. A valid record of the same key is Known; an invalid one is overwritten
        (rule R4).
        """
        ...

    async def remove(self, namespace: NamespaceId, keys: Sequence[PageKey], *, deadline_ns: int) -> int:
        """Delete records; returns how many were there. Used on records that fail their checks."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...
