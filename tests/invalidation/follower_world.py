"""One follower in a hostile world: a log that grows, loses, forks and forgets, calls that fail and time that passes.

The world holds pages of two kinds; each record selects one kind. It checks by itself that what the follower vouches for
holds: no page that a record of the log selected, before the renewal was carried out that it vouches by.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from invalidation.follower import (
    AcknowledgedMoved,
    Action,
    Applied,
    Apply,
    Booted,
    CallBoot,
    CallFailed,
    CallFork,
    CallRenew,
    CallSettle,
    Event,
    Follower,
    Forked,
    Heard,
    Phase,
    PublishFreshness,
    Reapply,
    Renewed,
    Reset,
    Settled,
    Started,
    TimeCame,
    WaitUntil,
    Woken,
)
from invalidation.log import Boot, Renewal, RenewalStatus
from invalidation.records import NO_DIGEST, LogEntry, LogRecord, next_digest
from kv_types.events import Selected
from kv_types.ids import LogIncarnation, PageKey, Stamp
from kv_types.selectors import Selector

MS = 1_000_000
LEASE_NS = 3_000 * MS
SETTLE_NS = 5_000 * MS
BATCH = 3
KINDS = (Selector(key=PageKey(b"a" * 32)), Selector(key=PageKey(b"b" * 32)))


class BrokenPromiseError(AssertionError):
    """The follower did what it must never do."""


@dataclass(frozen=True, slots=True)
class Written:
    """A record with its place in all that was ever appended anywhere."""

    record: LogRecord
    payload: bytes
    sequence: int


@dataclass(slots=True)
class ScriptedLog:
    """A log as the rules describe it. `records` are all of this incarnation; those before `first` are kept no longer."""

    draw: random.Random
    incarnation: LogIncarnation = field(init=False)
    records: list[Written] = field(default_factory=list)
    first: int = 1
    settled: bool = False
    born_ns: int = 0
    trimmable: int = 1 << 30
    """Records up to this may be forgotten: those below a fork show that it is one."""
    sequence: int = 0

    def __post_init__(self) -> None:
        self.begin(0)

    def begin(self, now_ns: int) -> None:
        self.incarnation = LogIncarnation(self.draw.randbytes(16))
        self.records, self.first, self.settled, self.born_ns, self.trimmable = [], 1, False, now_ns, 1 << 30

    @property
    def tip(self) -> Stamp:
        return Stamp(self.incarnation, len(self.records))

    def digest(self, revision: int) -> bytes:
        return self.records[revision - 1].record.digest if revision else NO_DIGEST

    def append(self, kind: int) -> None:
        entry = LogEntry(event=Selected(KINDS[kind]), appended_wall_ms=self.sequence)
        payload = entry.encode()
        record = LogRecord(len(self.records) + 1, entry, next_digest(self.digest(len(self.records)), payload))
        self.sequence += 1
        self.records.append(Written(record, payload, self.sequence))

    def lose_tail(self, count: int) -> None:
        """Forget the last records and go on under the same incarnation, as nothing should but a digest would show."""
        left = max(len(self.records) - count, self.first - 1)
        self.records = self.records[:left]
        self.trimmable = min(self.trimmable, left)

    def trim(self, count: int) -> None:
        self.first = max(self.first, min(self.first + count, len(self.records) + 1, self.trimmable))

    def boot(self) -> Boot:
        newest = {written.record.event.selector: written.record.revision for written in self.records}  # type: ignore[union-attr]
        return Boot(
            tip=self.tip, digest=self.digest(len(self.records)), floors={}, tombstones=newest, weights={},
            settled=self.settled, replicas=0,
        )  # fmt: skip

    def renew(self, position: Stamp, digest: bytes, number: int, *, confirmed: bool) -> Renewal:
        status, records = self._compare(position, digest), []
        if status is RenewalStatus.OK:
            records = [written.record for written in self.records[position.revision :][:BATCH]]
        return Renewal(status, self.incarnation, number, len(self.records), records, confirmed, 0)

    def _compare(self, position: Stamp, digest: bytes) -> RenewalStatus:
        if position.incarnation != self.incarnation:
            return RenewalStatus.NEW_INCARNATION
        if position.revision > len(self.records):
            return RenewalStatus.FORK
        if position.revision == len(self.records):
            same = digest == self.digest(position.revision)
        elif position.revision + 1 < self.first:
            return RenewalStatus.GAP
        else:
            same = self.follows(position.revision, digest)
        return RenewalStatus.OK if same else RenewalStatus.FORK

    def follows(self, revision: int, digest: bytes) -> bool:
        """Whether the record after a revision follows the digest there."""
        following = self.records[revision]
        return next_digest(digest, following.payload) == following.record.digest


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a kind, whose computation began after so many appends."""

    kind: int
    begun: int


