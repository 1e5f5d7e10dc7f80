"""Waiting for a condition with a deadline: tests poll, they never sleep for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.005


def wait_until(predicate: Callable[[], bool], *, timeout_s: float = 10.0, what: str = "condition") -> None:
    """Return once `predicate()` is true; raises AssertionError naming `what` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"{what}: not reached within {timeout_s} s")
        time.sleep(_POLL_S)
