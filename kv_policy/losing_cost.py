"""What it costs to lose a page, for the eviction policy: a load where a slower tier holds it too, or computing it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kv_policy.transfer_estimates import TransferEstimate
from kv_types.limits import ARENA_PAGES_MAX
from kv_types.loading import ComputeCost

_UNKNOWN = 0.5
"""Loading against computing while either is unknown: what was stored there at all is thought to be worth loading."""
_LEAST = 0.125
"""However fast the tier is, it may be asked in vain: its memory is not ours."""
_STEP = 0.05
"""What one request changes of the depth at which computing takes twice as long."""
ATTENTION_PAGES_LEAST = 256
"""Steeper growth counts for no more: in replays of traces, with much steeper one some caches had fewer hits than with LRU."""


@dataclass(frozen=True, slots=True)
class LosingCosts:
    """Costs against computing the first page of a chain."""

    elsewhere: float = 1.0
    """Of a page that the slower tier holds, in (0, 1]; 1: it makes no difference."""
    attention_pages: int = 0
    """The depth at which a page costs twice as much; 0: all cost the same."""


class SlowerTier(Protocol):
    """What is known of the tier that lost pages are loaded from; a LoadOrRecompute is one."""

    @property
    def estimate(self) -> TransferEstimate:
        """How long it takes to bring bytes."""
        ...

    def compute_s(self, size: int) -> float:
        """What pages of so many bytes take to compute; 0: that is unknown."""
        ...


class LosingCost:
    """Follows what workers say of their speed, and what is known of the slower tier."""

    def __init__(self, tier: SlowerTier) -> None:
        self._tier = tier
        self._growth: float | None = None

    def computes(self, cost: ComputeCost) -> None:
        """Take in what a worker says of a chain's pages from the first one on."""
        growth = min(cost.growth_s / cost.first_s, 1 / ATTENTION_PAGES_LEAST)  # no outlier counts for more
        self._growth = growth if self._growth is None else self._growth + _STEP * (growth - self._growth)

    def costs(self, *, is_reachable: bool) -> LosingCosts:
        """Say what it costs now. Of a tier that is out of reach nothing is loaded, so that its pages cost what all do."""
        return LosingCosts(self._elsewhere() if is_reachable else 1.0, self._attention_pages())

    def _elsewhere(self) -> float:
        """By a load as large as those of late: latency is shared by all that one brings."""
        estimate = self._tier.estimate
        compute_s = self._tier.compute_s(estimate.largest)
        if not estimate.is_known or compute_s <= 0.0:
            return _UNKNOWN
        return min(1.0, max(_LEAST, estimate.seconds(estimate.largest) / compute_s))

    def _attention_pages(self) -> int:
        """Nothing is assumed while no worker has said anything, or where it says that all pages take the same time."""
        if self._growth is None or self._growth * ARENA_PAGES_MAX < 1.0:
            return 0
        return round(1.0 / self._growth)
