"""Which revision of the log each published view stands for, so that what clients have applied can be told to the log."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kv_types.limits import VIEW_POSITIONS_MAX


@dataclass(frozen=True, slots=True)
class _Position:
    view: int
    revision: int


class ViewPositions:
    """Turns a view that is reached (acknowledged, or drained) into the newest revision published up to it.

    Bounded: of more than VIEW_POSITIONS_MAX positions that are not reached every second one is forgotten. What it stood
    for is then told with the next one, later than it might be and never earlier.
    """

    def __init__(self, *, positions_max: int = VIEW_POSITIONS_MAX) -> None:
        self._waiting: deque[_Position] = deque()
        self._max = positions_max
        self.reached = 0
        """Newest revision of the present incarnation whose view is reached."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_complete(self) -> bool:
        """Whether everything that was published is reached."""
        return not self._waiting

    def begin(self) -> None:
        """Another incarnation begins: revisions of the one before mean nothing any more."""
        self._waiting.clear()
        self.reached = 0

    def published(self, view: int, revision: int) -> None:
        """A revision was published under a view."""
        self._waiting.append(_Position(view, revision))
        if len(self._waiting) > self._max:
            kept = list(self._waiting)
            self._waiting = deque(kept[(len(kept) - 1) % 2 :: 2])  # the newest stays

    def advance(self, view: int) -> bool:
        """A view is reached; returns whether that moved `reached`. It never goes back, whatever clients write."""
        before = self.reached
        while self._waiting and self._waiting[0].view <= view:
            self.reached = self._waiting.popleft().revision
        return self.reached != before
