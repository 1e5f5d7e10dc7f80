"""Follower: the state machine of one member that follows the log and vouches for its pages (rules R8, R9, R12, R14).

Pure: no clock, no I/O, no lock. A shell turns what happens into events and carries out the actions, in their order. It
owns what is followed with: the validity state, and the member that it renews for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from invalidation.log import Boot, Renewal, RenewalStatus
from invalidation.records import LogRecord
from kv_types.ids import LogIncarnation, Stamp
from kv_types.limits import LOG_BACKOFF_S_MAX, LOG_BACKOFF_S_MIN, LOG_RENEWAL_GAP_S

_GAP_NS = int(LOG_RENEWAL_GAP_S * 1e9)
_BACKOFF_NS_MIN = int(LOG_BACKOFF_S_MIN * 1e9)
_BACKOFF_NS_MAX = int(LOG_BACKOFF_S_MAX * 1e9)
_RENEWALS_PER_LEASE = 4


class Phase(StrEnum):
    """Where a follower is, for people and metrics."""

    BOOTING = "booting"
    """It reads where the log stands: at the start, after a gap, in another incarnation."""
    RESETTING = "resetting"
    """Everything is being hidden: the log, or its incarnation, is new to it."""
    CATCHING_UP = "catching_up"
    """What it missed in a gap is being hidden."""
    BEHIND = "behind"
    """It has records to apply before it may vouch for anything."""
    FOLLOWING = "following"
    """It was at the tip, confirmed, at its last renewal."""
    UNCONFIRMED = "unconfirmed"
    """It is at the tip of a log whose configured replicas do not answer (rule R10)."""
    FORKING = "forking"
    """The log contradicts what it has applied; a new incarnation is being started."""
    UNREACHABLE = "unreachable"
    """The log does not answer."""


@dataclass(frozen=True, slots=True)
class Started:
    """The shell runs."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class TimeCame:
    """The time of the last WaitUntil has come. Too early does no harm."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Woken:
    """The log may have grown."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class AcknowledgedMoved:
    """The member acknowledges, or has drained, more than it said at its last renewal."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Booted:
    """CallBoot returned."""

    boot: Boot
    now_ns: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """CallRenew returned; `sent_ns` was read before it was sent (rule R14)."""

    renewal: Renewal
    sent_ns: int
    now_ns: int


@dataclass(frozen=True, slots=True)
class Forked:
    """CallFork returned."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Settled:
    """CallSettle returned whether it still was that incarnation."""

    settled: bool
    now_ns: int


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The call under way failed, or nobody knows what became of it."""

    reason: str
    now_ns: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The last Reset, Reapply or Apply is carried out: hidden, appended to the ring, published, in this order."""

    now_ns: int


Event = (
    Started
    | TimeCame
    | Woken
    | AcknowledgedMoved
    | Booted
    | Renewed
    | Forked
    | Settled
    | CallFailed
    | Applied
)


@dataclass(frozen=True, slots=True)
class CallBoot:
    """Call `boot`; answer with Booted or CallFailed."""


@dataclass(frozen=True, slots=True)
class CallRenew:
    """Call `renew` with this number and the member's present position; answer with Renewed or CallFailed."""

    number: int


@dataclass(frozen=True, slots=True)
class CallFork:
    """Call `fork`; answer with Forked or CallFailed."""

    incarnation: LogIncarnation


@dataclass(frozen=True, slots=True)
class CallSettle:
    """Call `settle`; answer with Settled or CallFailed."""

    incarnation: LogIncarnation


@dataclass(frozen=True, slots=True)
class Reset:
    """Restart validity from `boot`, hide every page, publish LOG_STARTED; answer with Applied."""

    boot: Boot


@dataclass(frozen=True, slots=True)
class Reapply:
    """Restart validity from `boot`, hide what it selects since `after`, publish LOG_STARTED; answer with Applied."""

    boot: Boot
    after: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply records, one by one and in order: raise floors, hide, publish; answer with Applied after the last."""

    records: Sequence[LogRecord]


@dataclass(frozen=True, slots=True)
class PublishFreshness:
    """Publish that the present view may be vouched for until then (CLOCK_BOOTTIME)."""

    freshness_ns: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Send TimeCame then; replaces the one before."""

    at_ns: int


Action = CallBoot | CallRenew | CallFork | CallSettle | Reset | Reapply | Apply | PublishFreshness | WaitUntil


class Follower:
    """One member's way through the log. `step` takes one event and returns what to do now, in order.

    At most one call is under way, and none while something is being applied. `settle_ns`: how long an incarnation is
    observed before it is declared settled (rule R12). `spread`, 0 to 1, one number a member: keeps a fleet's renewals
    and its attempts after an outage from coming at once.
    """

    def __init__(self, *, lease_ns: int, settle_ns: int, spread: float = 0.0) -> None:
        self._lease_ns = lease_ns
        self._settle_ns = settle_ns
        self._spread = spread
        self.phase = Phase.BOOTING
        self.reason = ""
        self.position: Stamp | None = None
        """What has been applied and published; None before the first incarnation is."""

    def step(self, event: Event) -> list[Action]:
        """Take one event, in the order in which they happened; raises ValueError on one that nothing here asked for."""
        return []
