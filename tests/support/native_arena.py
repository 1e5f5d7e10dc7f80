"""A small native arena with short ways to put, read and check pages, for tests of the native core."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from cache_l2._native import Arena, Reader

PAGE = 4096
NO_LOG = bytes(16)
FAR_NS = 1 << 62


class Reserved(NamedTuple):
    """One row of what `reserve` answers."""

    status: int
    reason: int
    reservation: int
    offset: int


def now_ns() -> int:
    """Boot time, the clock of leases and freshness."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def chain(name: str, pages: int) -> list[bytes]:
    """Keys of a chain; chains whose names share the part before ``/`` share their first four pages."""
    root, _, rest = name.partition("/")
    key = b""
    keys = []
    for index in range(pages):
        own = rest if index >= 4 else ""
        key = blake2b(key + f"{root}:{own}:{index}".encode(), digest_size=32).digest()
        keys.append(key)
    return keys


def payload(key: bytes, page_bytes: int = PAGE) -> bytes:
    """Bytes that only the page under this key has."""
    return key * (page_bytes // len(key))


@dataclass
class NativeArena:
    """An arena, one writer row and one reader row in this process."""

    slots: int = 64
    page_bytes: int = PAGE
    segment_bytes: int = 64 * 1024
    entries: int = 4096
    rows: int = 8
    leases_per_row: int = 1024
    ring_records: int = 16
    index_hash_bits: int = 64
    life: bytes = field(default_factory=lambda: os.urandom(16))

    def __post_init__(self) -> None:
        arena_bytes = max(1 << 20, self.slots * self.page_bytes)
        self.arena = Arena(
            arena_bytes=arena_bytes,
            segment_bytes=self.segment_bytes,
            entries=self.entries,
            rows=self.rows,
            leases_per_row=self.leases_per_row,
            ring_records=self.ring_records,
            life=self.life,
            index_hash_bits=self.index_hash_bits,
        )
        self.row = self.arena.open_row(os.getpid())
        self.reader = self.attach(self.row)
        self.arena.publish_freshness(FAR_NS)

    def attach(self, row: int, *, writable: bool = True) -> Reader:
        """A reader over new descriptors under a row."""
        control, clients, data = self.arena.duplicate_descriptors(writable=writable)
        return Reader(
            control_fd=control, clients_fd=clients, data_fd=data, row=row, life=self.life, writable=writable
        )

    def reserve(
        self,
        keys: Sequence[bytes],
        *,
        parent: bytes | None = None,
        row: int | None = None,
        namespace: int = 1,
        page_bytes: int | None = None,
        expiry_s: int = 0,
        deadline_ns: int = FAR_NS,
        now: int | None = None,
    ) -> list[Reserved]:
        """Reserve the pages under `keys`."""
        answers = self.arena.reserve(
            row=self.row if row is None else row,
            namespace_slot=namespace,
            parent=parent,
            keys=b"".join(keys),
            payload_bytes=page_bytes or self.page_bytes,
            expiry_s=expiry_s,
            deadline_ns=deadline_ns,
            now_ns=now_ns() if now is None else now,
        )
        return [Reserved(*answer) for answer in answers]

    def commit(
        self, reservations: Sequence[int], *, row: int | None = None, now: int | None = None
    ) -> list[tuple[int, int]]:
        """Publish reservations with a stamp of no log."""
        return self.arena.commit(
            row=self.row if row is None else row,
            reservations=reservations,
            incarnation=NO_LOG,
            revision=0,
            producer=0,
            computed_from_ms=0,
            computed_until_ms=0,
            now_ns=now_ns() if now is None else now,
        )

    def put(
        self,
        keys: Sequence[bytes],
        *,
        parent: bytes | None = None,
        namespace: int = 1,
        page_bytes: int | None = None,
        expiry_s: int = 0,
    ) -> list[tuple[int, int]]:
        """Reserve, fill with `payload` and commit; the outcome of every page."""
        size = page_bytes or self.page_bytes
        answers = self.reserve(keys, parent=parent, namespace=namespace, page_bytes=size, expiry_s=expiry_s)
        taken = [(key, answer) for key, answer in zip(keys, answers, strict=True) if answer.status == 0]
        self.reader.fill(
            [answer.offset for _, answer in taken],
            [payload(key, size) for key, _ in taken],
            page_bytes=size,
        )
        committed = iter(self.commit([answer.reservation for _, answer in taken]))
        return [
            next(committed) if answer.status == 0 else (answer.status, answer.reason) for answer in answers
        ]

    def resident(self, keys: Sequence[bytes]) -> int:
        """Pages of the chain that a look-up finds."""
        return self.reader.match(b"".join(keys))[0]

    def counts(self, row: int | None = None, counter: int = 0) -> dict[str, int]:
        """The counters of a row, checked to add up."""
        counts = self.arena.row_counts(self.row if row is None else row, counter)
        missed = sum(value for name, value in counts.items() if name.startswith("miss_"))
        assert counts["requested"] == counts["l1"] + counts["l2"] + counts["l3"] + missed
        return counts
