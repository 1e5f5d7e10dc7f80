"""A tenant with a share beside one that scans: its hit ratio, against what it has alone in an arena of its share.

`python -m benchmarks.tenants`. The arena runs on a clock of its own, so that a run is the same each time; no bytes are copied.
"""

from __future__ import annotations

import itertools
import os
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import typer

from benchmarks.showing import print_table, table_lines
from cache_l2._native import Arena

KIB = 1024
SEGMENT_BYTES = 1024 * KIB
SEGMENTS = 64
PAGE_BYTES = 16 * KIB
SHARE = 0.25
TOLERANCE = 0.01
"""How much lower than alone the hit ratio may be: a share is counted in bytes, and what stands in a segment can't be cut."""
REQUESTS = 6000
WARM_UP = 3000
REQUEST_NS = 100_000
CHAINS, CHAIN_PAGES, SKEW = 600, 8, 0.9
"""What the tenant asks for: chains, by Zipf's law; more than its share holds."""
SCANNED_A_REQUEST = 32
"""Pages, each asked for once and never again, that are stored meanwhile."""
COLUMNS = ("beside it", "hit ratio", "of its share used", "its pages evicted for others")
_TENANT, _OTHER = 0, 1
"""Namespaces' numbers."""


@dataclass(frozen=True)
class Setting:
    """Who is there. `other_page_bytes` 0: nobody else; `shares` by namespace, in parts of the arena."""

    title: str
    segments: int = SEGMENTS
    shares: tuple[float, ...] = (SHARE,)
    other_page_bytes: int = PAGE_BYTES


@dataclass(frozen=True)
class Outcome:
    """What the tenant had after its warm-up."""

    hit_ratio: float
    used_bytes: int
    suffered: int
    """Its pages evicted for others."""


ALONE = Setting(
    "nobody, in an arena of its share", segments=int(SEGMENTS * SHARE), shares=(), other_page_bytes=0
)
UNSHARED = Setting("a scan, and it has no share", shares=())
IDLE = Setting("nobody", other_page_bytes=0)
GUARDED = (
    Setting("a scan"),
    Setting("a scan by a tenant with a share of its own", shares=(SHARE, SHARE)),
    Setting("a scan of larger pages", other_page_bytes=5 * PAGE_BYTES),
)
"""With its share and a scan beside it."""
SETTINGS = (ALONE, *GUARDED, IDLE, UNSHARED)


class _Run:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        arena_bytes = setting.segments * SEGMENT_BYTES
        self.arena = Arena(
            arena_bytes=arena_bytes, segment_bytes=SEGMENT_BYTES, entries=arena_bytes // PAGE_BYTES + 64, rows=1,
            leases_per_row=16, ring_records=16, life=bytes(16),
        )  # fmt: skip
        if setting.shares:
            self.arena.set_tenant_shares([int(share * arena_bytes) for share in setting.shares])
            for namespace in range(len(setting.shares)):
                self.arena.set_tenant(namespace, namespace + 1)
        self._row = self.arena.open_row(os.getpid())
        self._random = random.Random(3)
        self._cumulated = list(itertools.accumulate((rank + 1) ** -SKEW for rank in range(CHAINS)))
        self._now_ns = REQUEST_NS
        self._scanned = 0

    def outcome(self) -> Outcome:
        """Ask, with the scan in between."""
        hits = asked = 0
        for number in range(REQUESTS):
            rank = bisect(self._cumulated, self._random.random() * self._cumulated[-1])
            found = self._store(_TENANT, f"{rank}", CHAIN_PAGES, PAGE_BYTES)
            if number >= WARM_UP:
                hits, asked = hits + found, asked + CHAIN_PAGES
            if self._setting.other_page_bytes:
                self._scan()
        used, suffered = 0, 0
        if self._setting.shares:
            told = self.arena.tenant_statistics()[_TENANT + 1]
            used, suffered = told["used_bytes"], told["evictions_suffered"]
        self.arena.check_invariants()
        self.arena.close()
        return Outcome(hits / asked, used, suffered)

    def _scan(self) -> None:
        for _ in range(SCANNED_A_REQUEST):
            self._scanned += 1
            self._store(_OTHER, f"scan {self._scanned}", 1, self._setting.other_page_bytes)

    def _store(self, namespace: int, name: str, pages: int, page_bytes: int) -> int:
        """Look for a chain and store what is missing; pages found."""
        self._now_ns += REQUEST_NS
        keys = [sha256(f"{namespace} {name} {page}".encode()).digest() for page in range(pages)]
        rows = self.arena.reserve(
            row=self._row, namespace_slot=namespace, parent=None, keys=b"".join(keys), payload_bytes=page_bytes,
            expiry_s=0, deadline_ns=2**62, now_ns=self._now_ns,
        )  # fmt: skip
        self.arena.commit(
            row=self._row, reservations=[row[2] for row in rows if row[0] == 0], incarnation=bytes(16),
            revision=0, producer=0, computed_from_ms=0, computed_until_ms=0, rests_on=0, now_ns=self._now_ns,
        )  # fmt: skip
        return sum(row[0] == 1 for row in rows)


def measure(setting: Setting) -> Outcome:
    """Run one setting."""
    return _Run(setting).outcome()


def rows() -> Iterator[tuple[str, ...]]:
    """What `COLUMNS` names, of each setting."""
    share_bytes = SHARE * SEGMENTS * SEGMENT_BYTES
    for setting in SETTINGS:
        outcome = measure(setting)
        used = f"{outcome.used_bytes / share_bytes:.0%}" if setting.shares else ""
        suffered = f"{outcome.suffered:,}" if setting.shares else ""
        yield setting.title, f"{outcome.hit_ratio:.1%}", used, suffered


def lines() -> list[str]:
    """The part of docs/benchmarks.md."""
    return [
        "## A tenant with a share beside one that scans",
        "",
        f"`python -m benchmarks.tenants`: a tenant with {SHARE:.0%} of the arena asks for chains by Zipf's law, more than",
        f"its share holds, and {SCANNED_A_REQUEST} pages that nobody asks for again are stored between two of its requests.",
        "The clock runs by requests, so a run is the same everywhere.",
        "",
        *table_lines(COLUMNS, rows()),
    ]


def main() -> None:
    """Print the tenant's hit ratio with and without a share, alone and beside scans."""
    print_table(COLUMNS, rows(), width=120)


if __name__ == "__main__":
    typer.run(main)
