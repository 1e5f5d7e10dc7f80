"""Admission: which pages of L2 are stored in L3, which are saved there before they go, which are kept in L1. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cachetools import LRUCache

from kv_types.ids import PageKey

_REUSE_PRIOR = 0.5
"""What is assumed of pages nothing is known of: half of them are asked for again."""
_PRIOR_PAGES = 32.0
_DECAY = 0.995
"""What one page leaves of the weight of those before: some two hundred count."""
_QUEUE_MOST = 0.5
"""From so full a queue on, pages that were never reused wait for the next time."""


class L3Admission(StrEnum):
    """When a page that a client has stored goes to L3."""

    ALWAYS = "always"
    SECOND_USE = "second_use"
    """When it is stored or asked for a second time: what is used once stays on its node."""
    COST = "cost"
    """When storing it takes less time than it is expected to save."""


class L1Promotion(StrEnum):
    """When a page that L2 gave is kept in L1, once that is full: it takes a copy, and the place of another page.

    `python -m benchmarks.l1_promotion` shows what either serves, and how many copies into L1 it takes.
    """

    ALWAYS = "always"
    """For a device with memory of its own, where a copy within costs far less than one over the bus that a later hit saves."""
    SECOND_USE = "second_use"
    """Those that L2 gave before: for a processor, whose copies into L1 and out of L2 cost alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWorth:
    """What is known of one page when it might be stored, and of the tier. Times in seconds; 0: unknown."""

    uses: int
    """How often it was stored or asked for, this time included."""
    compute_s: float
    load_s: float
    store_s: float
    queue_fill: float
    """How full the queue to L3 is, 0 to 1."""


class ReuseRate:
    """How many of the pages that L3 was given were asked of it again, decayed."""

    def __init__(self) -> None:
        self._stored = self._asked = 0.0

    def stored(self, pages: int) -> None:
        """So many were stored there."""
        kept = _DECAY**pages
        self._stored = self._stored * kept + pages
        self._asked *= kept

    def loaded(self, pages: int) -> None:
        """So many were loaded from there."""
        self._asked += pages

    @property
    def probability(self) -> float:
        """Loads a stored page, at most 1."""
        asked = self._asked + _REUSE_PRIOR * _PRIOR_PAGES
        return min(1.0, asked / (self._stored + _PRIOR_PAGES))


def goes_to_l3(policy: L3Admission, worth: PageWorth, *, reuse: float) -> bool:
    """Decide whether a page is stored in L3 now; `reuse` is the chance that somebody asks for it there.

    By cost: it saves reuse · (computing − loading), and costs the time that L3 takes for it, the more the more others wait for
    that: store · fill of the queue. A page that was used before is likelier to be so again. Where it is unknown what computing
    takes, any page is worth it unless the queue fills up.
    """
    if policy is L3Admission.ALWAYS:
        return True
    if policy is L3Admission.SECOND_USE:
        return worth.uses >= 2
    chance = reuse if worth.uses < 2 else max(reuse, 1.0 - 0.5**worth.uses)
    if not worth.compute_s:
        return worth.uses >= 2 or worth.queue_fill < _QUEUE_MOST
    return chance * (worth.compute_s - worth.load_s) > worth.store_s * worth.queue_fill


def is_saved_before_eviction(*, uses: int, is_in_l3: bool, queue_fill: float) -> bool:
    """Decide whether a page that is about to be evicted from L2 is written to L3 first: what was reused, while there is room."""
    return uses >= 2 and not is_in_l3 and queue_fill < _QUEUE_MOST


def is_promoted_to_l1(promotion: L1Promotion, *, uses: int, is_l1_full: bool) -> bool:
    """Decide whether a page that L2 gave is kept in L1: `uses` tells how often it gave it, this time included."""
    return promotion is L1Promotion.ALWAYS or not is_l1_full or uses >= 2


class Uses:
    """How often pages were stored or asked for, of so many keys; the ones that were not seen longest are forgotten."""

    def __init__(self, keys_kept: int) -> None:
        self._counts: LRUCache[PageKey, int] = LRUCache(keys_kept)

    def add(self, key: PageKey) -> int:
        """Count one use; returns how many there were, this one included."""
        count = min(self._counts.get(key, 0) + 1, 255)
        self._counts[key] = count
        return count

    def of(self, key: PageKey) -> int:
        """How many there were."""
        return self._counts.get(key, 0)
