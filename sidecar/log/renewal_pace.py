"""How fast renewals may follow each other: a few at once, then at a steady rate, so that a storm of records is batched."""

from __future__ import annotations

from kv_types.limits import RENEWALS_BURST_MAX, RENEWALS_PER_S_MAX

_SECOND_NS = 1_000_000_000


class RenewalPace:
    """Pure: told when renewals are sent, it says when the next may be.

    One record, its news and its acknowledgement pass without delay. In a storm each renewal brings the records of some
    milliseconds instead of one or two, and its costs, here and in the log, are bounded by the rate.
    """

    def __init__(
        self, *, burst: int = RENEWALS_BURST_MAX, interval_ns: int = int(_SECOND_NS / RENEWALS_PER_S_MAX)
    ) -> None:
        self._interval_ns = interval_ns
        self._tolerance_ns = (burst - 1) * interval_ns
        self._due_ns = 0

    def earliest_ns(self, now_ns: int) -> int:
        """When the next renewal may be sent, `now_ns` or later."""
        return max(now_ns, self._due_ns - self._tolerance_ns)

    def sent(self, now_ns: int) -> None:
        """A renewal is sent."""
        self._due_ns = max(now_ns, self._due_ns) + self._interval_ns
