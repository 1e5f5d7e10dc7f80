"""Work in turns, done by a test: all at once, or turn by turn with a look between."""

from __future__ import annotations

from typing import TypeVar

from invalidation.turns import Turns

_Result = TypeVar("_Result")


def finish(work: Turns[_Result]) -> _Result:
    """Do it without letting anybody run; returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _Result = done.value
            return result
