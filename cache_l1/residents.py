"""What an L1 knows of its pages besides keys and uses: which pages of L2 they are, and how they lie. Integers only."""

from __future__ import annotations

from collections.abc import Callable

from kv_types.ids import LifeId
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, Instances

InL2 = Callable[[int, LifeId], bool]
"""Whether L2 has the page that is this instance still, in this life of the sidecar. It is asked under L1's lock: quick, it calls
nothing of L1 and raises nothing.
"""


class Residents:
    """By page number. Not thread-safe. Numbers of L2's pages mean something in one life of the sidecar; a page of another
    life is dropped before one of this is added.
    """

    def __init__(self, capacity: int, in_l2: InL2 | None = None) -> None:
        """Without `in_l2` nothing is known of L2."""
        self._ask = in_l2
        self._instances = [UNKNOWN_INSTANCE] * capacity
        self._in_l2 = [UNKNOWN_INSTANCE] * capacity
        self._is_scattered = bytearray(capacity)

    def add(self, page: int, parent: int | None, told: Instances, index: int, *, life: LifeId | None) -> None:
        """A page is published on top of `parent`; `told` says of its chain, where it is page `index`, what L2 has of it."""
        is_told = life is not None and told.life == life and told.at(index) != NO_INSTANCE
        self._in_l2[page] = told.at(index) if is_told else UNKNOWN_INSTANCE
        self._instances[page] = self._rests_on(parent, told, index) if is_told else UNKNOWN_INSTANCE
        self._is_scattered[page] = parent is not None and page != parent + 1

    def forget(self, page: int) -> None:
        """It is served no more."""
        self._instances[page] = self._in_l2[page] = UNKNOWN_INSTANCE
        self._is_scattered[page] = 0

    def instance(self, page: int) -> int:
        """The page of L2 that stands for this one and for all below it; unknown where none does."""
        return self._instances[page]

    def came_with_l2(self, page: int) -> bool:
        """Whether L2 had the same bytes when this page came, whatever lies below the two, and can be asked for them again."""
        return self._ask is not None and self._in_l2[page] != UNKNOWN_INSTANCE

    def is_in_l2(self, page: int, life: LifeId | None) -> bool:
        """Look whether it has them still."""
        if self._ask is None or life is None or self._in_l2[page] == UNKNOWN_INSTANCE:
            return False
        return self._ask(self._in_l2[page], life)

    @property
    def scattered(self) -> int:
        """How many don't lie behind their parent."""
        return self._is_scattered.count(1)

    def _rests_on(self, parent: int | None, told: Instances, index: int) -> int:
        """What is told of a page, if the page below it here is also the one that the caller has.

        If not, whoever reuses both rests on two histories, and only one of them is behind this page in L2.
        """
        if parent is None:
            return told.at(index)
        below = self._instances[parent]
        is_one_history = below != UNKNOWN_INSTANCE and below == told.at(index - 1)
        return told.at(index) if is_one_history else UNKNOWN_INSTANCE
