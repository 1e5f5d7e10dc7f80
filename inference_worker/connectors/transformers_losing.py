"""What it costs L1 to lose a page that L2 has too: bringing it from there against computing it, as both are measured here."""

from __future__ import annotations

import threading
import time

from inference_worker.prefill_speed import PrefillSpeed
from kv_policy.losing_cost import LosingCost, LosingCosts
from kv_policy.transfer_estimates import TransferEstimate

_SECONDS_LEAST = 1e-9


class LosingFromL1:
    """Of pages of one namespace. Thread-safe."""

    def __init__(self, *, page_bytes: int, page_tokens: int) -> None:
        self._page_bytes, self._page_tokens = page_bytes, page_tokens
        self._lock = threading.Lock()
        self._speed = PrefillSpeed()
        self._losing = LosingCost(self)
        self.estimate = TransferEstimate()
        """Of pages that L2 had when they were asked for; see kv_policy.losing_cost.SlowerTier."""

    def compute_s(self, size: int) -> float:
        """See SlowerTier: as if all stood at the beginning of a prompt; how that grows with depth counts apart."""
        cost = self._speed.cost(self._page_tokens, 0)
        return 0.0 if cost is None else cost.first_s * size / self._page_bytes

    def fetched(self, pages: int, seconds: float) -> None:
        """L2 has given so many pages within so long."""
        if pages and seconds >= _SECONDS_LEAST:
            with self._lock:
                self.estimate.observe(pages * self._page_bytes, seconds, now_s=time.monotonic())

    def computed(self, tokens: int, *, start: int, seconds: float) -> None:
        """So many tokens behind `start` others were computed in so long."""
        with self._lock:
            self._speed.observe(tokens, start=start, seconds=seconds)
            cost = self._speed.cost(self._page_tokens, 0)
            if cost is not None:
                self._losing.computes(cost)

    def costs(self) -> LosingCosts:
        """What it costs by what is known."""
        with self._lock:
            return self._losing.costs(is_reachable=True)
