"""The one request view of a scheduler: from which view on it holds `drained` back, steps in flight included."""

from __future__ import annotations

from collections import deque

from inference_worker.connectors.vllm.governed import Header, ViewHold
from kv_types.engine_limits import ENGINE_STEPS_IN_FLIGHT_MAX
from kv_types.errors import InvalidArgumentError
from kv_types.ids import NO_LIFE, LifeId


class RequestHold:
    """Moves forward only: past what live requests rest on, and past what steps rest on whose outputs are awaited."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._life = NO_LIFE
        self._held: ViewHold | None = None
        self._view = 0
        self._in_flight: deque[tuple[int, LifeId, int]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether anything is."""
        return self._held is not None

    def begin(self, life: LifeId, view: int) -> bool:
        """Hold from this view on unless something is held already; False when that can't be had."""
        if self._held is not None and self._life == life:
            return True
        self.end()
        if not view:  # nothing was published yet
            return True
        try:
            held = self._header.hold(view, life=life)
        except InvalidArgumentError:  # a life that has published nothing yet
            return False
        if held.is_held:
            self._held, self._life, self._view = held, life, view
        return held.is_held

    def move(self, life: LifeId, view: int | None) -> None:
        """Live requests rest on views from this one on; None: there are none. 0: on something older than this life."""
        # What steps in flight rest on that began in another life is older than all of this one.
        views = [held if begun_in == life else 0 for _, begun_in, held in self._in_flight]
        if view is not None:
            views.append(view)
        if not views:
            self.end()
            return
        target = max(min(views), 1)  # the first view of a life is the oldest that can be told
        if life == NO_LIFE:
            return
        if self._held is None or self._life != life:
            self.begin(life, target)
        elif target > self._view:
            self._held.advance(target)
            self._view = target

    def step_begun(self, step: int) -> None:
        """What is held now, the step just made included, is held until the outputs of this step were processed."""
        if len(self._in_flight) >= ENGINE_STEPS_IN_FLIGHT_MAX:
            _, begun_in, oldest = self._in_flight.popleft()
            number, life, view = self._in_flight.popleft()
            self._in_flight.appendleft((number, life, min(oldest, view) if begun_in == life else 0))
        # What began while nothing could be held is older than whatever is published later.
        held = (NO_LIFE, 0) if self._held is None else (self._life, self._view)
        self._in_flight.append((step, *held))

    def step_done(self, step: int) -> None:
        """The outputs of all steps up to this one were processed."""
        while self._in_flight and self._in_flight[0][0] <= step:
            self._in_flight.popleft()

    def end(self) -> None:
        """Nothing is held any more."""
        if self._held is not None:
            self._held.end()
            self._held = None
