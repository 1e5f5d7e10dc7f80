"""A small native arena with short ways to put, read and check pages, for tests of the native core."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypedDict

from cache_l2._native import Arena, Reader

PAGE = 4096
NO_LOG = bytes(16)
FAR_NS = 1 << 62
UNBOUNDED = 2**64 - 1
UNKNOWN_INSTANCE = 2**64 - 1
PROVENANCE_OVERFLOW = 2**32 - 1


class Reserved(NamedTuple):
    """One row of what `reserve` answers."""

    status: int
    reason: int
    reservation: int
    offset: int


class Selection(TypedDict):
    """What hide_step and count_step are told of a selection."""

    key: bytes | None
    namespaces: bytes | None
    provenances: bytes | None
    since_ms: int
    until_ms: int
    since_revision: int
    until_revision: int


def bitmap(numbers: Iterable[int]) -> bytes:
    """Number n as bit n % 8 of byte n // 8."""
    bits = sum(1 << number for number in set(numbers))
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def selection(
    *,
    key: bytes | None = None,
    namespaces: Iterable[int] | None = None,
    provenances: Iterable[int] | None = None,
    since_ms: int = 0,
    until_ms: int = UNBOUNDED,
    since_revision: int = 0,
    until_revision: int = UNBOUNDED,
) -> Selection:
    """A selection; what is left out is no condition."""
    return {
        "key": key,
        "namespaces": None if namespaces is None else bitmap(namespaces),
        "provenances": None if provenances is None else bitmap(provenances),
        "since_ms": since_ms,
        "until_ms": until_ms,
        "since_revision": since_revision,
        "until_revision": until_revision,
    }


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
    huge_pages: int = 1
    commit_through_mapping: bool = False
    learns: bool = False
    """Whether victims are chosen by what look-ups have shown; else a test knows which page goes next."""

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
            huge_pages=self.huge_pages,
            commit_through_mapping=self.commit_through_mapping,
            learns=self.learns,
        )
        self.row = self.arena.open_row(os.getpid())
        self.reader = self.attach(self.row)
        self.arena.publish_freshness(FAR_NS)

    def attach(self, row: int, *, writable: bool = True, doorbell: bool = False) -> Reader:
        """A reader over new descriptors under a row; with a doorbell it may post, and waits for what others post."""
        control, clients, data = self.arena.duplicate_descriptors(writable=writable)
        return Reader(
            control_fd=control, clients_fd=clients, data_fd=data, row=row, life=self.life, writable=writable,
            doorbell_fd=os.eventfd(0, os.EFD_NONBLOCK) if doorbell else -1,
        )  # fmt: skip

    def settle(self, *, revision: int = 0) -> list[list[tuple[int, int]]]:
        """Carry out every post; the outcomes of each one's pages."""
        settled = []
        for row in self.arena.posting_rows():
            while (post := self.arena.next_post(row)) is not None:
                namespace, page_bytes, parent, keys, ids, _, _ = post
                rows = self.arena.reserve(
                    row=row, namespace_slot=namespace, parent=parent, keys=keys, payload_bytes=page_bytes,
                    expiry_s=0, deadline_ns=FAR_NS, now_ns=now_ns(), granted=ids,
                )  # fmt: skip
                reserved = [one for status, _, one, _ in rows if status == 0]
                committed = iter(self.commit(reserved, row=row, revision=revision))
                settled.append(
                    [next(committed) if status == 0 else (status, reason) for status, reason, _, _ in rows]
                )
                self.arena.settle_post(row)
        return settled

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
        gives_way: bool = False,
    ) -> list[Reserved]:
        """Reserve the pages under `keys`; `gives_way`: for a load."""
        answers = self.arena.reserve(
            row=self.row if row is None else row,
            namespace_slot=namespace,
            parent=parent,
            keys=b"".join(keys),
            payload_bytes=page_bytes or self.page_bytes,
            expiry_s=expiry_s,
            deadline_ns=deadline_ns,
            now_ns=now_ns() if now is None else now,
            gives_way=gives_way,
        )
        return [Reserved(*answer) for answer in answers]

    def commit(
        self,
        reservations: Sequence[int],
        *,
        row: int | None = None,
        now: int | None = None,
        revision: int = 0,
        producer: int = 0,
        computed_ms: tuple[int, int] = (0, 0),
        rests_on: int = 0,
    ) -> list[tuple[int, int]]:
        """Publish reservations, unless told otherwise with a stamp of no log and no origin."""
        return self.arena.commit(
            row=self.row if row is None else row,
            reservations=reservations,
            incarnation=NO_LOG,
            revision=revision,
            producer=producer,
            computed_from_ms=computed_ms[0],
            computed_until_ms=computed_ms[1],
            rests_on=rests_on,
            now_ns=now_ns() if now is None else now,
        )

    def publish_loaded(
        self,
        reservation: int,
        birth: int,
        *,
        rests_on: int = 0,
        row: int | None = None,
        producer: int = 0,
        revision: int = 0,
        expiry_s: int = 0,
        now: int | None = None,
    ) -> tuple[int, int]:
        """Publish one page that was computed elsewhere."""
        return self.arena.publish_loaded(
            row=self.row if row is None else row,
            reservation=reservation,
            incarnation=NO_LOG,
            revision=revision,
            producer=producer,
            computed_from_ms=0,
            computed_until_ms=0,
            birth=birth,
            rests_on=rests_on,
            expiry_s=expiry_s,
            now_ns=now_ns() if now is None else now,
        )

    def load(
        self,
        keys: Sequence[bytes],
        births: Sequence[int],
        *,
        parent: bytes | None = None,
        rests_on: int = 0,
        producer: int = 0,
    ) -> list[tuple[int, int]]:
        """Reserve, fill and publish pages of these births; the outcome of every page."""
        answers = self.reserve(keys, parent=parent, gives_way=True)
        outcomes = []
        for key, birth, answer in zip(keys, births, answers, strict=True):
            if answer.status == 0:
                self.reader.fill([answer.offset], [payload(key)], page_bytes=PAGE)
                outcomes.append(
                    self.publish_loaded(answer.reservation, birth, rests_on=rests_on, producer=producer)
                )
            else:
                outcomes.append((answer.status, answer.reason))
        return outcomes

    def put(
        self,
        keys: Sequence[bytes],
        *,
        parent: bytes | None = None,
        namespace: int = 1,
        page_bytes: int | None = None,
        expiry_s: int = 0,
        revision: int = 0,
        producer: int = 0,
        computed_ms: tuple[int, int] = (0, 0),
        rests_on: int = 0,
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
        outcomes = self.commit(
            [answer.reservation for _, answer in taken],
            revision=revision, producer=producer, computed_ms=computed_ms, rests_on=rests_on,
        )  # fmt: skip
        committed = iter(outcomes)
        return [
            next(committed) if answer.status == 0 else (answer.status, answer.reason) for answer in answers
        ]

    def hiding(self, which: Selection, *, work_max: int = 1000) -> Iterator[int]:
        """Hide what a selection names, step by step; pages hidden in each."""
        cursor = 0
        while cursor != -1:
            cursor, hidden = self.arena.hide_step(**which, cursor=cursor, work_max=work_max)
            yield hidden

    def hide(self, keys: bytes) -> int:
        """Hide each of these pages (n × 32 bytes, any order) with what stands on it; the pages hidden."""
        return sum(sum(self.hiding(selection(key=keys[at : at + 32]))) for at in range(0, len(keys), 32))

    def count(self, which: Selection, *, work_max: int = 1000, census: int = 0) -> tuple[int, int]:
        """Pages and bytes that a selection names, counted step by step."""
        cursor = pages = size = 0
        while cursor != -1:
            cursor, more, bytes_more = self.arena.count_step(
                **which, cursor=cursor, work_max=work_max, census=census
            )
            pages += more
            size += bytes_more
        return pages, size

    def resident(self, keys: Sequence[bytes], *, namespace: int = 1) -> int:
        """Pages of the chain that a look-up finds."""
        return self.reader.match(b"".join(keys), namespace=namespace)[0]

    def counts(self, row: int | None = None, counter: int = 0) -> dict[str, int]:
        """The counters of a row, checked to add up."""
        counts = self.arena.row_counts(self.row if row is None else row, counter)
        missed = sum(value for name, value in counts.items() if name.startswith("miss_"))
        assert counts["requested"] == counts["l1"] + counts["l2"] + counts["l3"] + missed
        return counts
