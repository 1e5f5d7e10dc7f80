"""Timing: the settings by which time decides anything, and the waiting time that follows from them (rule R11)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kv_types.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a fleet assumes of its clocks.

    `lease_ns` (L): how long a confirmed renewal lets a sidecar vouch for its pages. `pause_ns` (P): the longest that a
    node may stand still, or be suspended, without its boot clock noticing. `drift` (ρ): by which part two boot clocks may
    run apart. Raises InvalidArgumentError.
    """

    lease_ns: int
    pause_ns: int
    drift: float

    def __post_init__(self) -> None:
        if self.lease_ns <= 0 or self.pause_ns < 0:
            raise InvalidArgumentError(
                f"a lease lasts longer than 0 ns and a pause is never negative; got {self.lease_ns} and {self.pause_ns}"
            )
        if not 0.0 <= self.drift < 1.0:
            raise InvalidArgumentError(
                f"clocks run apart by a part of 1, from 0 to below 1; got {self.drift}"
            )

    def window_ns(self, *, lease_ns: int | None = None) -> int:
        """(L + P)(1 + ρ): how long who hears nothing of a member waits before its freshness is over for sure.

        `lease_ns` is the member's own lease, where it is known and longer than the evaluator's.
        """
        lease_ns = max(self.lease_ns, lease_ns or 0)
        return math.ceil((lease_ns + self.pause_ns) * (1.0 + self.drift))
