"""By what the pages that go are chosen, as an operator names it."""

from __future__ import annotations

from enum import StrEnum


class EvictionChoice(StrEnum):
    """The eviction policies that a tier can be given."""

    LEARNED = "learned"
    LRU = "lru"
