"""Recordings of look-ups: who wants to hear of them, what waits for each, and what was dropped because it did not read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kv_types.clock import Clock
from kv_types.errors import OverloadedError
from kv_types.ids import DIGEST_BYTES
from kv_types.trace_limits import RECORDED_BYTES_MAX, RECORDED_LOOK_UPS_MAX, RECORDINGS_MAX


class LookUp(NamedTuple):
    """One look-up of a chain: when, since the recording began, how many tokens, and DIGEST_BYTES of each page's key."""

    at_us: int
    input_tokens: int
    digests: bytes


class Recording:
    """What one reader is told, in order; bounded, so that one who does not read costs the others nothing."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._waiting: deque[LookUp] = deque()
        self._bytes = 0
        self._dropped = 0
        self._has_ended = False
        self._is_worth_a_look = asyncio.Event()

    async def wait(self) -> bool:
        """Wait until there is something to take; False once nothing will come any more and all was taken."""
        if not self._has_ended:
            await self._is_worth_a_look.wait()
        return bool(self._waiting) or not self._has_ended

    def take(self, *, bytes_about: int) -> tuple[list[LookUp], int]:
        """Look-ups, until their digests have `bytes_about` bytes, and how many were dropped since the last call."""
        taken: list[LookUp] = []
        size = 0
        while self._waiting and size < bytes_about:
            taken.append(self._waiting.popleft())
            size += len(taken[-1].digests)
        self._bytes -= size
        dropped, self._dropped = self._dropped, 0
        if not self._waiting and not self._has_ended:
            self._is_worth_a_look.clear()
        return taken, dropped

    def add(self, now_ns: int, input_tokens: int, digests: bytes, *, dropped: int) -> None:
        """Queue one look-up, or count it where there is no room; `dropped` others were lost before it came here."""
        self._dropped += dropped
        self._is_worth_a_look.set()
        full = len(self._waiting) >= RECORDED_LOOK_UPS_MAX or self._bytes + len(digests) > RECORDED_BYTES_MAX
        if full:
            self._dropped += 1
            return
        self._waiting.append(LookUp((now_ns - self._began_ns) // 1000, input_tokens, digests))
        self._bytes += len(digests)

    def end(self) -> None:
        """Nothing comes any more."""
        self._has_ended = True
        self._is_worth_a_look.set()


class Recorder:
    """Recordings that are under way. For the sidecar's one thread."""

    def __init__(self, switch: Callable[[bool], None], *, clock: Clock) -> None:
        """`switch` makes clients tell of their look-ups, or stop that."""
        self._switch = switch
        self._clock = clock
        self._recordings: set[Recording] = set()

    @property
    def recordings(self) -> int:
        """How many are under way."""
        return len(self._recordings)

    def begin(self) -> Recording:
        """Record from now on, until `end`. Raises OverloadedError when RECORDINGS_MAX are under way."""
        if len(self._recordings) >= RECORDINGS_MAX:
            raise OverloadedError(
                f"{RECORDINGS_MAX} recordings of this sidecar's look-ups are under way; end one, or wait for it"
            )
        recording = Recording(self._clock.now_ns())
        self._recordings.add(recording)
        self._switch(True)
        return recording

    def end(self, recording: Recording) -> None:
        """End one; again does nothing."""
        recording.end()
        self._recordings.discard(recording)
        if not self._recordings:
            self._switch(False)

    def end_all(self) -> None:
        """End all: the sidecar goes."""
        for recording in list(self._recordings):
            self.end(recording)

    def looked(self, page_tokens: int, digests: bytes, *, dropped: int = 0) -> None:
        """A look-up was made, of so many pages; costs nothing to speak of while nothing is recorded."""
        for recording in self._recordings:
            recording.add(
                self._clock.now_ns(), len(digests) // DIGEST_BYTES * page_tokens, digests, dropped=dropped
            )
