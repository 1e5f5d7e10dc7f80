"""RetryBudget: how often a server may be asked again, so that retries never add up to a storm of their own."""

from __future__ import annotations


class RetryBudget:
    """A bucket of tokens: `burst` of them at first and at most, `per_s` more each second. Without a clock of its own."""

    def __init__(self, *, burst: int, per_s: float) -> None:
        self._burst = float(burst)
        self._per_ns = per_s / 1e9
        self._tokens = float(burst)
        self._at_ns: int | None = None

    def take(self, now_ns: int) -> bool:
        """Take one token if there is one."""
        self._fill(now_ns)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait_ns(self, now_ns: int) -> int:
        """Time until there is one; 0: there is."""
        self._fill(now_ns)
        return 0 if self._tokens >= 1 else int((1 - self._tokens) / self._per_ns) + 1

    def _fill(self, now_ns: int) -> None:
        if self._at_ns is not None and now_ns > self._at_ns:
            self._tokens = min(self._burst, self._tokens + (now_ns - self._at_ns) * self._per_ns)
        self._at_ns = max(now_ns, self._at_ns or now_ns)
