"""A sidecar's header as the governor sees it, kept in a test's own memory: lives, events, freshness, claims and holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from kv_types.clock import ManualClock
from kv_types.errors import InvalidArgumentError
from kv_types.events import EventKind
from kv_types.ids import NO_LIFE, LifeId, LogIncarnation, Stamp
from kv_types.validity import ObservedView

UNLIMITED = 2**64 - 1
INCARNATION = LogIncarnation(b"i" * 16)


class FakeHold:
    """One slot of request views; views of lives that are over hold nothing back."""

    def __init__(self, header: FakeHeader | None, life: LifeId = NO_LIFE, view: int = 0) -> None:
        self._header, self.life, self.view = header, life, view

    @property
    def is_held(self) -> bool:
        return self._header is not None

    def advance(self, view: int) -> None:
        assert self._header is not None
        assert self.life != self._header.life or view <= len(self._header.events), (
            "advanced past what is published"
        )
        self.view = max(self.view, view)

    def end(self) -> None:
        if self._header is not None:
            self._header.holds.remove(self)
            self._header = None


@dataclass
class FakeHeader:
    """`events` of the present life, from view 1 on: (kind, payload). `overrun_to`: views that the ring has lost."""

    clock: ManualClock
    is_there: bool = True
    never_attached: bool = False
    is_dead: bool = False
    number: int = 1
    events: list[tuple[int, bytes]] = field(default_factory=lambda: [(EventKind.LOG_STARTED, b"")])
    overrun_to: int = 0
    fresh_until_ns: int = 1 << 62
    keep_granted: bool = False
    own_freshness_ns: int = 0
    applied: int = 0
    holds: list[FakeHold] = field(default_factory=list)
    may_hold: bool = True

    @property
    def life(self) -> LifeId:
        return LifeId(self.number.to_bytes(16, "big")) if self.is_there else NO_LIFE

    @property
    def freshness_ns(self) -> int:
        return self.fresh_until_ns if self.is_there else 0

    def stamped_view(self) -> tuple[ObservedView, Stamp] | None:
        if not self.is_there:
            return None
        return ObservedView(self.life, len(self.events)), Stamp(INCARNATION, len(self.events))

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        if not self.is_there or view < self.overrun_to:
            return None
        return [
            (number, INCARNATION, number, kind, payload)
            for number, (kind, payload) in enumerate(self.events, 1)
            if number > view
        ]

    def set_applied_view(self, view: int) -> None:
        self.applied = view

    def claim_freshness(self, freshness_ns: int | None = None) -> tuple[int, int]:
        if not self.is_there:
            return 0, 0
        granted = UNLIMITED if freshness_ns == UNLIMITED and self.keep_granted else self.fresh_until_ns
        self.own_freshness_ns = granted if freshness_ns is None else min(freshness_ns, granted)
        return self.own_freshness_ns, len(self.events)

    def hold(self, view: int | None = None, *, life: LifeId | None = None) -> FakeHold:
        if not self.is_there or not self.may_hold or life != self.life:
            return FakeHold(None)
        if view is None or not 0 < view <= len(self.events):
            raise InvalidArgumentError(f"view {view} is not published in this life")
        held = FakeHold(self, self.life, view)
        self.holds.append(held)
        return held

    def publish(self, kind: int, payload: bytes = b"") -> int:
        self.events.append((kind, payload))
        return len(self.events)

    def restart(self) -> None:
        """Another life begins."""
        self.is_there, self.never_attached, self.is_dead = True, False, False
        self.number += 1
        self.events = [(EventKind.LOG_STARTED, b"")]
        self.overrun_to = self.own_freshness_ns = self.applied = 0

    def die(self) -> None:
        """The sidecar dies. Who was granted `keep` goes by what its header said last."""
        self.is_there = self.is_there and self.keep_granted
        self.is_dead = True
        self.fresh_until_ns = min(self.fresh_until_ns, self.clock.now_ns())

    @property
    def held_views(self) -> list[int]:
        """What holds back `drained` in the present life."""
        return [held.view for held in self.holds if held.life == self.life]
