"""How fast this worker computes prompts, as its connector measures it, and what that makes of the pages that it asks for."""

from __future__ import annotations

import threading
import time

from kv_policy.transfer_estimates import PrefillEstimate
from kv_types.limits import COMPUTE_PAGE_S_MAX
from kv_types.loading import ComputeCost


class PrefillSpeed:
    """Thread-safe. Unknown until something was measured, unless a speed is given, which then holds."""

    def __init__(self, tokens_per_s: float = 0.0) -> None:
        """`tokens_per_s`: of the worker, told by its operator; 0: it is measured."""
        self._told = tokens_per_s
        self._lock = threading.Lock()
        self._estimate = PrefillEstimate()

    def observe(self, tokens: int, *, start: int, seconds: float) -> None:
        """Take in that the worker computed so many tokens behind `start` others in so long.

        Raises InvalidArgumentError for what is no measurement.
        """
        with self._lock:
            self._estimate.observe(tokens, start=start, seconds=seconds, now_s=time.monotonic())

    def cost(self, page_tokens: int, first: int) -> ComputeCost | None:
        """What pages of a chain from index `first` on take to compute; None: that is unknown."""
        if self._told > 0.0:
            return _cost(page_tokens / self._told, 0.0)
        with self._lock:
            if not self._estimate.is_known:
                return None
            one = self._estimate.seconds(page_tokens, start=first * page_tokens)
            two = self._estimate.seconds(page_tokens, start=(first + 1) * page_tokens)
        return _cost(one, max(0.0, two - one))

    def tokens_per_s(self) -> float:
        """Speed at the beginning of a prompt of a thousand tokens; 0: unknown."""
        if self._told > 0.0:
            return self._told
        with self._lock:
            seconds = self._estimate.seconds(1000, start=0) if self._estimate.is_known else 0.0
        return 1000 / seconds if seconds > 0.0 else 0.0


def _cost(first_s: float, growth_s: float) -> ComputeCost | None:
    """Within what may be told: a worker slower than that gains by any load. None where it is so fast that no time is left."""
    if not first_s > 0.0:
        return None
    return ComputeCost(min(first_s, COMPUTE_PAGE_S_MAX), min(growth_s, COMPUTE_PAGE_S_MAX))
