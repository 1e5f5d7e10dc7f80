"""What an L1 checks its pages by: life, view and events of the sidecar's header, whichever life serves now (R16)."""

from __future__ import annotations

from inference_worker.link import Link
from kv_types.ids import LifeId

NO_LIFE = LifeId(bytes(16))
"""Life while no header can be read: an L1 that held pages of another life drops them."""


class ClientValidity:
    """Conforms to cache_l1's ValiditySource. Without shared memory there is no header: then no L1 page may be trusted."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def life(self) -> LifeId:
        """The sidecar's life, NO_LIFE while no header can be read."""
        arena = self._link.arena
        return NO_LIFE if arena is None else arena.life

    @property
    def view(self) -> int:
        """Events published in this life up to now; 0 while no header can be read."""
        arena = self._link.arena
        if arena is None:
            return 0
        try:
            return arena.reader.view
        except ValueError:  # closed by another thread: the next look at `life` says so
            return 0

    @property
    def freshness_ns(self) -> int:
        """CLOCK_BOOTTIME ns until which the view is vouched for; load it before `view`. 0 while no header can be read."""
        arena = self._link.arena
        if arena is None:
            return 0
        try:
            return arena.reader.freshness_ns()
        except ValueError:
            return 0

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        """(view, incarnation, revision, kind, payload) of each event after `view`; None: unknown, drop everything."""
        arena = self._link.arena
        if arena is None:
            return None
        try:
            return arena.reader.events_since(view)
        except ValueError:
            return None

    def set_applied_view(self, view: int) -> None:
        """Tell the sidecar that this worker's L1 has applied every event up to `view`."""
        arena = self._link.arena
        if arena is None:
            return
        try:
            arena.reader.set_applied_view(view)
        except ValueError:
            return  # closed by another thread: nobody listens there any more
