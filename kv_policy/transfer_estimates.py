"""How long a tier takes to bring bytes, and a worker to compute tokens: estimates out of what was measured. Pure, no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from kv_policy.decayed_line import DecayedLine
from kv_types.errors import InvalidArgumentError

HALF_LIFE_S = 60.0
"""What was measured counts half as much after so long a time."""
_LATENCY_S = 0.001
_SECONDS_A_BYTE = 1e-9
_BYTES_A_S_MOST = 1e12
_ERROR_KEPT = 0.9
_SIZES_KEPT = 8
_SECONDS_LEAST, _SECONDS_MOST = 1e-12, 1e9
"""What no clock measures is refused: squares of it would leave the range of numbers."""
_SHAPING = 4.0
"""Sizes that lie so far apart tell latency and bandwidth apart."""


@dataclass(slots=True)
class _Error:
    """Decayed mean of how far estimates were off, as |ln(measured / expected)|."""

    mean: float = 0.0
    weight: float = 0.0

    def add(self, expected_s: float, measured_s: float) -> None:
        self.mean = self.mean * _ERROR_KEPT + abs(math.log(measured_s / expected_s))
        self.weight = self.weight * _ERROR_KEPT + 1.0

    @property
    def factor(self) -> float:
        return math.exp(self.mean / self.weight) if self.weight else 1.0


class TransferEstimate:
    """Latency and bandwidth of one tier: t = latency + bytes / bandwidth, as loads of all sizes measure it.

    Nothing is known at first; then a latency of a ms and 1 GB/s are its shape, not its value (see DecayedLine).
    """

    def __init__(self) -> None:
        self._line = DecayedLine(_LATENCY_S, _SECONDS_A_BYTE, half_life_s=HALF_LIFE_S)
        self._error = _Error()
        self._sizes: deque[int] = deque(maxlen=_SIZES_KEPT)
        self._samples = 0
        self._expected_s = self._measured_s = 0.0

    @property
    def latency_s(self) -> float:
        """What any transfer takes, however short."""
        return self._line.p

    @property
    def bytes_per_s(self) -> float:
        """How many bytes come in a second after that."""
        return 1.0 / max(self._line.q, 1.0 / _BYTES_A_S_MOST)

    @property
    def error_factor(self) -> float:
        """Typical factor between an estimate and what was measured then; 1: none, or nothing was measured yet."""
        return self._error.factor

    def sureness(self, now_s: float) -> float:
        """How many measurements what is known is worth now: 0 for nothing, some ten at most."""
        return self._line.weight(now_s)

    @property
    def is_known(self) -> bool:
        """Whether anything was measured. What is old still holds until it is measured again, by which it then counts less."""
        return self._samples > 0

    def seconds(self, size: int) -> float:
        """Expected time for so many bytes."""
        return self._line.of(1.0, float(size)) if size else 0.0

    def seconds_at_best(self, size: int) -> float:
        """The least time that what was measured allows: where all sizes were alike, it may all have been latency."""
        if not self._sizes or max(self._sizes) >= _SHAPING * min(self._sizes):
            return self.seconds(size)
        return self.seconds(min(size, max(self._sizes)))

    @property
    def largest(self) -> int:
        """The largest size that was measured of late; 0: none was."""
        return max(self._sizes, default=0)

    def observe(self, size: int, seconds: float, *, now_s: float) -> None:
        """Take in that `size` bytes (1 or more) took so long. Raises InvalidArgumentError for what is no measurement."""
        _check(size, seconds)
        if self._samples:
            expected_s = self.seconds(size)
            self._error.add(expected_s, seconds)
            self._expected_s += expected_s
            self._measured_s += seconds
        self._samples += 1
        if self._line.observe(1.0, float(size), seconds, now_s=now_s):
            self._sizes.clear()
        self._sizes.append(size)

    def observe_at_least(self, size: int, seconds: float, *, now_s: float) -> None:
        """Take in that `size` bytes have not come within so long. It says nothing where they were not expected sooner."""
        _check(size, seconds)
        if not self._samples or seconds > self.seconds(size):
            self.observe(size, seconds, now_s=now_s)

    def statistics(self, now_s: float) -> Mapping[str, float]:
        """What is known and how good it was, for metrics."""
        return {
            "latency_seconds": self.latency_s if self._samples else 0.0,
            "bytes_per_second": self.bytes_per_s if self._samples else 0.0,
            "sureness": self.sureness(now_s),
            "error_factor": self.error_factor,
            "samples": float(self._samples),
            "expected_seconds": self._expected_s,
            "measured_seconds": self._measured_s,
        }


class PrefillEstimate:
    """How fast one worker computes: t = tokens · (a + b · position), dense layers and attention (O(n·d²) and O(n²·d))."""

    def __init__(self) -> None:
        self._line = DecayedLine(1e-4, 1e-9, half_life_s=HALF_LIFE_S)
        self._samples = 0

    def observe(self, tokens: int, *, start: int, seconds: float, now_s: float) -> None:
        """Take in that so many tokens behind `start` others took so long. Raises InvalidArgumentError."""
        _check(tokens, seconds)
        if start < 0:
            raise InvalidArgumentError(f"so many tokens stand before: 0 or more; got {start}")
        self._samples += 1
        self._line.observe(float(tokens), tokens * (start + (tokens - 1) / 2), seconds, now_s=now_s)

    @property
    def is_known(self) -> bool:
        """Whether anything was measured. It does not age: a worker that computes is measured again all the time."""
        return self._samples > 0

    def seconds(self, tokens: int, *, start: int) -> float:
        """Expected time for so many tokens behind `start` others."""
        return self._line.of(float(tokens), tokens * (start + (tokens - 1) / 2))


def _check(amount: int, seconds: float) -> None:
    if amount < 1 or not _SECONDS_LEAST <= seconds <= _SECONDS_MOST:
        raise InvalidArgumentError(
            f"a measurement is of 1 or more bytes or tokens and takes {_SECONDS_LEAST:g} s to {_SECONDS_MOST:g} s; "
            f"got {amount} in {seconds} s"
        )
