"""Looks: asks the log how its fleet stands once for all who want to know, so that many waiting fences load it as one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from invalidation.log import FenceState, InvalidationLog, LogUnavailableError
from kv_types.clock import Clock
from kv_types.limits import CALL_DEADLINE_S_DEFAULT

_SECOND_NS = 1_000_000_000
_HANG_FACTOR = 2
"""A log that does not keep a call's deadline is given up after so many times it."""


@dataclass(slots=True, eq=False)
class _Round:
    """One look that is not sent yet: who joins it asks before it is sent."""

    answer: asyncio.Future[FenceState]
    askers: int = 0
    deadline_ns: int = 0


@dataclass(slots=True)
class Looks:
    """Calls `InvalidationLog.fence`, one call at a time, on the event loop of whoever asks.

    Who asks while a call is under way gets the answer of the next one: what was sent before it asked proves nothing to
    it, as a record that it has appended meanwhile may be missing there. That one answer is everybody's who asked by then.
    """

    log: InvalidationLog
    clock: Clock
    call_ns: int = int(CALL_DEADLINE_S_DEFAULT * _SECOND_NS)
    """What one call of the log may take."""
    unconfirmed: str = ""
    """Why the last answer proves nothing, empty where it does: for people, who want to know what keeps them waiting."""
    _next: _Round | None = field(default=None, init=False)
    _sending: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def look_ns(self) -> int:
        """How long an answer takes at most from a log that gives any: the rest of the look under way, then one's own."""
        return 2 * self.call_ns

    async def look(self, *, deadline_ns: int) -> FenceState:
        """Return an answer to a call that is sent after this one; `look_ns` are enough time for it.

        Raises LogUnavailableError when the call failed or the deadline passes first. Cancelling ends nobody else's look.
        """
        if self._next is None:
            self._next = _Round(asyncio.get_running_loop().create_future())
        mine = self._next
        mine.askers += 1
        mine.deadline_ns = max(mine.deadline_ns, deadline_ns)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name="looks at the log")
        try:
            async with asyncio.timeout(max(0, deadline_ns - self.clock.now_ns()) / _SECOND_NS):
                return await asyncio.shield(mine.answer)
        except TimeoutError:
            raise LogUnavailableError(
                "timeout", self.unconfirmed or "no look at it was answered in time"
            ) from None
        finally:
            mine.askers -= 1

    async def _send(self) -> None:
        """Send one look after the other for as long as somebody asks."""
        try:
            while self._next is not None:
                mine, self._next = self._next, None
                if mine.askers:  # else all of them have given up
                    await self._answer(mine)
        finally:
            self._sending = None

    async def _answer(self, mine: _Round) -> None:
        now_ns = self.clock.now_ns()
        deadline_ns = min(mine.deadline_ns, now_ns + self.call_ns)
        try:
            async with asyncio.timeout(_HANG_FACTOR * self.call_ns / _SECOND_NS):
                state = await self.log.fence(deadline_ns=deadline_ns)
        except TimeoutError:
            self._fail(mine, LogUnavailableError("timeout", "it did not keep the deadline of its call"))
        except asyncio.CancelledError:
            mine.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who asked
            self._fail(mine, error)
        else:
            self.unconfirmed = (
                ""
                if state.confirmed
                else f"replication not confirmed by {state.replicas} configured replicas"
            )
            mine.answer.set_result(state)

    def _fail(self, mine: _Round, error: Exception) -> None:
        self.unconfirmed = ""
        mine.answer.set_exception(error)
        mine.answer.exception()  # seen, even if everybody who asked has given up