@dataclass(slots=True)
class Call:
    """A call under way; `answer` once the log has carried it out."""

    action: CallBoot | CallRenew | CallFork | CallSettle
    sent_ns: int
    position: Stamp | None
    digest: bytes
    answer: Callable[[int], Event] | None = None


class FollowerWorld:
    """A seeded run. `make` makes the follower, so that a broken one can be run too."""

    def __init__(self, seed: int, make: Callable[..., Follower] = Follower) -> None:
        self.draw = random.Random(seed)
        self.now_ns = 10_000 * MS
        self.log = ScriptedLog(self.draw)
        self.follower = make(lease_ns=LEASE_NS, settle_ns=SETTLE_NS, spread=self.draw.random())
        self.pages: set[Page] = set()
        self.position: Stamp | None = None
        self.digest = NO_DIGEST
        self.freshness_ns = 0
        self.required: list[Written] = []
        self.granted: dict[int, list[Written]] = {}
        """What the log held when a confirmed renewal was carried out, by the freshness that it may grant."""
        self.call: Call | None = None
        self.applying: Reset | Reapply | Apply | None = None
        self.news: Heard | None = None
        """What was read from the log some time ago, whatever has become of it since."""
        self.wake_ns: int | None = None
        self.number = 0
        self.phases: set[Phase] = set()

    def run(self, steps: int) -> None:
        """Live through so many steps, then through calm, in which it must come to vouch for the tip."""
        self._send(Started(self.now_ns))
        for _ in range(steps):
            self._hostile_step()
            self._check()
        self.calm()

    def calm(self) -> None:
        """Answer everything from now on; the follower has to reach the tip, confirmed, within few calls and its batches."""
        self.wake_ns = self.wake_ns or self.now_ns
        for _ in range(30 + len(self.log.records)):
            if self.applying is not None:
                self._finish()
            elif self.call is not None:
                self._execute(confirmed=True)
                self._deliver()
            else:
                self.now_ns = max(self.now_ns, self.wake_ns)
                self._send(TimeCame(self.now_ns))
            self._check()
            is_there = self.position == self.log.tip and self.freshness_ns > self.now_ns
            if is_there and self.follower.phase is Phase.FOLLOWING and self.call is None:
                return
        raise BrokenPromiseError(f"it never vouches again: {self.follower.phase}, {self.follower.reason}")

    # --- what may happen ---

    def _hostile_step(self) -> None:
        steps: list[Callable[[], None]] = [
            self._pass_time, self._append, self._commit, self._nudge, self._listen, self._hear,
        ]  # fmt: skip
        if self.call is not None:
            steps += [self._execute_somehow, self._deliver_or_fail] * 3
        if self.applying is not None:
            steps += [self._finish] * 3
        self.draw.choice(steps)()
        if self.draw.random() < 0.08:
            self._damage()

    def _pass_time(self) -> None:
        self.now_ns += int(self.draw.choice([1, 20, 300, 1000, 4000]) * MS * self.draw.random())
        if self.wake_ns is not None and self.now_ns >= self.wake_ns:
            self._send(TimeCame(self.now_ns))

    def _append(self) -> None:
        for _ in range(self.draw.choice([1, 1, 2, 9])):
            self.log.append(self.draw.randrange(2))

    def _commit(self) -> None:
        if self.applying is None and self.position is not None:
            self.pages.add(Page(self.draw.randrange(2), self.log.sequence))

    def _nudge(self) -> None:
        nudges: list[Event] = [Woken(self.now_ns), AcknowledgedMoved(self.now_ns), TimeCame(self.now_ns)]
        self._send(self.draw.choice(nudges))

    def _listen(self) -> None:
        """Read what follows, as a wake-up brings it: proven to follow, from the log as it is now."""
        if self.position is None:
            return
        following = self.log.records[self.position.revision :][:BATCH]
        is_kept = self.position.revision + 1 >= self.log.first
        if following and is_kept and self.log.follows(self.position.revision, self.digest):
            records = [written.record for written in following]
            self.news = Heard(self.position, records, self.now_ns)

    def _hear(self) -> None:
        news, self.news = self.news, None
        if news is not None:
            self._send(replace(news, now_ns=self.now_ns))

    def _damage(self) -> None:
        which = self.draw.randrange(4)
        if which == 0:
            self.log.begin(self.now_ns)
        elif which == 1:
            self.log.lose_tail(self.draw.randint(1, 4))
        else:
            self.log.trim(self.draw.randint(1, 6))

    # --- calls ---

    def _execute_somehow(self) -> None:
        self._execute(confirmed=self.draw.random() < 0.8)

    def _execute(self, *, confirmed: bool) -> None:
        call = self.call
        if call is None or call.answer is not None:
            return
        log, action = self.log, call.action
        match action:
            case CallBoot():
                boot = log.boot()
                call.answer = lambda now_ns: Booted(boot, now_ns)
            case CallRenew(number):
                assert call.position is not None
                renewal = log.renew(call.position, call.digest, number, confirmed=confirmed)
                if renewal.status is RenewalStatus.OK and confirmed:
                    self.granted[call.sent_ns + LEASE_NS] = list(log.records)
                call.answer = lambda now_ns: Renewed(renewal, call.sent_ns, now_ns)
            case CallFork(incarnation):
                if log.incarnation == incarnation:
                    log.begin(self.now_ns)
                call.answer = Forked
            case CallSettle(incarnation):
                settled = log.incarnation == incarnation
                if settled and self.now_ns - log.born_ns < SETTLE_NS:
                    raise BrokenPromiseError("an incarnation is settled before anybody could watch it")
                log.settled = log.settled or settled
                call.answer = lambda now_ns: Settled(settled, now_ns)

    def _deliver_or_fail(self) -> None:
        if self.draw.random() < 0.2:
            self.call = None
            self._send(CallFailed("deadline", self.now_ns))
        else:
            self._deliver()

    def _deliver(self) -> None:
        call = self.call
        if call is not None and call.answer is not None:
            self.call = None
            self._send(call.answer(self.now_ns))

    # --- the shell ---

    def _send(self, event: Event) -> None:
        self.wake_ns = None if not isinstance(event, Woken | AcknowledgedMoved | Heard) else self.wake_ns
        for action in self.follower.step(event):
            self._carry_out(action)
        self.phases.add(self.follower.phase)

    def _carry_out(self, action: Action) -> None:
        match action:
            case PublishFreshness(freshness_ns):
                self._vouch(freshness_ns)
            case WaitUntil(at_ns):
                self.wake_ns = at_ns
            case Reset() | Reapply() | Apply():
                if self.call is not None or self.applying is not None:
                    raise BrokenPromiseError(f"{action} while something else is under way")
                if isinstance(action, Reset) and self._is_followed(action.boot):
                    raise BrokenPromiseError("the pages of an incarnation that is followed are all dropped")
                self.applying = action
            case CallBoot() | CallRenew() | CallFork() | CallSettle():
                if self.call is not None or self.applying is not None:
                    raise BrokenPromiseError("two calls at once, or one while something is applied")
                if isinstance(action, CallRenew) and action.number <= self.number:
                    raise BrokenPromiseError("a number comes twice")
                self.number = action.number if isinstance(action, CallRenew) else self.number
                self.call = Call(action, self.now_ns, self.position, self.digest)

    def _is_followed(self, boot: Boot) -> bool:
        return self.position is not None and self.position.incarnation == boot.tip.incarnation

    def _finish(self) -> None:
        """Hide what was to be hidden: as late as it may come, before it is said to be done."""
        action, self.applying = self.applying, None
        match action:
            case Reset(boot):
                self.pages.clear()
                self.position, self.digest = boot.tip, boot.digest
            case Reapply(boot, after):
                gone = {selector for selector, at in boot.tombstones.items() if at > after}
                self.pages = {page for page in self.pages if KINDS[page.kind] not in gone}
                self.position, self.digest = boot.tip, boot.digest
            case Apply(records):
                self._apply(list(records))
            case None:
                return
        self._send(Applied(self.now_ns))

    def _apply(self, records: list[LogRecord]) -> None:
        for record in records:
            assert self.position is not None
            if record.revision != self.position.revision + 1:
                raise BrokenPromiseError(f"record {record.revision} after {self.position.revision}")
            self.pages = {page for page in self.pages if Selected(KINDS[page.kind]) != record.event}
            self.position, self.digest = Stamp(self.position.incarnation, record.revision), record.digest

    def _vouch(self, freshness_ns: int) -> None:
        if freshness_ns not in self.granted:
            raise BrokenPromiseError("no confirmed renewal, counted from when it was sent, grants that")
        if freshness_ns < self.freshness_ns:
            raise BrokenPromiseError("freshness is taken back")
        self.freshness_ns, self.required = freshness_ns, self.granted[freshness_ns]
        self._check()

    def _check(self) -> None:
        if self.now_ns >= self.freshness_ns:
            return
        for page in self.pages:
            for written in self.required:
                if page.begun < written.sequence and written.record.event == Selected(KINDS[page.kind]):
                    raise BrokenPromiseError(f"{page} is vouched for, though {written.record} selects it")
