"""What a worker says of its own speed when it asks for pages, and what was decided between loading and computing them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kv_types.errors import InvalidArgumentError
from kv_types.limits import COMPUTE_PAGE_S_MAX


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """Seconds that a worker needs to compute pages: `first_s` for the first one asked for, `growth_s` more for each after it.

    That is what attention costs: a token at position p takes time a + b·p (dense layers, and all positions before it).
    Raises InvalidArgumentError for what is no time, or more than COMPUTE_PAGE_S_MAX.
    """

    first_s: float
    growth_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.first_s <= COMPUTE_PAGE_S_MAX and 0.0 <= self.growth_s <= COMPUTE_PAGE_S_MAX):
            raise InvalidArgumentError(
                f"a page takes more than 0 s and at most {COMPUTE_PAGE_S_MAX:g} s to compute, and later ones no less; "
                f"got {self.first_s} s and {self.growth_s} s more each"
            )

    def after(self, pages: int) -> ComputeCost:
        """What pages take that follow the first so many; never more than may be said of one."""
        return ComputeCost(min(self.first_s + pages * self.growth_s, COMPUTE_PAGE_S_MAX), self.growth_s)

    def seconds(self, pages: int, *, start: int = 0) -> float:
        """Time for `pages` pages from the one at index `start` on."""
        return pages * (self.first_s + self.growth_s * (start + (pages - 1) / 2)) if pages else 0.0


class LoadChoice(IntEnum):
    """What was chosen for pages that a slower tier has. The numbers are part of the attach protocol and of the gRPC schema."""

    UNPRICED = 0
    """Loaded, since it was not said how fast the worker computes, or loading is always to be done."""
    LOAD = 1
    """Loaded, since that takes less time."""
    COMPUTE = 2
    """Left to be computed, since that takes less time."""
    TRIAL = 3
    """A few were loaded to learn how fast the tier is now; the rest was left to be computed."""
    STOPPED = 4
    """Loading was begun, and given up when it went slower than computing would."""


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """How far a load went, and why. Times are estimates of the moment of the decision."""

    choice: LoadChoice
    pages: int
    """Pages that the tier has, or, where it was not asked because that pays in no case, was to be asked for."""
    pages_chosen: int
    """The first so many of them were to be loaded."""
    load_s: float
    """Estimated time to load all `pages`; 0: nothing is known of the tier yet."""
    compute_s: float
    """Time to compute all of them; 0: unknown."""
