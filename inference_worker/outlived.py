"""What the header of a sidecar that has died said last: an engine of mode KEEP goes by it until another one comes (R18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference_worker.view_hold import ViewHold
from kv_types.errors import InvalidArgumentError
from kv_types.ids import LifeId, Stamp
from kv_types.validity import ObservedView

_NO_LIMIT = (1 << 64) - 1

Event = tuple[int, bytes, int, int, bytes]
"""(view, incarnation, revision, kind, payload)."""


@dataclass(frozen=True, slots=True)
class OutlivedHeader:
    """A copy, so that the sidecar's memory is given back. Nothing can change there any more: its process has ended.

    `events`: those after the view `since`, None where they could not be read.
    """

    observed: ObservedView
    stamp: Stamp
    fresh_until_ns: int
    since: int
    events: Sequence[Event] | None

    @property
    def life(self) -> LifeId:
        """The sidecar's life."""
        return self.observed.life

    def view(self) -> int:
        """The last view that was published."""
        return self.observed.view

    def freshness_ns(self) -> int:
        """Until when it was vouched for."""
        return self.fresh_until_ns

    def stamped_view(self) -> tuple[ObservedView, Stamp]:
        """The last view and the log position there."""
        return self.observed, self.stamp

    def events_since(self, view: int) -> list[Event] | None:
        """Events after `view`; None when they are not all here."""
        if self.events is None or not self.since <= view <= self.observed.view:
            return None
        return [event for event in self.events if event[0] > view]

    def set_applied_view(self, view: int) -> None:
        """Tell nobody: the log names this member to each fence, whatever is applied below it."""

    def claim_freshness(self, freshness_ns: int | None) -> tuple[int, int]:
        """Grant what the sidecar had granted: without limit, to whom it had told the log of."""
        granted = _NO_LIMIT if freshness_ns == _NO_LIMIT else self.fresh_until_ns
        return granted if freshness_ns is None else min(freshness_ns, granted), self.observed.view

    def hold(self, view: int | None) -> ViewHold:
        """Hold in a life that nobody declares drained: its member stays in the log until somebody says that it has ended.

        Raises InvalidArgumentError.
        """
        if view is not None and not 0 < view <= self.observed.view:
            raise InvalidArgumentError(f"view {view} is not published in this life")
        return ViewHold(self, view=self.observed.view if view is None else view)

    @property
    def inherited(self) -> bool:
        """Nothing here is another process's."""
        return False

    def advance_hold(self, slot: int, view: int) -> bool:
        """See HoldingArena."""
        return view <= self.observed.view

    def end_hold(self, slot: int, request: object) -> None:
        """There is no slot."""
