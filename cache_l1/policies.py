"""Which eviction policies an L1 can be made with, by name: the one place where they are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kv_policy.eviction import EvictionPolicy, TailFirstLru
from kv_policy.learned import LearnedEviction
from kv_policy.losing_cost import LosingCosts
from kv_types.errors import InvalidArgumentError


class L1Policy(EvictionPolicy, Protocol):
    """An EvictionPolicy that can be asked about single pages, which L1 serves only before their time is over."""

    def __contains__(self, page: int) -> bool: ...

    def expired(self, page: int, now_ns: int) -> bool:
        """Whether a page's time to live has passed, held or not. Raises InvalidArgumentError."""
        ...

    def set_elsewhere(self, page: int, is_elsewhere: bool) -> None:
        """Whether L2 holds the page too, so that to lose it costs a load. Raises InvalidArgumentError."""
        ...

    def set_losing_costs(self, costs: LosingCosts) -> None:
        """What it costs from now on to lose pages. Raises InvalidArgumentError."""
        ...

    def evict(self, count: int, *, is_elsewhere: Callable[[int], bool] | None = None) -> list[int]:
        """As EvictionPolicy has it; `is_elsewhere` says whether L2 still holds a page, and doesn't raise."""
        ...


class RecencyAlone(TailFirstLru):
    """Least recently used tails first, whatever it costs to lose them."""

    def set_elsewhere(self, page: int, is_elsewhere: bool) -> None:
        """Makes no difference."""

    def set_losing_costs(self, costs: LosingCosts) -> None:
        """Makes no difference."""

    def evict(self, count: int, *, is_elsewhere: Callable[[int], bool] | None = None) -> list[int]:
        """See EvictionPolicy; nobody is asked."""
        return super().evict(count)


POLICIES: Mapping[str, Callable[[int], L1Policy]] = {
    "learned": LearnedEviction,
    "lru": lambda capacity_pages: RecencyAlone(),
}
"""By name, from the number of pages. `learned`: by how likely pages are to be used again, learned from look-ups, and by
what it costs to lose them, as L2's arena; `lru`: least recently used tails first.
"""

POLICY_DEFAULT = "learned"


def check_policy(name: str) -> None:
    """Raises InvalidArgumentError when no policy is called so."""
    if name not in POLICIES:
        raise InvalidArgumentError(f"no eviction policy is called {name!r}; there are {', '.join(POLICIES)}")


def policy_of(name: str, capacity_pages: int) -> L1Policy:
    """A policy of that name. Raises InvalidArgumentError."""
    check_policy(name)
    return POLICIES[name](capacity_pages)
