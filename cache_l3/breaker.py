"""Breaker: whether a server is asked at all. While it does not answer, nobody waits for it but one small probe at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kv_types.limits import (
    L3_BREAKER_COOL_S_MAX,
    L3_BREAKER_COOL_S_MIN,
    L3_BREAKER_FAILURES,
    L3_BREAKER_SILENT_S,
)


class BreakerState(StrEnum):
    """What is let through."""

    CLOSED = "closed"
    """Everything."""
    OPEN = "open"
    """Nothing, until it has cooled down."""
    HALF_OPEN = "half_open"
    """One probe, whose end decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerTerms:
    """When it opens, and for how long. It opens after `failures` in a row, over `silent_ns` in which nothing succeeded.

    It stays open for `cool_ns_min`, twice as long after each probe that failed, `cool_ns_max` at most.
    """

    failures: int = L3_BREAKER_FAILURES
    silent_ns: int = int(L3_BREAKER_SILENT_S * 1e9)
    cool_ns_min: int = int(L3_BREAKER_COOL_S_MIN * 1e9)
    cool_ns_max: int = int(L3_BREAKER_COOL_S_MAX * 1e9)


class Breaker:
    """A state machine without a clock of its own; whoever has one tells it the time."""

    def __init__(self, terms: BreakerTerms | None = None) -> None:
        self._terms = terms or BreakerTerms()
        self.state = BreakerState.CLOSED
        self.opened = 0
        """How often it has opened."""
        self._failures = 0
        self._silent_since_ns = 0
        self._cool_ns = self._terms.cool_ns_min
        self._due_ns = 0

    @property
    def lets_through(self) -> bool:
        """Whether a request may be sent."""
        return self.state is BreakerState.CLOSED

    @property
    def probe_due_ns(self) -> int | None:
        """When the next probe is due; None: none is needed, or one is under way."""
        return self._due_ns if self.state is BreakerState.OPEN else None

    def succeeded(self) -> None:
        """A request got its answer, whatever it said."""
        if self.state is BreakerState.CLOSED:
            self._failures = 0

    def failed(self, *, began_ns: int, now_ns: int) -> bool:
        """A request got none. Returns True where that opens it."""
        if self.state is not BreakerState.CLOSED:
            return False
        if self._failures == 0 or began_ns < self._silent_since_ns:
            self._silent_since_ns = began_ns
        self._failures += 1
        is_enough = self._failures >= self._terms.failures
        if not is_enough or now_ns - self._silent_since_ns < self._terms.silent_ns:
            return False
        self._open(now_ns)
        return True

    def trip(self, now_ns: int) -> bool:
        """It is known to be down. Returns True where that opens it."""
        was_closed = self.state is BreakerState.CLOSED
        if was_closed:
            self._open(now_ns)
        return was_closed

    def begin_probe(self, now_ns: int) -> bool:
        """Ask for the right to probe; whoever gets it says how it ended."""
        if self.state is not BreakerState.OPEN or now_ns < self._due_ns:
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def probed(self, *, answered: bool, now_ns: int) -> None:
        """The probe's end. Nothing where none was under way."""
        if self.state is not BreakerState.HALF_OPEN:
            return
        if answered:
            self.state = BreakerState.CLOSED
            self._failures = 0
            self._cool_ns = self._terms.cool_ns_min
        else:
            self._cool_ns = min(2 * self._cool_ns, self._terms.cool_ns_max)
            self.state = BreakerState.OPEN
            self._due_ns = now_ns + self._cool_ns

    def _open(self, now_ns: int) -> None:
        self.state = BreakerState.OPEN
        self.opened += 1
        self._due_ns = now_ns + self._cool_ns
