"""The one request view of a scheduler: from which view on it holds `drained` back, steps in flight included."""

from __future__ import annotations

from collections import deque

from inference_worker.connectors.vllm.governed import Header, ViewHold
from kv_types.ids import NO_LIFE, LifeId
from kv_types.limits import ENGINE_STEPS_IN_FLIGHT_MAX


class RequestHold:
    """Moves forward only: past what live requests rest on, and past what steps rest on whose outputs are awaited."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._life = NO_LIFE
        self._held: ViewHold | None = None
        self._view = 0
        self._in_flight: deque[tuple[int, int]] = deque()

    def begin(self, life: LifeId, view: int) -> bool:
        """Hold from this view on unless something is held already; False when that can't be had."""
        if self._held is not None and self._life == life:
            return True
        self._end()
        if view:
            self._held = self._header.hold(view)
            self._life, self._view = life, view
        return self._held is not None or not view

    def move(self, life: LifeId, view: int | None) -> None:
        """Live requests rest on views from this one on; None: there are none. 0: on something older than this life."""
        if self._held is not None and self._life != life:
            # What steps in flight rest on is older than all of the new life.
            self._in_flight = deque((step, 0) for step, _ in self._in_flight)
        views = [held for _, held in self._in_flight] + ([] if view is None else [view])
        if not views:
            self._end()
            return
        target = max(min(views), 1)  # the first view of a life is the oldest that can be told
        if self._held is None or self._life != life:
            self.begin(life, target)
        elif target > self._view:
            self._held.advance(target)
            self._view = target

    def step_begins(self, step: int) -> None:
        """What is held now is held until the outputs of this step were processed."""
        if self._held is None:
            return
        if len(self._in_flight) >= ENGINE_STEPS_IN_FLIGHT_MAX:
            _, oldest = self._in_flight.popleft()
            second, view = self._in_flight.popleft()
            self._in_flight.appendleft((second, min(oldest, view)))
        self._in_flight.append((step, self._view))

    def step_done(self, step: int) -> None:
        """The outputs of all steps up to this one were processed."""
        while self._in_flight and self._in_flight[0][0] <= step:
            self._in_flight.popleft()

    def _end(self) -> None:
        if self._held is not None:
            self._held.end()
            self._held = None
