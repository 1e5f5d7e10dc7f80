"""What an L1 checks its pages by: the worker's window on its sidecar's header, and what tells pages of one key apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kv_types.ids import NO_LIFE, LifeId

NO_INSTANCE = 0
"""Stands for the instance where a computation reused no page."""
UNKNOWN_INSTANCE = (1 << 64) - 1
"""Stands for an instance that can't be told: what rests on it may rest on anything."""

_GENERATION = 1 << 32


def stored_instance(reservation: int) -> int:
    """Instance of the page that a committed reservation became: the generation in its high half went on by one."""
    return (reservation + _GENERATION) & UNKNOWN_INSTANCE


class EngineMode(IntEnum):
    """What a client keeps outside our tiers, and what it does with that while its sidecar can't be heard (rule R18).

    Numbers are part of the shared-memory contract and never reused.
    """

    NONE = 0
    """No index of its own: whatever it keeps is checked against the header before each use; nobody waits for it."""
    KEEP = 1
    """An engine whose own cache serves on: an invalidation is not acknowledged before it has applied it, or ended."""
    DROP = 2
    """An engine whose own cache serves nothing past its own freshness: acknowledged then at the latest."""


@dataclass(frozen=True, slots=True)
class Instances:
    """Which pages of an arena some bytes are: one number a page, meaning something in the sidecar's `life` alone.

    A page that is evicted and computed again has the same key and another instance, because it may rest on other
    pages. UNKNOWN_INSTANCE where it can't be told.
    """

    life: LifeId
    numbers: tuple[int, ...]

    def at(self, index: int) -> int:
        """Instance of page `index`, unknown beyond those that are named."""
        return self.numbers[index] if 0 <= index < len(self.numbers) else UNKNOWN_INSTANCE


NO_INSTANCES = Instances(NO_LIFE, ())
"""Nothing is known of any page."""


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
