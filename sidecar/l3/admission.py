"""Admission: which pages of this node go to L3, and when, by what is counted and measured here. On the event loop alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachetools import LRUCache

from kv_policy.admission import L3Admission, PageWorth, ReuseRate, Uses, goes_to_l3, is_saved_before_eviction
from kv_policy.load_or_recompute import LoadOrRecompute
from kv_policy.transfer_estimates import TransferEstimate
from kv_types.ids import PageKey
from kv_types.limits import L3_PLACED_REMEMBERED_MAX, L3_REFUSED_AGAIN_S_MIN, L3_USES_COUNTED_MAX


@dataclass(slots=True)
class _Fate:
    """What became of one instance on its way to L3."""

    is_placed: bool = False
    """It is there, or on its way."""
    was_too_late: bool = False
    """It has waited too long for L3 once."""
    refused_until_s: float = 0.0
    """L3 did not take it, and is not sent it again before."""


class Admission:
    """What write-behind asks of each page. `queue_fill` tells how full its queue is, 0 to 1."""

    def __init__(
        self, policy: L3Admission, tier: LoadOrRecompute, queue_fill: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.policy = policy
        self._tier = tier
        self.queue_fill = queue_fill
        self._uses = Uses(L3_USES_COUNTED_MAX)
        self._fates: LRUCache[int, _Fate] = LRUCache(L3_PLACED_REMEMBERED_MAX)
        """By instance; what is not there was never sent, or long ago."""
        self._reuse = ReuseRate()
        self._stores = TransferEstimate()

    def admits(self, instance: int, key: PageKey, size: int) -> bool:
        """Whether a page that a client has just stored goes to L3 now."""
        if self.policy is L3Admission.ALWAYS:
            return self._placed_now(instance)
        uses = self._uses.add(key)
        return self._goes(uses, size) and self._placed_now(instance)

    def is_placed(self, instance: int) -> bool:
        """Whether it went to L3, or is on its way there."""
        fate = self._fates.get(instance)
        return fate is not None and fate.is_placed

    def saves(self, instance: int, key: PageKey, size: int, *, now_s: float) -> bool:
        """Whether a page that was asked for since it was stored goes to L3 now, before it may be evicted."""
        fate = self._fates.get(instance)
        if fate is not None and fate.refused_until_s > now_s:
            return False
        uses = max(2, self._uses.of(key) + 1)
        fill = self.queue_fill()
        if not is_saved_before_eviction(uses=uses, is_in_l3=self.is_placed(instance), queue_fill=fill):
            return False
        return self._goes(uses, size) and self._placed_now(instance)

    def was_lost(self, instance: int) -> None:
        """It did not get there, and may be tried again."""
        fate = self._fates.get(instance)
        if fate is not None:
            fate.is_placed = False

    def was_too_late(self, instance: int) -> None:
        """It waited too long for L3. It is tried once more, if it is asked for: where L3 is too slow, not for ever."""
        fate = self._fate(instance)
        if not fate.was_too_late:
            fate.was_too_late, fate.is_placed = True, False

    def was_refused(self, instance: int, *, now_s: float) -> None:
        """L3 did not take it: it may be tried again in a while, and not with every look for what was asked for."""
        fate = self._fate(instance)
        fate.is_placed, fate.refused_until_s = False, now_s + L3_REFUSED_AGAIN_S_MIN

    def was_stored(self, size: int, seconds: float, *, beside: int, now_s: float) -> None:
        """One page went to L3 in so long, while `beside` others did."""
        self._reuse.stored(1)
        if seconds > 0.0:
            self._stores.observe(size, seconds / (beside + 1), now_s=now_s)

    def were_loaded(self, pages: int) -> None:
        """So many pages came from L3."""
        self._reuse.loaded(pages)

    def _goes(self, uses: int, size: int) -> bool:
        worth = PageWorth(
            uses=uses, compute_s=self._tier.compute_s(size),
            load_s=self._tier.estimate.seconds(size), store_s=self._stores.seconds(size), queue_fill=self.queue_fill(),
        )  # fmt: skip
        return goes_to_l3(self.policy, worth, reuse=self._reuse.probability)

    def _placed_now(self, instance: int) -> bool:
        self._fate(instance).is_placed = True
        return True

    def _fate(self, instance: int) -> _Fate:
        fate = self._fates.get(instance)
        if fate is None:
            fate = self._fates[instance] = _Fate()
        return fate
