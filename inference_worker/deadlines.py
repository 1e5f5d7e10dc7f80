"""A deadline of one call: how much time is left, on the monotonic clock."""

from __future__ import annotations

import time

from kv_types.limits import CALL_S_MAX
from kv_types.numbers import check_seconds


class Deadline:
    """A point in time that several waits of one call share."""

    __slots__ = ("_at_s", "may_wait")

    def __init__(self, within_s: float) -> None:
        """Raises InvalidArgumentError."""
        check_seconds(within_s, "deadline_s", most=CALL_S_MAX, may_be_0=True)
        self.may_wait = within_s > 0.0
        """Whether any time was given: what then comes too late is late, and else was not to be waited for."""
        self._at_s = time.monotonic() + within_s

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s() <= 0.0
