"""How fast this worker copies pages out of the arena, measured at some of its copies."""

from __future__ import annotations

import threading
import time

from kv_policy.transfer_estimates import TransferEstimate

_FIRST, _EVERY = 16, 128
"""The first copies are measured, then one in so many: an estimate costs some µs, and a copy of a page not many more."""


class CopySpeed:
    """Thread-safe; looks at a clock for the first _FIRST calls, and for one in _EVERY then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._estimate = TransferEstimate()
        self._calls = 0
        self.measured = 0
        """Copies that were measured."""

    def begin_ns(self) -> int:
        """Return when a copy begins that is to be measured, 0 for one that is not."""
        self._calls += 1
        return time.perf_counter_ns() if self._calls % _EVERY == 0 or self.measured < _FIRST else 0

    def ended(self, began_ns: int, size: int) -> None:
        """Take in that a copy of `size` bytes, which began then, is over; one that found nothing tells nothing."""
        took_ns = time.perf_counter_ns() - began_ns if began_ns and size else 0
        if took_ns > 0:
            self.observe(size, took_ns / 1e9)

    def observe(self, size: int, seconds: float) -> None:
        """Take in that so many bytes took so long. Raises InvalidArgumentError for what is no measurement."""
        with self._lock:
            self._estimate.observe(size, seconds, now_s=time.monotonic())
            self.measured += 1

    def told(self) -> tuple[float, float]:
        """Latency in seconds and bytes a second, as of late; zeros while nothing was measured."""
        with self._lock:
            if not self._estimate.is_known:
                return 0.0, 0.0
            return self._estimate.latency_s, self._estimate.bytes_per_s
