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

NOT_CONFIRMED = "replication not confirmed"


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
class Heard:
    """The log grew past `after` by these records, which follow it as their digests prove."""

    after: Stamp
    records: Sequence[LogRecord]
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
    | Heard
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


@dataclass(frozen=True, slots=True)
class _Applying:
    """What is being carried out: where it ends, and until when its renewal lets the member vouch for that."""

    position: Stamp
    digest: bytes
    freshness_ns: int = 0
    phase: Phase = Phase.BEHIND


class Follower:
    """One member's way through the log. `step` takes one event and returns what to do now, in order.

    At most one call is under way, and none while something is being applied. Freshness comes only of a confirmed renewal
    whose answer reaches to the tip, counted from before it was sent, and after all of that is applied. `settle_ns` is how
    long an incarnation is observed before it is declared settled (rule R12). `spread`, 0 to 1, one random number a member,
    keeps a fleet's renewals, and its attempts after an outage, from coming at once.
    """

    def __init__(self, *, lease_ns: int, settle_ns: int, spread: float = 0.0) -> None:
        self._lease_ns = lease_ns
        self._settle_ns = settle_ns
        self._spread = spread
        self.phase = Phase.BOOTING
        self.reason = ""
        """Why it is no further, a short word; empty where nothing is wrong."""
        self.position: Stamp | None = None
        """What has been applied and published; None before anything is."""
        self.tip: Stamp | None = None
        """The log's end as last heard of."""
        self._digest = b""
        self._number = 0
        self._call: type[CallBoot | CallRenew | CallFork | CallSettle] | None = None
        self._applying: _Applying | None = None
        self._must_boot = True
        self._must_fork = False
        self._is_urgent = False
        self._settle_at_ns: int | None = None
        self._stumbles = 0
        self._not_before_ns = 0
        self._renewed_ns = 0
        self._is_started = False

    def step(self, event: Event) -> list[Action]:
        """Take one event, in the order in which they happened; raises ValueError on an answer to nothing asked for."""
        actions: list[Action] = []
        match event:
            case Started():
                self._is_started = True
            case TimeCame():
                pass
            case Woken() | AcknowledgedMoved():
                self._is_urgent = True
            case Heard(after, records):
                self._is_urgent = True
                actions = self._heard(after, records)
            case Applied():
                actions = self._applied()
            case CallFailed(reason, now_ns):
                self._failed(reason, now_ns)
            case Booted(boot, now_ns):
                self._answered(CallBoot)
                actions = self._booted(boot, now_ns)
            case Renewed(renewal, sent_ns, now_ns):
                self._answered(CallRenew)
                actions = self._renewed(renewal, sent_ns, now_ns)
            case Forked():
                self._answered(CallFork)
                self._must_fork, self._must_boot = False, True
            case Settled(settled, now_ns):
                self._answered(CallSettle)
                self._settle_at_ns = None
                if not settled:
                    self._boot_again("new incarnation", now_ns)
        return actions + self._next(event.now_ns)

    # --- answers ---

    def _answered(self, call: type[CallBoot | CallRenew | CallFork | CallSettle]) -> None:
        if call is not self._call:
            raise ValueError(f"an answer to {call}, while {self._call} is under way")
        self._call = None

    def _failed(self, reason: str, now_ns: int) -> None:
        call, self._call = self._call, None
        if call is None:
            raise ValueError("a call failed, while none is under way")
        if call is CallSettle:  # others may settle it too: that must not keep this member from renewing
            self._settle_at_ns = now_ns + self._lease_ns
            return
        self._must_fork = False  # if it is still needed, the next renewal says so
        self._stumble(Phase.UNREACHABLE, reason, now_ns, free=0)

    def _applied(self) -> list[Action]:
        done, self._applying = self._applying, None
        if done is None:
            raise ValueError("nothing was to be applied")
        self.position, self._digest = done.position, done.digest
        self.phase = done.phase
        self._is_urgent = True  # the next renewal acknowledges it
        return [PublishFreshness(done.freshness_ns)] if done.freshness_ns else []

    def _booted(self, boot: Boot, now_ns: int) -> list[Action]:
        self._must_boot = False
        before, self.tip = self.position, boot.tip
        if before is None or before.incarnation != boot.tip.incarnation:
            self._settle_at_ns = None if boot.settled else now_ns + self._settle_ns
            self._applying = _Applying(boot.tip, boot.digest)
            self.phase = Phase.RESETTING
            return [Reset(boot)]
        if boot.settled:
            self._settle_at_ns = None
        if boot.tip.revision < before.revision or (boot.tip == before and boot.digest != self._digest):
            self._fork("the log lost or changed records", now_ns)
            return []
        if boot.tip == before:
            return []
        self._applying = _Applying(boot.tip, boot.digest)
        self.phase = Phase.CATCHING_UP
        return [Reapply(boot, before.revision)]

    def _renewed(self, renewal: Renewal, sent_ns: int, now_ns: int) -> list[Action]:
        before = self.position
        assert before is not None, "nobody renews without a position"
        if renewal.number != self._number:
            self._stumble(Phase.UNREACHABLE, "answer to another renewal", now_ns, free=0)
            return []
        if renewal.status is not RenewalStatus.OK:
            self._refused(renewal, now_ns)
            return []
        if renewal.incarnation != before.incarnation or not _is_whole(renewal, before.revision):
            self._boot_again("an answer that contradicts itself", now_ns)
            return []
        self.tip = Stamp(renewal.incarnation, renewal.tip)
        self._stumbles = self._not_before_ns = 0
        self.reason = "" if renewal.confirmed else NOT_CONFIRMED
        return self._take(renewal, before, sent_ns)

    def _refused(self, renewal: Renewal, now_ns: int) -> None:
        if not renewal.confirmed:
            # an old primary that lives on may say anything: it costs nobody their pages, and it grants nothing
            self._stumble(Phase.UNCONFIRMED, NOT_CONFIRMED, now_ns, free=0)
        elif renewal.status is RenewalStatus.FORK:
            self._fork("fork", now_ns)
        else:
            is_gap = renewal.status is RenewalStatus.GAP
            self._boot_again("gap" if is_gap else "new incarnation", now_ns)

    def _take(self, renewal: Renewal, before: Stamp, sent_ns: int) -> list[Action]:
        """Take an OK: what it brings is applied first, and only if that is all there is does it grant anything."""
        last = renewal.records[-1].revision if renewal.records else before.revision
        phase = Phase.FOLLOWING if renewal.confirmed else Phase.UNCONFIRMED
        if last < renewal.tip:
            phase = Phase.BEHIND
        freshness_ns = sent_ns + self._lease_ns if phase is Phase.FOLLOWING else 0
        if not renewal.records:
            self.phase = phase
            return [PublishFreshness(freshness_ns)] if freshness_ns else []
        target = Stamp(before.incarnation, last)
        self._applying = _Applying(target, renewal.records[-1].digest, freshness_ns, phase)
        self.phase = Phase.BEHIND
        return [Apply(renewal.records)]

    def _heard(self, after: Stamp, records: Sequence[LogRecord]) -> list[Action]:
        """Apply news without asking first, where it is what a renewal sent now would bring.

        It vouches for nothing: the next renewal does, which proves it and acknowledges it at once. So a record costs each
        member one renewal, and is hidden everywhere before the log has been asked by anybody.
        """
        is_free = self._call is None and self._applying is None and self.phase is Phase.FOLLOWING
        if not is_free or self.position != after or not _follow(records, after.revision):
            return []
        self.tip = Stamp(after.incarnation, records[-1].revision)
        self._applying = _Applying(self.tip, records[-1].digest, phase=self.phase)
        self.phase = Phase.BEHIND
        return [Apply(records)]

    # --- troubles ---

    def _boot_again(self, reason: str, now_ns: int) -> None:
        self._must_boot = True
        self._stumble(Phase.BOOTING, reason, now_ns, free=1)

    def _fork(self, reason: str, now_ns: int) -> None:
        self._must_fork = True
        self._stumble(Phase.FORKING, reason, now_ns, free=1)

    def _stumble(self, phase: Phase, reason: str, now_ns: int, *, free: int) -> None:
        """Note that there is no way on as yet; after the first `free` in a row, wait longer each time."""
        self.phase, self.reason = phase, reason
        self._stumbles += 1
        doublings = self._stumbles - free - 1
        if doublings >= 0:
            backoff_ns = min(_BACKOFF_NS_MIN << min(doublings, 16), _BACKOFF_NS_MAX)
            self._not_before_ns = now_ns + int(backoff_ns * (1.0 + self._spread) / 2)

    # --- what next ---

    def _next(self, now_ns: int) -> list[Action]:
        if not self._is_started or self._call is not None or self._applying is not None:
            return []
        call, due_ns = self._due()
        due_ns = max(due_ns, self._not_before_ns)
        if now_ns < due_ns:
            return [WaitUntil(due_ns)]
        self._call = type(call)
        if isinstance(call, CallRenew):
            self._number = call.number
            self._renewed_ns = now_ns
            self._is_urgent = False
        return [call]

    def _due(self) -> tuple[CallBoot | CallRenew | CallFork | CallSettle, int]:
        """The call to make next, and not before when."""
        position = self.position
        if position is None or self._must_boot:
            return CallBoot(), 0
        if self._must_fork:
            return CallFork(position.incarnation), 0
        interval_ns = int(self._lease_ns / _RENEWALS_PER_LEASE * (7 + self._spread) / 8)
        renew_ns = self._renewed_ns + (_GAP_NS if self._is_urgent else interval_ns)
        if self.phase is Phase.BEHIND or self._stumbles:
            renew_ns = 0  # at once, or as the backoff says
        if self._settle_at_ns is not None and self._settle_at_ns <= renew_ns:
            return CallSettle(position.incarnation), self._settle_at_ns
        return CallRenew(self._number + 1), renew_ns


def _is_whole(renewal: Renewal, after: int) -> bool:
    """Whether the records follow the position without a gap, up to the tip or a batch of them."""
    brought = len(renewal.records)
    if brought and not _follow(renewal.records, after):
        return False
    return after + brought == renewal.tip or 0 < brought < renewal.tip - after


def _follow(records: Sequence[LogRecord], after: int) -> bool:
    """Whether there are some, that follow the position without a gap."""
    revisions = [record.revision for record in records]
    return bool(revisions) and revisions == list(range(after + 1, after + 1 + len(revisions)))
