"""An arena whose clients' look-ups happen at given times: notes written into the shared memory as a client writes them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.native_arena import FAR_NS, PAGE, NativeArena

NOTES = 1024
"""In a row's ring."""
_STEP_NS = 64
_RING_AT = 64
_U64 = 2**64


@dataclass
class Notes:
    """A row's ring of notes in the clients file, mapped as any client may map it."""

    clients: mmap.mmap
    at: int

    @property
    def written(self) -> int:
        return int.from_bytes(self.clients[self.at : self.at + 8], "little")

    @written.setter
    def written(self, number: int) -> None:
        self.clients[self.at : self.at + 8] = (number % _U64).to_bytes(8, "little")

    def put(self, number: int, page: int, time: int) -> None:
        """Any two words in the place of a note."""
        at = self.at + _RING_AT + number % NOTES * 16
        self.clients[at : at + 16] = page.to_bytes(8, "little") + time.to_bytes(8, "little")

    def note(self, page: int, *, at_ns: int) -> None:
        """One note more, of a page word and a time."""
        number = self.written
        self.put(number, page, at_ns // _STEP_NS << 12 | number % 4096)
        self.written = number + 1


@contextmanager
def notes_of(world: NativeArena, row: int | None = None) -> Iterator[Notes]:
    """The notes of a row, the world's own if none is named."""
    geometry = world.arena.geometry
    row = world.row if row is None else row
    descriptors = world.arena.duplicate_descriptors(writable=False)
    with mmap.mmap(descriptors[1], geometry["clients_bytes"]) as clients:
        yield Notes(clients, geometry["row_offset"] + row * geometry["row_bytes"] + geometry["notes_offset"])
    for descriptor in descriptors:
        os.close(descriptor)


def page_word(world: NativeArena, keys: Sequence[bytes], found: int) -> int:
    """What a note says of a chain of which so many pages are there."""
    missing = len(keys) - found
    if not found:
        return 1 << 63 | missing << 32 | int.from_bytes(keys[0][24:28], "little")
    entry = world.arena.find(keys[found - 1])
    assert entry is not None
    generation = entry["generation"]
    assert isinstance(generation, int)
    assert isinstance(entry["entry"], int)
    return entry["entry"] << 39 | missing << 22 | (generation >> 1) % 2**22


class TimedArena:
    """Requests at given times: each looks its chain up, leaves a note, and puts what it lacks."""

    def __init__(self, world: NativeArena, notes: Notes) -> None:
        self.world = world
        self._notes = notes
        self.requested = self.hit = 0

    def request(self, keys: Sequence[bytes], *, at_ns: int, pages_at_once: int = 0) -> int:
        """Pages that were there. `pages_at_once`: puts come in pieces of so many."""
        found = self.world.resident(keys)
        self._notes.note(page_word(self.world, keys, found), at_ns=at_ns)
        self.requested += len(keys)
        self.hit += found
        step = pages_at_once or max(1, len(keys))
        for begin in range(found, len(keys), step):
            if not self.put(keys, begin, begin + step, at_ns=at_ns):
                break
        return found

    def put(self, keys: Sequence[bytes], begin: int, end: int, *, at_ns: int) -> bool:
        """Put keys[begin:end]; whether all of them are stored."""
        part = keys[begin:end]
        answers = self.world.arena.reserve(
            row=self.world.row, namespace_slot=1, parent=keys[begin - 1] if begin else None, keys=b"".join(part),
            payload_bytes=PAGE, expiry_s=0, deadline_ns=FAR_NS, now_ns=at_ns,
        )  # fmt: skip
        stored = self.world.commit([one[2] for one in answers if one[0] == 0], now=at_ns)
        return len(stored) == len(part)

    @property
    def hit_ratio(self) -> float:
        return self.hit / self.requested


@contextmanager
def timed_arena(*, pages: int, learns: bool) -> Iterator[TimedArena]:
    """An empty one for so many pages."""
    world = NativeArena(slots=pages + 16, entries=pages, learns=learns)
    with notes_of(world) as notes:
        yield TimedArena(world, notes)
    world.reader.close()
    world.arena.close()
