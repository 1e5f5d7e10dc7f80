"""UsedPages: finds pages of the arena that were asked for and are not in L3, those first that are likely to go soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cache_l2.store import ArenaStore
from sidecar.l3.admission import Admission

_ENTRIES_AT_ONCE = 16_384
"""Entries of one look: some hundred µs."""
_COLD_AT_ONCE = 256
_TURNS = 2**32
_PAGES_AT_ONCE = 64
"""Pages that one look offers at most."""
LOOK_S = 0.25


class UsedPages:
    """Asks for what is coldest, then goes round the arena, some of it at a time.

    It pins nothing, holds up no put, and offers nothing while the queue to L3 is half full.
    """

    def __init__(self, store: ArenaStore, admission: Admission, offer: Callable[[int, int], None]) -> None:
        """`offer` queues an instance of so many bytes."""
        self._store = store
        self._admission = admission
        self._offer = offer
        self._at = 0
        self._turn = 0
        self._found: deque[int] = deque()
        """Of the part that was looked at last, what more there was than could be offered at once."""

    def look(self, now_s: float) -> int:
        """Look at what is coldest, and at the rest of a part of the arena or the next one; tells how many pages were offered."""
        cold = deque(self._store.cold_used_pages(turn=self._turn, count=_COLD_AT_ONCE))
        self._turn = (self._turn + 1) % _TURNS
        offered = self._offer_of(cold, _PAGES_AT_ONCE, now_s)
        if not self._found:
            self._at, used = self._store.used_pages(begin=self._at, count=_ENTRIES_AT_ONCE)
            self._found.extend(used)
        return offered + self._offer_of(self._found, _PAGES_AT_ONCE - offered, now_s)

    def _offer_of(self, instances: deque[int], pages_most: int, now_s: float) -> int:
        offered = 0
        while instances and offered < pages_most:
            instance = instances.popleft()
            if self._admission.is_placed(instance):
                continue
            page = self._store.describe(instance)
            if page is None or not self._admission.saves(instance, page.key, page.payload_bytes, now_s=now_s):
                continue
            self._offer(instance, page.payload_bytes)
            offered += 1
        return offered
