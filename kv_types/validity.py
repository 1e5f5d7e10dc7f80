"""What an L1 checks its pages by: the worker's window on its sidecar's header, and what one look at it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kv_types.ids import LifeId


@dataclass(frozen=True, slots=True)
class ObservedView:
    """A view and the sidecar's life that it counts in: views of different lives are never compared (rule R16)."""

    life: LifeId
    view: int


class ValiditySource(Protocol):
    """Life, view, freshness and events of whichever sidecar serves now. Cheap: reads shared memory, waits for nothing."""

    @property
    def life(self) -> LifeId:
        """The sidecar's life; NO_LIFE while no header can be read."""
        ...

    @property
    def view(self) -> int:
        """Events published in this life up to now; 0 while no header can be read."""
        ...

    @property
    def freshness_ns(self) -> int:
        """F: hits may be served while CLOCK_BOOTTIME is below it; load it before `view`. 0: not at all."""
        ...

    def events_since(self, view: int) -> Sequence[tuple[int, bytes, int, int, bytes]] | None:
        """(view, incarnation, revision, kind, payload) of each event after `view`; None when the ring was overrun."""
        ...

    def set_applied_view(self, view: int) -> None:
        """Tell the sidecar that L1 trusts no page that an event up to `view` selects."""
        ...


class EngineMode(IntEnum):
    """What a client's own cache does while its sidecar cannot vouch for pages (rule R18).

    Numbers are part of the shared-memory contract and never reused.
    """

    NONE = 0
    """It has none, or looks at the view before each use of it: nobody waits for it."""
    KEEP = 1
    """It goes on: fences wait until it has applied a record, and name it where it can't be reached."""
    DROP = 2
    """It drops its pages once its freshness is over."""
