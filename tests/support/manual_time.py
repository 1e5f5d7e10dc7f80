"""A clock that tests move by hand, and waits that end when it has been moved far enough."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from kv_types.clock import ManualClock

SECOND_NS = 1_000_000_000
_TURNS = 64
_SETTLE_TURNS_MAX = 100_000


class ManualTime(ManualClock):
    """`pause` is what takes the place of asyncio.sleep."""

    def __init__(self, start_ns: int = SECOND_NS) -> None:
        super().__init__(start_ns)
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._order = 0

    async def pause(self, seconds: float) -> None:
        """Wait until the clock has been moved by so much."""
        due_ns = self.now_ns() + int(seconds * SECOND_NS)
        if due_ns <= self.now_ns():
            await asyncio.sleep(0)
            return
        event = asyncio.Event()
        self._order += 1
        heapq.heappush(self._sleepers, (due_ns, self._order, event))
        await event.wait()

    async def run(self, seconds: float) -> None:
        """Move on by `seconds`, stopping wherever somebody is to wake up, and let everybody run there."""
        end_ns = self.now_ns() + int(seconds * SECOND_NS)
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end_ns:
            due_ns, _, event = heapq.heappop(self._sleepers)
            self.advance(max(0, due_ns - self.now_ns()))
            event.set()
            await settle()
        self.advance(max(0, end_ns - self.now_ns()))


async def settle() -> None:
    """Let everybody run who can without the clock moving."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], *, what: str) -> None:
    """Let others run until something holds; no time passes on the manual clock."""
    for _ in range(_SETTLE_TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{what} did not come")
