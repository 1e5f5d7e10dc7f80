"""StoreQueue: pages that wait to be stored in L3, by instance. Pure; nothing is pinned while it waits, and all is bounded."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Queued(NamedTuple):
    """One page that waits."""

    instance: int
    size: int
    since_ns: int
    attempts: int = 0
    """How often it was sent in vain."""


class StoreQueue:
    """First in, first out: parents come before their children. Every page that is offered is counted where it ends.

    offered = queued now + taken − put back + dropped_queue_full + dropped_too_old + dropped_closing
    """

    def __init__(self, *, pages_max: int, bytes_max: int, age_ns_max: int) -> None:
        self._pages_max = pages_max
        self._bytes_max = bytes_max
        self._age_ns_max = age_ns_max
        self._queued: deque[Queued] = deque()
        self.bytes = 0
        self.counts: Counter[str] = Counter()
        self.on_too_old: Callable[[int], None] = lambda instance: None
        """Told of each page that is dropped because it waited too long."""

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def fill(self) -> float:
        """How full it is, 0 to 1."""
        return min(1.0, max(len(self._queued) / self._pages_max, self.bytes / self._bytes_max))

    def offer(self, instance: int, size: int, *, now_ns: int) -> bool:
        """Take a page in; False, and counted, when there is no room."""
        self.counts["offered"] += 1
        if len(self._queued) >= self._pages_max or (self._queued and self.bytes + size > self._bytes_max):
            self.counts["dropped_queue_full"] += 1
            return False
        self._queued.append(Queued(instance, size, now_ns))
        self.bytes += size
        return True

    def refuse(self, pages: int) -> None:
        """So many pages were offered for which there is no room, whatever their size."""
        self.counts["offered"] += pages
        self.counts["dropped_queue_full"] += pages

    def take(self, pages_max: int, *, now_ns: int) -> list[Queued]:
        """Remove and return the first ones; what waited too long is dropped and counted."""
        taken: list[Queued] = []
        while self._queued and len(taken) < pages_max:
            queued = self._queued.popleft()
            self.bytes -= queued.size
            if now_ns - queued.since_ns > self._age_ns_max:
                self.counts["dropped_too_old"] += 1
                self.on_too_old(queued.instance)
            else:
                taken.append(queued)
        return taken

    def put_back(self, taken: Sequence[Queued]) -> None:
        """Return what was taken to the front: it is to be tried again."""
        self._queued.extendleft(reversed(taken))
        self.bytes += sum(one.size for one in taken)

    def clear(self) -> None:
        """Drop everything: it is too late for it."""
        self.counts["dropped_closing"] += len(self._queued)
        self._queued.clear()
        self.bytes = 0

    def oldest_s(self, now_ns: int) -> float:
        """How long the first one has waited."""
        return (now_ns - self._queued[0].since_ns) / 1e9 if self._queued else 0.0
