"""What the writer's half takes of a process's own memory, shared files aside: so many bytes a page, whatever the pages' size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGES = 200_000
BYTES_PER_PAGE_MAX = 144
"""A cache line of its own knowledge, two words of the eviction policy and its ghosts, and a word or less in each of: the slots,
evicted keys. In an arena of so few pages ghosts are five a page; a million pages have two each, and 36 bytes less."""

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

CHURN = """
import os
from tests.support.native_arena import NativeArena, now_ns

def own_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

world, now = NativeArena(slots=1024, entries=1024), now_ns()
def churn(batches):
    for number in range(batches):
        rows = world.reserve([os.urandom(32) for _ in range(64)], expiry_s=2**31 + number % 97, now=now)
        world.commit([one.reservation for one in rows], now=now)
churn(200)
before = own_bytes()
churn(4000)
world.arena.check_invariants()
print(own_bytes() - before)
"""


def _told(program: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


def test_what_pages_leave_behind_in_the_queues_of_times_does_not_pile_up() -> None:
    assert _told(CHURN) < 1_000_000, "256,000 pages came and went"


def test_a_page_takes_little_of_the_sidecars_own_memory() -> None:
    """Pages with a time to live besides: a place in the queue of those to come."""
    mortal = 16
    assert _told(FILL) / PAGES <= BYTES_PER_PAGE_MAX + mortal
    assert _told(FILL.replace("expiry_s=1 + number", "expiry_s=0")) / PAGES <= BYTES_PER_PAGE_MAX
