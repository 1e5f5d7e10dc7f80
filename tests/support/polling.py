"""Waiting for another process or thread without sleeping blindly: poll until true, fail with a name."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    predicate: Callable[[], bool], *, timeout_s: float = 10.0, what: str | Callable[[], str] = "condition"
) -> None:
    """Poll `predicate` every 5 ms; raises AssertionError naming `what` (as it is then) when `timeout_s` passes first."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"{told} did not come true within {timeout_s} s")
        time.sleep(0.005)
