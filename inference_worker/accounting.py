"""Pages of the look-ups that this process completed itself, per namespace: each look-up counted once (invariant I7).

Look-ups that reach the arena are counted in the client's row of shared memory by the native reader; those that end
before it (no sidecar, no identity, no registration in time) and those over gRPC are counted here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_types.outcomes import MissReason, Tier


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages asked for and where they came from; `requested` = `l1` + `l2` + `l3` + the sum of `missed`."""

    look_ups: int = 0
    requested: int = 0
    l1: int = 0
    l2: int = 0
    l3: int = 0
    missed: Mapping[MissReason, int] = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: PageCounts) -> PageCounts:
        missed = dict(self.missed)
        for reason, pages in other.missed.items():
            missed[reason] = missed.get(reason, 0) + pages
        return PageCounts(
            look_ups=self.look_ups + other.look_ups,
            requested=self.requested + other.requested,
            l1=self.l1 + other.l1,
            l2=self.l2 + other.l2,
            l3=self.l3 + other.l3,
            missed=missed,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
        )


def of_row(counts: Mapping[str, int]) -> PageCounts:
    """Read the counts of one namespace in a client's row, as the native core names them."""
    missed: dict[MissReason, int] = {
        reason: pages for reason in MissReason if (pages := counts.get(f"miss_{reason.value}", 0))
    }
    return PageCounts(
        look_ups=counts["look_ups"],
        requested=counts["requested"],
        l1=counts["l1"],
        l2=counts["l2"],
        l3=counts["l3"],
        missed=missed,
        bytes_read=counts["bytes_read"],
        bytes_written=counts["bytes_written"],
    )


_TIERS = len(Tier)
_REASONS = len(MissReason)


class OwnCounts:
    """Counts of one namespace, added to by any thread. Cheap: an outage makes every call end here."""

    __slots__ = ("_bytes_read", "_bytes_written", "_lock", "_look_ups", "_missed", "_requested", "_served")

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start anew in a forked child: the parent keeps what it has counted."""
        self._lock = threading.Lock()
        self._look_ups = self._requested = self._bytes_read = self._bytes_written = 0
        self._served = [0] * (_TIERS + 1)
        self._missed = [0] * _REASONS

    def look_up(
        self, *, requested: int, l1: int = 0, served: int = 0, of_l3: int = 0,
        reason: MissReason = MissReason.NONE, bytes_read: int = 0,
    ) -> None:  # fmt: skip
        """Count one completed look-up: `l1` pages the caller had, `served` others, `of_l3` of them from L3; the rest missed.

        A rest without a reason would break the sum, so it is counted as absent.
        """
        rest = requested - l1 - served
        with self._lock:
            self._look_ups += 1
            self._requested += requested
            self._served[Tier.L1] += l1
            self._served[Tier.L2] += served - of_l3
            self._served[Tier.L3] += of_l3
            self._missed[reason or MissReason.ABSENT] += rest
            self._bytes_read += bytes_read

    def written(self, payload_bytes: int) -> None:
        """Count page bytes that were sent."""
        with self._lock:
            self._bytes_written += payload_bytes

    def add(self, counts: PageCounts) -> None:
        """Add counts that were kept elsewhere, for example in a row whose sidecar has ended."""
        with self._lock:
            self._look_ups += counts.look_ups
            self._requested += counts.requested
            self._served[Tier.L1] += counts.l1
            self._served[Tier.L2] += counts.l2
            self._served[Tier.L3] += counts.l3
            for reason, pages in counts.missed.items():
                self._missed[reason] += pages
            self._bytes_read += counts.bytes_read
            self._bytes_written += counts.bytes_written

    def snapshot(self) -> PageCounts:
        """All that was counted up to now, of one moment."""
        with self._lock:
            return PageCounts(
                look_ups=self._look_ups,
                requested=self._requested,
                l1=self._served[Tier.L1],
                l2=self._served[Tier.L2],
                l3=self._served[Tier.L3],
                missed={MissReason(reason): pages for reason, pages in enumerate(self._missed) if pages},
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
            )
