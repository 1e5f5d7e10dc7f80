"""What the writer's half takes of a process's own memory, shared files aside: so many bytes a page, whatever the pages' size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGES = 200_000
BYTES_PER_PAGE_MAX = 88
"""A cache line of its own knowledge, and a word or two in each of: the order of eviction, the slots, evicted keys."""

FILL = f"""
import os
from tests.support.native_arena import NO_LOG
from cache_l2._native import Arena

def own_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

before = own_bytes()
arena = Arena(
    arena_bytes={PAGES} * 4096 // 2**20 * 2**20 + 2**20, segment_bytes=2**20, entries={PAGES}, rows=2,
    leases_per_row=1024, ring_records=16, life=bytes(16),
)
row = arena.open_row(os.getpid())
for number in range({PAGES} // 400):
    keys = os.urandom(32 * 400)
    rows = arena.reserve(
        row=row, namespace_slot=1, parent=None, keys=keys, payload_bytes=4096, expiry_s=1 + number, deadline_ns=2**62,
        now_ns=1,
    )
    arena.commit(
        row=row, reservations=[one[2] for one in rows], incarnation=NO_LOG, revision=0, producer=0, computed_from_ms=0,
        computed_until_ms=0, rests_on=0, now_ns=1,
    )
assert arena.statistics()["entries_visible"] == {PAGES}
print(own_bytes() - before)
"""


def test_a_page_takes_little_of_the_sidecars_own_memory() -> None:
    """Pages with a time to live besides: a place in the queue of those to come, which grows by doubling."""
    mortal = 2 * 16
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    told = subprocess.run(
        [sys.executable, "-c", FILL], env=environment, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) / PAGES <= BYTES_PER_PAGE_MAX + mortal
    immortal = FILL.replace("expiry_s=1 + number", "expiry_s=0")
    told = subprocess.run(
        [sys.executable, "-c", immortal], env=environment, capture_output=True, text=True, check=True
    )
    assert int(told.stdout) / PAGES <= BYTES_PER_PAGE_MAX
