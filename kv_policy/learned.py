"""The eviction policy that learns, for a cache in Python: the native core that the arena runs too, behind EvictionPolicy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kv_policy._native import PrefixPolicy
from kv_policy.eviction import TailQueue
from kv_policy.losing_cost import LosingCosts
from kv_types.errors import InvalidArgumentError
from kv_types.limits import ARENA_PAGES_MAX

_NEVER_NS = 2**63 - 1


class LearnedEviction:
    """Implements EvictionPolicy; not thread-safe. Pages are numbers below the capacity.

    Until enough look-ups were told, and whenever it would do worse, it goes by least recently used tails.
    """

    def __init__(
        self, capacity_pages: int, *, policy: Literal["learned", "lru"] = "learned", attention_pages: int = 0
    ) -> None:
        """`attention_pages`: the depth at which a page costs twice what the first one costs to compute; 0: all the same.

        Raises InvalidArgumentError.
        """
        if not 1 <= capacity_pages <= ARENA_PAGES_MAX:
            raise InvalidArgumentError(
                f"a cache has 1 to {ARENA_PAGES_MAX} pages to choose among; got {capacity_pages}"
            )
        if policy not in {"learned", "lru"}:
            raise InvalidArgumentError(f"the policy is learned or lru; got {policy!r}")
        if not 0 <= attention_pages <= ARENA_PAGES_MAX:
            raise InvalidArgumentError(
                f"attention_pages must be 0 to {ARENA_PAGES_MAX}; got {attention_pages}"
            )
        self._capacity = capacity_pages
        self._native = PrefixPolicy(pages=capacity_pages, policy=policy, attention_pages=attention_pages)
        self._now_ns = 0
        self._expires_ns: dict[int, int] = {}
        self._parents: dict[int, int | None] = {}
        """Of the pages that expire."""
        self._by_expiry = TailQueue(self._expiry_rank)

    def __len__(self) -> int:
        return len(self._native)

    def __contains__(self, page: int) -> bool:
        return 0 <= page < self._capacity and self._native.resident(page)

    def looked(
        self, deepest: int | None, *, resident_pages: int, missing_pages: int, now_ns: int, digest: int = 0
    ) -> None:
        """Learn of a request: what was there is used now; what was missing is what `insert` tells on top of it.

        `digest`: of the first missing page. Raises InvalidArgumentError.
        """
        if deepest is not None:
            self._resident(deepest)
        if resident_pages < 0 or missing_pages < 0 or (deepest is None) != (resident_pages == 0):
            raise InvalidArgumentError(
                f"{resident_pages} pages there and {missing_pages} missing is no look-up that ends at {deepest}"
            )
        self._native.looked(deepest, resident_pages, missing_pages, self._at(now_ns), digest)

    def insert(
        self, page: int, *, parent: int | None, now_ns: int, expires_ns: int | None = None, digest: int = 0
    ) -> None:
        """Add a page as a tail. Raises InvalidArgumentError when it is resident or its parent is not."""
        if not 0 <= page < self._capacity:
            raise InvalidArgumentError(f"pages are numbers below {self._capacity}; got {page}")
        if page in self:
            raise InvalidArgumentError(f"page {page} is resident already")
        if parent is not None:
            self._resident(parent)
            expires_ns = _sooner(expires_ns, self._expires_ns.get(parent))
        self._native.insert([page], parent, [digest], self._at(now_ns), expires_ns or 0)
        if expires_ns is not None:
            self._expires_ns[page], self._parents[page] = expires_ns, parent
            self._by_expiry.offer(page)

    def touch(self, page: int, now_ns: int) -> None:
        """Set the last access of a page and of what it stands on. Raises InvalidArgumentError."""
        self._resident(page)
        self._native.touched(page, self._at(now_ns))

    def hold(self, page: int) -> None:
        """Keep a page from being chosen until it is released as often. Raises InvalidArgumentError."""
        self._resident(page)
        self._native.hold(page)

    def release(self, page: int) -> None:
        """End one hold. Raises InvalidArgumentError when the page has none."""
        self._resident(page)
        if not self._native.is_held(page):
            raise InvalidArgumentError(f"page {page} is not held")
        self._native.release(page)
        self._by_expiry.offer(page)

    def remove(self, page: int) -> None:
        """Forget a tail, held or not. Raises InvalidArgumentError when it is not resident or has a child."""
        self._resident(page)
        if not self._native.is_leaf(page):
            raise InvalidArgumentError(f"page {page} carries resident pages; remove those first")
        self._native.remove(page)
        self._forget(page)

    def evict(self, count: int, *, is_elsewhere: Callable[[int], bool] | None = None) -> list[int]:
        """Up to `count` victims; fewer when everything left is held or carries what is held.

        `is_elsewhere` is asked whether a slower tier still holds a page that is to go because one did (`set_elsewhere`); where
        none does, it is chosen among the others anew. It must not raise.
        """
        victims = self._native.evict(max(0, count), self._now_ns, is_elsewhere=is_elsewhere)
        for page in victims:
            self._forget(page)
        return victims

    def expire(self, now_ns: int, *, count_max: int) -> list[int]:
        """Up to `count_max` pages whose expiry is at or before `now_ns`; held ones stay until released."""
        victims: list[int] = []
        while len(victims) < count_max and (first := self._by_expiry.first()) is not None:
            if first[0] > now_ns:
                break
            self._native.remove(first[1])
            self._forget(first[1])
            victims.append(first[1])
        return victims

    def expired(self, page: int, now_ns: int) -> bool:
        """Whether a page's time to live has passed, held or not. Raises InvalidArgumentError."""
        self._resident(page)
        return self._expires_ns.get(page, _NEVER_NS) <= now_ns

    def set_cost(self, page: int, cost: float) -> None:
        """What it costs to lose a page, against computing it anew (1). Raises InvalidArgumentError."""
        self._resident(page)
        try:
            self._native.set_cost(page, cost)
        except ValueError as error:
            raise InvalidArgumentError(f"{error}; got {cost}") from error

    def set_elsewhere(self, page: int, is_elsewhere: bool) -> None:
        """Whether a slower tier holds the page too, so that to lose it costs a load. Raises InvalidArgumentError."""
        self._resident(page)
        self._native.set_elsewhere(page, is_elsewhere)

    def set_losing_costs(self, costs: LosingCosts) -> None:
        """What it costs from now on to lose pages. Raises InvalidArgumentError."""
        try:
            self._native.set_losing_costs(elsewhere=costs.elsewhere, attention_pages=costs.attention_pages)
        except ValueError as error:
            raise InvalidArgumentError(f"{error}; got {costs.elsewhere}") from error

    def export_state(self) -> bytes:
        """What was learned, for another life of the cache; not what is resident."""
        return self._native.export_state()

    def import_state(self, state: bytes, now_ns: int) -> None:
        """Go on from what another life learned. Raises InvalidArgumentError, with nothing changed, when it is damaged."""
        try:
            self._native.import_state(state, self._at(now_ns))
        except ValueError as error:
            raise InvalidArgumentError(f"{error}; begin without it") from error

    def statistics(self) -> dict[str, int]:
        """Requests learned from, estimates made, pages evicted, pages that came back, those that a slower tier is said to hold
        too, and whether it chooses by all that.
        """
        return {**self._native.counts(), "is_learned": int(self._native.is_learned())}

    def _at(self, now_ns: int) -> int:
        self._now_ns = max(self._now_ns, now_ns)
        return now_ns

    def _resident(self, page: int) -> None:
        if page not in self:
            raise InvalidArgumentError(f"page {page} is not resident")

    def _forget(self, page: int) -> None:
        if self._expires_ns.pop(page, None) is None:
            return
        self._by_expiry.withdraw(page)
        parent = self._parents.pop(page)
        if parent is not None:
            self._by_expiry.offer(parent)

    def _expiry_rank(self, page: int) -> int | None:
        expires_ns = self._expires_ns.get(page)
        if expires_ns is None or not self._native.is_leaf(page) or self._native.is_held(page):
            return None
        return expires_ns


def _sooner(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
