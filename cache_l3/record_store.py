"""The contract of L3: page records by namespace and key, all or nothing, within a deadline.

A record is a header (`kv_types.record`) and its stored payload, written and read as one value, so that no part can be
evicted without the rest. A store never retries beyond the deadline it is given and never serves what it could not
verify. What it could not get is a miss with its reason, never an exception. Deadlines are CLOCK_BOOTTIME in ns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_types.ids import NamespaceId, PageKey
from kv_types.outcomes import MissReason, PutOutcome
from kv_types.record import PageDescription, RecordHeader


@dataclass(frozen=True, slots=True)
class RecordName:
    """What a record is found by."""

    namespace: NamespaceId
    key: PageKey


@dataclass(frozen=True, slots=True)
class LoadedRecord:
    """One page as it came from L3: its checksum, key, namespace and size are right, and its payload lies decoded in the place.

    The log has not judged it: its stamp, birth and origin decide at publish (rule R2).
    """

    header: RecordHeader


@dataclass(frozen=True, slots=True)
class ServerPicture:
    """One server of L3 as people see it in the status."""

    server: str
    breaker: str
    """closed, open, half_open; open too for a replica, which is asked nothing."""
    connections: int
    last_error: str
    """The newest trouble, in a line; empty while there was none."""
    writes: str
    """yes, or why no page is written: full, refused (its last error says why), unknown."""
    last_error_ms_ago: int = 0
    """How old that is: it stays when all is well again."""
    refused: tuple[str, ...] = ()
    """Commands that it refused last, for a reason that does not pass by itself: its user may not give them."""

    @property
    def is_readable(self) -> bool:
        """Whether it answers what is read of it, as far as is known."""
        return self.breaker == "closed" and not {"GET", "GETRANGE"} & set(self.refused)


@dataclass(frozen=True, slots=True)
class L3Picture:
    """L3 as people see it in the status."""

    kind: str
    """single, cluster, memory."""
    servers: tuple[ServerPicture, ...]
    trouble: str = ""
    """What keeps all of it from working, with what to do about it; empty where nothing does."""

    @property
    def is_readable(self) -> bool:
        """Whether anything is to be had of it, as far as is known."""
        return not self.trouble and any(server.is_readable for server in self.servers)


class RecordStore(Protocol):
    """Pages of many nodes under namespace and key.

    Reasons of misses: ABSENT, DEADLINE, CORRUPT (it was removed and counted), L3_UNAVAILABLE (down, too slow, or shed by
    its breaker), OVERLOADED (more is under way than may be), ABORTED (cancelled), CLOSED.
    Reasons of refusals: FULL, DEADLINE, UNREACHABLE (as L3_UNAVAILABLE), TOO_LARGE, OVERLOADED, CLOSED.
    """

    async def start(self) -> None:
        """Begin to connect; returns at once, whether or not a server answers."""
        ...

    async def close(self) -> None:
        """End what is under way, and wait until no place and no payload is touched any more. Idempotent."""
        ...

    async def probe(
        self, names: Sequence[RecordName], *, deadline_ns: int
    ) -> list[RecordHeader | MissReason]:
        """Headers of records, one a name, in order; the payloads have not been looked at."""
        ...

    def load(
        self, name: RecordName, place: memoryview, *, deadline_ns: int
    ) -> asyncio.Future[LoadedRecord | MissReason]:
        """Read a record's payload into `place` (writable, exactly the namespace's page_bytes).

        Never raises for what a server did. `place` is untouched once the future is done, and only then. After a miss its
        bytes are unspecified. The future is not to be cancelled itself: `cancel` is for that.
        """
        ...

    def cancel(self, load: asyncio.Future[LoadedRecord | MissReason]) -> None:
        """Let go of a load: it ends soon, with ABORTED or what it had come to."""
        ...

    def store(
        self, page: PageDescription, payload: memoryview, *, ttl_s: int, deadline_ns: int
    ) -> asyncio.Future[PutOutcome]:
        """Write a record, over whatever is there. Stored, or Refused with its reason.

        `payload` (page.payload_bytes) must stay as it is until the future is done.
        """
        ...

    async def refresh(self, ttl_s: Mapping[RecordName, int], *, deadline_ns: int) -> int:
        """Give each of these records so many seconds to live anew; returns how many are there."""
        ...

    async def remove(self, names: Sequence[RecordName], *, deadline_ns: int) -> int:
        """Delete records; returns how many were there."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...

    def describe(self) -> L3Picture:
        """Servers, breakers and last errors, for the status."""
        ...
