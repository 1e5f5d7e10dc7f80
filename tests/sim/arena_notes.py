"""Notes of look-ups in the arena's model: what a reader leaves in its row, and what the writer makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kv_types.outcomes import MissReason
from tests.sim.arena_entries import VISIBLE, Row
from tests.sim.arena_posts import PostingTree

if TYPE_CHECKING:
    from tests.sim.arena_lease import ModelLease

TOLD = (MissReason.ABSENT, MissReason.EXPIRED)
"""Why a look-up that found nothing says so; the others don't know."""


class NotingTree(PostingTree):
    """Tells nobody, and counts as the native arena does: a note of a page that has gone is lost."""

    def read_notes(self, *, notes_max: int, now_ns: int) -> int:
        told = 0
        for row in self.rows:
            if row.state:
                told += self._read_row(row)
        return told

    def _read_row(self, row: Row) -> int:
        notes, row.notes = row.notes, []
        for deepest in notes:
            is_there = deepest is None or (
                deepest[0].state == VISIBLE and deepest[0].generation == deepest[1]
            )
            self.counters["notes_read" if is_there else "notes_lost"] += 1
        return len(notes)


def note(arena: NotingTree, row: Row, chain: list[bytes], start: int, lease: ModelLease) -> None:
    """What a look-up that is counted leaves word of: the deepest page that it found, or that an L1 has served below."""
    if lease.pages:
        row.notes.append(lease._pages[-1])
    elif lease.reason in TOLD:
        below = arena.index.get(chain[start - 1]) if start else None
        row.notes.append(None if below is None else (below, below.generation))
