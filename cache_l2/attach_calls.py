"""Calls under way on one attach connection: who receives for all, and what becomes of replies that nobody waits for.

Pure: no socket, clock or lock. Each method returns the calls whose threads are to be woken. A caller that waits either
receives, for itself and for all others, or sleeps until its reply was handed to it or it is its turn to receive. So as
long as anybody waits, somebody receives, or was woken to.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from cache_l2.attach_messages import ReservedPages, SidecarMessage
from kv_types.limits import BATCH_PAGES_MAX, REQUESTS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.outcomes import PutStatus


class Call:
    """One request and, once it has come, its reply."""

    __slots__ = ("is_admitted", "is_asleep", "is_sent", "is_taken", "reply", "request", "wake")

    def __init__(self, request: int) -> None:
        self.request = request
        self.reply: SidecarMessage | None = None
        self.is_admitted = False
        self.is_sent = False
        self.is_taken = False
        """Whether its caller has got the reply."""
        self.is_asleep = False
        self.wake: threading.Lock | None = None
        """Held while its thread sleeps on it; made when it first does."""


class CallTable:
    """All calls of one connection. `late` are requests whose callers have left, and whose replies are still to come."""

    def __init__(
        self,
        *,
        calls_max: int = REQUESTS_IN_FLIGHT_PER_CLIENT_MAX,
        late_max: int = REQUESTS_IN_FLIGHT_PER_CLIENT_MAX,
    ) -> None:
        self._calls_max = calls_max
        self._late_max = late_max
        self._by_request: dict[int, Call] = {}
        self._queued: deque[Call] = deque()
        self.receiver: Call | None = None
        """Who receives for all; set and unset by the methods here alone."""
        self._unwanted: list[int] = []
        self.late: set[int] = set()
        self.late_replies = 0

    @property
    def under_way(self) -> int:
        """Calls whose replies are wanted."""
        return len(self._by_request) + len(self._queued)

    @property
    def owes_too_much(self) -> bool:
        """Whether so many late replies are due that no request may be added."""
        return len(self.late) >= self._late_max

    @property
    def is_full(self) -> bool:
        """Whether a call would have to wait for another to end before it may be sent."""
        return bool(self._queued) or len(self._by_request) >= self._calls_max

    @property
    def expects_leftovers(self) -> bool:
        """Whether replies may have come that nobody waits for any more, or reservations of such are to be given back."""
        return bool(self.late or self._unwanted)

    def begin(self, call: Call) -> None:
        """Take a call in; one that is not admitted yet may not be sent, and sleeps."""
        if self.is_full:
            self._queued.append(call)
        else:
            self._admit(call)

    def lead(self, call: Call) -> bool:
        """Have `call` receive if nobody does; returns whether it is to."""
        if self.receiver is None and call.is_admitted:
            self.receiver = call
        return self.receiver is call

    def step_down(self, call: Call) -> list[Call]:
        """`call` does not receive any more."""
        if self.receiver is call:
            self.receiver = None
        return self._next_receiver()

    def arrived(self, request: int, reply: SidecarMessage) -> Sequence[Call]:
        """Hand a reply to its call; one that nobody waits for is dropped, and what it reserved is unwanted."""
        call = self._by_request.pop(request, None)
        if call is None:
            self._drop(request, reply)
            return ()
        call.reply = reply
        if self._queued or call.is_asleep:
            return [*self._roused(call), *self._admit_queued()]
        return ()

    def leave(self, call: Call) -> Sequence[Call]:
        """The caller goes: its reply, if it did not take it, is late."""
        if not call.is_admitted and call in self._queued:
            self._queued.remove(call)
        self._by_request.pop(call.request, None)
        if call.is_sent and call.reply is None:
            self.late.add(call.request)
        elif call.reply is not None and not call.is_taken:
            self._drop(call.request, call.reply)
        if self._queued or self._by_request:
            return [*self._admit_queued(), *self.step_down(call)]
        if self.receiver is call:
            self.receiver = None
        return ()

    def everybody(self) -> list[Call]:
        """The connection is over: all that sleep are to look for themselves."""
        return [one for call in (*self._by_request.values(), *self._queued) for one in self._roused(call)]

    def take_unwanted(self) -> tuple[int, ...]:
        """Reservations of late replies to give back now, one message's worth."""
        batch = tuple(self._unwanted[:BATCH_PAGES_MAX])
        del self._unwanted[: len(batch)]
        return batch

    def put_back_unwanted(self, reservations: tuple[int, ...]) -> None:
        """They could not be given back now."""
        self._unwanted += reservations

    def _admit(self, call: Call) -> None:
        call.is_admitted = True
        self._by_request[call.request] = call

    def _admit_queued(self) -> list[Call]:
        admitted = []
        while self._queued and len(self._by_request) < self._calls_max:
            call = self._queued.popleft()
            self._admit(call)
            admitted += self._roused(call)
        return admitted

    def _next_receiver(self) -> list[Call]:
        """Somebody who sleeps, where nobody receives."""
        if self.receiver is not None:
            return []
        for call in self._by_request.values():
            if call.is_asleep:
                return self._roused(call)
        return []

    @staticmethod
    def _roused(call: Call) -> list[Call]:
        was_asleep, call.is_asleep = call.is_asleep, False
        return [call] if was_asleep else []

    def _drop(self, request: int, reply: SidecarMessage) -> None:
        self.late.discard(request)
        self.late_replies += 1
        if isinstance(reply, ReservedPages):
            self._unwanted += [
                reservation
                for status, reservation in zip(reply.statuses, reply.reservations, strict=True)
                if status == PutStatus.STORED
            ]
