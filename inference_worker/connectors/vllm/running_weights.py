"""Which version an engine's weights are of: as loaded, as set in the running engine, as announced, or private after a reset."""

from __future__ import annotations

import os
from collections.abc import Callable

from inference_worker.connectors.vllm.governed import BoardReading, VersionBoard
from inference_worker.weights import Announced, FollowedVersion

_DISAGREE = "the ranks are not of one weights version"


class EngineWeights:
    """Pure but for what it is given to read. Not thread-safe: asked by the scheduler alone."""

    def __init__(
        self,
        loaded: str,
        *,
        board: VersionBoard | None = None,
        announced: Callable[[], Announced | None] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`loaded` names the weights as ranks loaded them. With `announced` what is announced for the model is followed.

        Raises InvalidArgumentError.
        """
        self.version: str | None = None
        """None: as they were loaded."""
        self._name = loaded
        self._board = board
        self._reading: BoardReading | None = None if board is None else board.read()
        self._announced = announced
        self._followed = None if announced is None else FollowedVersion(loaded)
        self._announced_trouble = "" if announced is None else "announcements were not looked at yet"
        self._random = random
        self._numbers: tuple[int, ...] = ()
        self._numbers_moved = False
        if self._reading is not None and self._reading.version:
            self.switch(self._reading.version)

    @property
    def trouble(self) -> str:
        """Why nothing may be reused or stored because of the weights; empty when it may."""
        disagree = _DISAGREE if self._board is not None and self._reading is None else ""
        return disagree or self._announced_trouble

    @property
    def has_moved(self) -> bool:
        """Whether ranks say something else than at the last settle(). For each look-up: cheap."""
        return self._numbers_moved or (self._board is not None and self._board.read() != self._reading)

    def watch(self, numbers: tuple[int, ...]) -> None:
        """Ranks have told with their reports how often a version was set: it counts where their boards can't be read.

        Those that say less than was told by then are no boards of these ranks: a pid means another process elsewhere.
        """
        if self._board is not None:
            reading = self._board.read()
            if reading is not None and sum(numbers) > reading.number:
                self._board = None
        if self._board is None and numbers and numbers != self._numbers:
            self._numbers_moved = self._numbers_moved or any(numbers)
            self._numbers = numbers

    def settle(self, *, has_news: bool) -> bool:
        """Take in what ranks say and, if `has_news` or it could not be told before, what is announced; True: a switch."""
        before = self.version
        switched = self._settle_board()
        if (
            self._followed is not None
            and self._announced is not None
            and (has_news or self._announced_trouble)
        ):
            known = self._followed.version
            self._announced_trouble = self._followed.observe(self._announced())
            if self._followed.version != known:
                self._name = self.version = self._followed.version
        return switched or self.version != before

    def switch(self, version: str) -> None:
        """The weights are of this version from now on."""
        self._name = self.version = version
        if self._followed is not None:
            self._followed.declare(version)

    def reset(self) -> str:
        """The weights may have changed under their name: from now on they have one that nobody else has; returns it."""
        self.version = f"{self._name}+{self._random(8).hex()}"
        if self._followed is not None:
            self._followed.declare(self.version)
        return self.version

    def _settle_board(self) -> bool:
        if self._numbers_moved:  # to which version can't be told
            self._numbers_moved = False
            self.reset()
            return True
        if self._board is None:
            return False
        reading = self._board.read()
        if reading == self._reading:
            return False
        self._reading = reading
        if reading is None:
            self.reset()
        elif reading.version:
            self.switch(reading.version)
        else:
            self.version = None
        return True
