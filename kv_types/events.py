"""Events: what a sidecar publishes to its workers, and what L1 asks of whoever follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from kv_types.ids import LifeId


class EventKind(IntEnum):
    """What an event did. Numbers are part of the shared-memory contract and never reused.

    A reader that does not know a number takes the event for EVERYTHING (invariant I6).
    """

    NOTHING = 0
    """The view advanced and no page became invalid."""
    EVERYTHING = 1
    """Every page became invalid."""


class Event(NamedTuple):
    """One record of the ring, as the native reader gives it."""

    view: int
    incarnation: bytes
    revision: int
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ObservedView:
    """A view and the sidecar's life that it counts in; views of different lives never compare (rule R16)."""

    life: LifeId
    view: int


class ValiditySource(Protocol):
    """The worker's window on its sidecar's header. Methods only read (or set one word of) shared memory."""

    def observe(self) -> ObservedView | None:
        """Life and view now, or None while no sidecar is attached or its header is closed."""
        ...

    def freshness_ns(self) -> int:
        """F: hits may be served while CLOCK_BOOTTIME is below it; 0 while no sidecar is attached."""
        ...

    def events_since(self, view: int) -> Sequence[tuple[int, bytes, int, int, bytes]] | None:
        """Events after `view`, in the fields of Event; None when the ring was overrun."""
        ...

    def set_applied_view(self, view: int) -> None:
        """Tell the sidecar that L1 trusts no page that an event up to `view` selects."""
        ...
