"""A model of the arena's leases: pinned pages, and what stands in their places when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kv_types.outcomes import MissReason
from tests.sim.arena_entries import Entry, Slot

if TYPE_CHECKING:
    from tests.sim.arena_reader import ModelReader

BYTES_OF_WORD = 8
Found = tuple[Entry, int]
"""An entry and the generation that it was found with."""


class ModelLease:
    """Pinned pages; what stands in their places is read when it is asked for."""

    def __init__(self, reader: ModelReader, found: list[Found], parent: Found | None, view: int) -> None:
        self._reader = reader
        self._pages = found
        self._parent = parent
        self._hazards: list[tuple[Entry, int]] = []
        self._instances = [
            (generation & 0xFFFFFFFF) << 32 | (entry.number + 1) for entry, generation in found
        ]
        self.view = view
        self.reason = int(MissReason.ABSENT)
        self.deadline_ns = 0
        self._released = False

    def pin(self, lease_ns: int) -> None:
        """Hazards, then another look at every generation (rule R17)."""
        hazards = [(entry, (1 << 64) - 1 if lease_ns else 0) for entry, _ in self._pages]
        self._hazards = hazards
        self._reader._row.hazards += hazards
        self._reader._held += bool(hazards)
        self._reader._give_way()
        if self._parent is not None and self._parent[0].generation != self._parent[1]:
            self.cut(0)
        self.cut(self.still_there())

    def still_there(self) -> int:
        """Pages, from the first on, whose generation is the one that they were found with."""
        for index, (entry, generation) in enumerate(self._pages):
            if entry.generation != generation:
                return index
        return len(self._pages)

    def cut(self, pages: int) -> None:
        """Keep the first pages only."""
        for hazard in self._hazards[pages:]:
            self._drop(hazard)
        self._reader._held -= bool(self._hazards) and not pages
        self._hazards, self._pages = self._hazards[:pages], self._pages[:pages]
        self._instances = self._instances[:pages]

    def touch(self, now_ns: int, lease_ns: int, *, is_noted: bool) -> None:
        """Note the access; a copy gets its deadline."""
        for entry, _ in self._pages if is_noted else ():
            entry.previous_ns, entry.last_ns = entry.last_ns, now_ns
        if lease_ns:
            self.deadline_ns = now_ns + lease_ns
            for hazard in self._hazards:
                self._drop(hazard)
            self._hazards = [(entry, self.deadline_ns) for entry, _ in self._pages]
            self._reader._row.hazards += self._hazards

    def _drop(self, hazard: tuple[Entry, int]) -> None:
        hazards = self._reader._row.hazards
        if hazard in hazards:
            hazards.remove(hazard)

    @property
    def pages(self) -> int:
        return len(self._pages)

    @property
    def instance(self) -> int:
        return self._instances[-1] if self._instances else 0

    def instances(self) -> list[int]:
        return list(self._instances)

    @property
    def stands_on(self) -> int:
        if self._parent is None or not self._pages:
            return 0
        return (self._parent[1] & 0xFFFFFFFF) << 32 | (self._parent[0].number + 1)

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> memoryview:
        if self._released:
            raise ValueError("the lease was released")
        entry = self._pages[index][0]
        if entry.payload_bytes == len(entry.place) * BYTES_OF_WORD:
            return memoryview(entry.place).cast("B").toreadonly()
        return memoryview(bytes_of(entry.place, entry.payload_bytes))

    def __iter__(self) -> Iterator[memoryview]:
        return (self[index] for index in range(len(self._pages)))

    def release(self) -> None:
        if not self._released:
            self._released = True
            for hazard in self._hazards:
                self._drop(hazard)
            self._reader._held -= bool(self._hazards)
            self._hazards = []

    def __enter__(self) -> ModelLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def bytes_of(place: Slot, page_bytes: int) -> bytes:
    half = page_bytes // 2
    return b"".join(word.to_bytes(BYTES_OF_WORD, "little").ljust(half, b"\0") for word in place)
