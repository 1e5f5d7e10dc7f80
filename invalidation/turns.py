"""Work in turns: what may take long on an event loop, as a generator that lets others run wherever it yields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")

Turns = Generator[None, None, _Result]
"""Work whose turns are bounded, and that returns its result."""


async def in_turns(work: Turns[_Result]) -> _Result:
    """Do it, and let the event loop serve others between two turns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await asyncio.sleep(0)


def in_one(work: Callable[[_Given], _Result]) -> Callable[[_Given], Turns[_Result]]:
    """Make of work that is always short one of a single turn."""

    def turns(given: _Given) -> Turns[_Result]:
        yield from ()
        return work(given)

    return turns
