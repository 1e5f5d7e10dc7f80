"""LogShell: carries out what the follower decides: calls the log, applies it to the arena, and vouches for what is served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cache_l2.store import ArenaStore, ClientRow
from invalidation import follower as machine
from invalidation.follower import Follower, Phase
from invalidation.log import InvalidationLog, LogUnavailableError, Member, Renewal, RenewalStatus
from invalidation.notes import MemberNote
from invalidation.records import LogRecord
from invalidation.validity import Validity
from kv_types.clock import Clock, Pause
from kv_types.errors import ConfigError
from kv_types.ids import LogIncarnation, Stamp
from kv_types.validity import EngineMode
from sidecar.log.applier import LogApplier
from sidecar.log.renewal_pace import RenewalPace
from sidecar.log.reports import LogReports
from sidecar.log.state import LogCounters, LogState

MEMBER_BYTES = 16

_SECOND_NS = 1_000_000_000
_HANG_FACTOR = 2
"""A log that does not keep a call's deadline is given up after so many times it."""

_CLAIM_LOOKS, _CLAIM_LOOK_S = 10, 0.01
"""How often a goodbye looks for claims, and the pause between."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellTiming:
    """Times of following: the freshness lease, how long an incarnation is observed before it is settled, one call's time."""

    lease_ns: int
    settle_ns: int
    call_ns: int


class LogShell:
    """One member of the fleet, of one life. Everything runs on the event loop that calls `run`.

    The follower decides; this executes its actions one after the other and tells it what came of them. A log that is out
    of reach costs nobody a wait: freshness runs out, look-ups miss as STALE, and following goes on by itself when the log
    is back.
    """

    def __init__(
        self,
        log: InvalidationLog,
        store: ArenaStore,
        validity: Validity,
        *,
        clock: Clock,
        timing: ShellTiming,
        note: MemberNote,
        admit: Callable[[], Awaitable[None]] | None = None,
        enter: Callable[[], Awaitable[LogIncarnation | None]] | None = None,
        pause: Pause = asyncio.sleep,
        observe: Callable[[float], None] | None = None,
    ) -> None:
        """`note` says who this is. `admit` judges the log whenever it is to be joined: it raises LogUnavailableError when
        it can't, ConfigError when the log must not be used. `enter` enters this node's namespaces into the log's directory and
        returns the incarnation that has them, None where there are none. `observe` is told the seconds of each applying.
        """
        self.member = os.urandom(MEMBER_BYTES)
        self.validity = validity
        self.idle = asyncio.Event()
        """Set while nothing is under way, and the log's tip was reached at the last renewal."""
        self.confirmed = asyncio.Event()
        """Set once the log has confirmed this member for the first time."""
        self._log = log
        self._store = store
        self._clock = clock
        self._timing = timing
        self._note = note
        self._admit = admit
        self._enter = enter
        self._pause = pause
        self._follower = Follower(
            lease_ns=timing.lease_ns,
            settle_ns=timing.settle_ns,
            spread=int.from_bytes(self.member[:2], "little") / 65536,
        )
        self._applier = LogApplier(validity, store, observe=observe)
        self._pace = RenewalPace()
        self._reports = LogReports(clock)
        self._counters = LogCounters()
        self._inbox: asyncio.Queue[machine.Event] = asyncio.Queue()
        self._waiting: set[type[machine.Event]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._call: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._number = 0
        self._told_note = ""
        self._told_keep = 0
        self._ending = False
        self._is_leaving = False

    # --- life ---

    async def run(self) -> None:
        """Follow the log until `leave`. Raises whatever is no failure of the log: a fault of this program."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._step(machine.Started(self._clock.now_ns()))
                while not self._ending:
                    await self._step(await self._inbox.get())
                for task in (self._call, self._timer):
                    if task is not None:
                        task.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def leave(self) -> None:
        """Deregister (rule R13); close the header before. Takes a few calls' time at most.

        A call under way is waited for: a renewal that the log carries out after the goodbye would undo it.
        """
        self._ending = True
        if self._call is not None:
            await asyncio.wait([self._call], timeout=self._timing.call_ns / _SECOND_NS)
        # ends the loop, which may be waiting for an event
        self._inbox.put_nowait(machine.TimeCame(self._clock.now_ns()))
        if not self._number:
            return
        if await self._engines_serve_on():
            return  # a goodbye ends nobody's claim: fences wait for them as for those of any silent member
        self._is_leaving = True
        self._note_clients()
        drained = self._applier.drained.is_complete and not any(map(self._is_in_use, self._store.clients()))
        try:
            if not drained and self._member().note != self._told_note:
                # what is remembered of this member must not say that engines serve on below it
                self._store.take_back_keep()
                await self._renew(self._number + 1)
            await self._log.leave(
                self.member, number=self._number, drained=drained, deadline_ns=self._deadline_ns()
            )
        except LogUnavailableError as error:
            self._reports.goodbye_failed(error)

    async def _engines_serve_on(self) -> bool:
        """Whether an engine claims to serve without asking. What is claimed for one look-up is given up in a moment."""
        for _ in range(_CLAIM_LOOKS):
            if not self._store.engines_may_serve():
                return False
            await self._pause(_CLAIM_LOOK_S)
        return self._store.engines_may_serve()

    def _is_in_use(self, client: ClientRow) -> bool:
        """Whether somebody may still use pages by this row: whoever attached, or calls that do not end."""
        return client.row != self._store.own_row or client.leases > 0 or client.oldest_view > 0

    def wake(self) -> None:
        """The log may have grown: look now."""
        self._post(machine.Woken)

    def hear(self, after: Stamp, records: Sequence[LogRecord]) -> None:
        """The log grew past a position by these records; by none that can be told: look now."""
        if not records:
            self.wake()
            return
        self.idle.clear()
        self._inbox.put_nowait(machine.Heard(after, records, self._clock.now_ns()))

    def look_at_clients(self) -> bool:
        """Tell the log, soon, if clients have applied or drained more, or one keeps its pages that no renewal told of.

        Returns whether there is something to tell.
        """
        moved = self._note_clients()
        if self._number and self._told_keep != self._store.keep_opened:  # else the first renewal tells
            moved = True
        if moved:
            self._post(machine.AcknowledgedMoved)
        return moved

    def _post(self, kind: type[machine.Woken] | type[machine.AcknowledgedMoved]) -> None:
        """Put an event into the inbox, once until it is taken: whoever posts can't fill it."""
        if kind not in self._waiting:
            self._waiting.add(kind)
            self.idle.clear()
            self._inbox.put_nowait(kind(self._clock.now_ns()))

    # --- what others want to know ---

    @property
    def position(self) -> Stamp | None:
        """What has been hidden and published; None before a log was joined."""
        return self._applier.position

    @property
    def digest(self) -> bytes:
        """Digest of the log there."""
        return self._applier.digest

    @property
    def is_following(self) -> bool:
        """Whether the log answered at the last call."""
        return self._follower.phase in (Phase.FOLLOWING, Phase.BEHIND)

    @property
    def waits_for_acknowledgement(self) -> bool:
        """Whether an engine holds something back that was published."""
        return not self._applier.acknowledged.is_complete

    @property
    def waits_for_draining(self) -> bool:
        """Whether something that was hidden is still in use."""
        return not self._applier.drained.is_complete

    @property
    def counters(self) -> LogCounters:
        """What was counted."""
        return self._counters

    def state(self) -> LogState:
        """Return how things stand."""
        counters, applier, now_ns = self._counters, self._applier, self._clock.now_ns()
        ago_ns = None if counters.confirmed_ns is None else now_ns - counters.confirmed_ns
        sizes = dict(self.validity.statistics())
        if counters.statistics is not None:
            kept = counters.statistics
            sizes |= {
                "log_records": kept.records,
                "log_tombstones": kept.tombstones,
                "log_floors": kept.floors,
                "log_members": kept.members,
                "log_requests": kept.requests,
            }
        return LogState(
            phase=str(self._follower.phase),
            reason=self._reason(now_ns),
            member=self.member,
            position=applier.position,
            tip=counters.tip,
            acknowledged=applier.acknowledged.reached,
            drained=min(applier.acknowledged.reached, applier.drained.reached),
            settled=counters.settled,
            replicas=counters.replicas,
            confirmed_ago_s=None if ago_ns is None else ago_ns / _SECOND_NS,
            held_by=self._held_by(),
            draining_held_by=self._draining_held_by(),
            renewals=dict(counters.renewals),
            sizes=sizes,
            pages_hidden=applier.pages_hidden,
            records_applied=applier.records_applied,
        )

    def _reason(self, now_ns: int) -> str:
        """Why hits are not confirmed now; empty while they are."""
        if self._store.is_draining:
            return "this sidecar is ending"
        if self._store.reader.freshness_ns() > now_ns:
            return ""
        told = self._counters.failure or self._follower.reason
        return f"{self._follower.phase}: {told}" if told else str(self._follower.phase)

    def _held_by(self) -> tuple[str, ...]:
        return tuple(map(str, self._store.held_back_by()))

    def _draining_held_by(self) -> tuple[str, ...]:
        return tuple(map(str, self._store.draining_held_by())) if self.waits_for_draining else ()

    # --- the loop ---

    async def _step(self, event: machine.Event) -> None:
        """Take one event, and those that carrying out its actions makes."""
        self._waiting.discard(type(event))
        events = [event]
        while events and not self._ending:
            applied = [await self._execute(action) for action in self._follower.step(events.pop())]
            if any(applied):
                events.append(machine.Applied(self._clock.now_ns()))
        phase = self._follower.phase
        self._reports.phase(phase, self._applier)
        if phase is Phase.FOLLOWING and self._call is None and self._inbox.empty():
            self.idle.set()

    async def _execute(self, action: machine.Action) -> bool:
        """Carry out one action; returns whether it was one of applying, which is over now."""
        match action:
            case machine.CallBoot():
                self._begin(self._boot)
            case machine.CallRenew(number):
                self._begin(lambda: self._renew(number))
            case machine.CallFork(incarnation):
                self._begin(lambda: self._fork(incarnation))
            case machine.CallSettle(incarnation):
                self._begin(lambda: self._settle(incarnation))
            case machine.WaitUntil(at_ns):
                self._wait_until(at_ns)
            case machine.PublishFreshness(freshness_ns):
                self._store.publish_freshness(freshness_ns)
                self.confirmed.set()
            case machine.Reset(boot):
                await self._applier.reset(boot)
            case machine.Reapply(boot, after):
                await self._applier.reapply(boot, after=after)
            case machine.Apply(records):
                await self._applier.apply(records)
        if not isinstance(action, machine.Reset | machine.Reapply | machine.Apply):
            return False
        self._note_clients()
        return True

    def _wait_until(self, at_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._spawn(self._tick(at_ns), "log timer")

    async def _tick(self, at_ns: int) -> None:
        await self._pause(max(0, at_ns - self._clock.now_ns()) / _SECOND_NS)
        self._inbox.put_nowait(machine.TimeCame(self._clock.now_ns()))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(work, name=name)

    def _note_clients(self) -> bool:
        """See how far clients have got; returns whether that is further than before."""
        acknowledged, drained = self._applier.acknowledged, self._applier.drained
        moved = not acknowledged.is_complete and acknowledged.advance(self._store.acknowledged_view())
        if not drained.is_complete:
            moved = drained.advance(self._store.drained_view()) or moved
        return moved

    # --- calls: one under way at a time, as the follower sees to ---

    def _begin(self, call: Callable[[], Coroutine[None, None, machine.Event]]) -> None:
        assert self._call is None, "the follower began a call while one was under way"
        self.idle.clear()
        self._call = self._spawn(self._carry_out(call), "log call")

    async def _carry_out(self, call: Callable[[], Coroutine[None, None, machine.Event]]) -> None:
        event: machine.Event
        try:
            event = await call()
        except LogUnavailableError as error:
            self._counters.failure = str(error)
            self._reports.trouble(error.reason, str(error))
            event = machine.CallFailed(error.reason, self._clock.now_ns())
        else:
            self._counters.failure = ""
        self._call = None
        self._inbox.put_nowait(event)

    async def _bounded(self, answer: Awaitable[_Answer]) -> _Answer:
        """Wait for a call's answer, and not for ever for a log that does not keep its deadline."""
        try:
            async with asyncio.timeout(_HANG_FACTOR * self._timing.call_ns / _SECOND_NS):
                return await answer
        except TimeoutError as error:
            raise LogUnavailableError("timeout", "it did not keep the deadline of its call") from error

    async def _boot(self) -> machine.Event:
        if self._admit is not None:
            try:
                await self._bounded(self._admit())
            except (
                ConfigError
            ) as error:  # another server than the one judged at start, or otherwise configured by now
                raise LogUnavailableError("refused", str(error)) from error
        entered = None if self._enter is None else await self._bounded(self._enter())
        boot = await self._bounded(self._log.boot(deadline_ns=self._deadline_ns()))
        if entered not in (None, boot.tip.incarnation):
            raise LogUnavailableError("incarnation", "the log began anew while it was joined")
        self._store.take_back_keep()  # it may be another log, or one that has forgotten this member
        counters = self._counters
        counters.tip, counters.settled, counters.replicas = boot.tip.revision, boot.settled, boot.replicas
        return machine.Booted(boot, self._clock.now_ns())

    async def _renew(self, number: int) -> machine.Event:
        now_ns = self._clock.now_ns()
        earliest_ns = self._pace.earliest_ns(now_ns)
        if earliest_ns > now_ns:
            await self._pause((earliest_ns - now_ns) / _SECOND_NS)
        member = self._member()
        self._number, self._told_note, self._told_keep = number, member.note, self._store.keep_opened
        told_keep = self._told_keep
        sent_ns = self._clock.now_ns()  # before it is sent: freshness counts from here (rule R14)
        self._pace.sent(sent_ns)
        try:
            renewal = await self._bounded(
                self._log.renew(member, number=number, deadline_ns=self._deadline_ns())
            )
        except LogUnavailableError as error:
            self._counters.renewals[error.reason] += 1
            raise
        self._count_renewal(renewal)
        self._grant_keep(renewal, number, told_keep)
        return machine.Renewed(renewal, sent_ns, self._clock.now_ns())

    def _grant_keep(self, renewal: Renewal, number: int, told: int) -> None:
        """Engines may keep their pages past freshness once the log knows, and keeps whatever befalls it, that they do (R18).

        Until then a fence would give up a sidecar that dies, and its engines would serve on.
        """
        if renewal.status is not RenewalStatus.OK:
            self._store.take_back_keep()
        elif renewal.confirmed and renewal.number == number:
            self._store.grant_keep(told)

    def _count_renewal(self, renewal: Renewal) -> None:
        counters = self._counters
        counters.tip, counters.replicas = renewal.tip, renewal.replicas
        outcome = renewal.status.name.lower()
        if renewal.status is RenewalStatus.OK:
            outcome = "ok" if renewal.confirmed else "unconfirmed"
        if outcome == "ok":
            counters.confirmed_ns = self._clock.now_ns()
        counters.renewals[outcome] += 1

    async def _fork(self, incarnation: LogIncarnation) -> machine.Event:
        self._reports.forking(incarnation)
        await self._bounded(self._log.fork(incarnation, deadline_ns=self._deadline_ns()))
        return machine.Forked(self._clock.now_ns())

    async def _settle(self, incarnation: LogIncarnation) -> machine.Event:
        settled = await self._bounded(self._log.settle(incarnation, deadline_ns=self._deadline_ns()))
        self._counters.settled = settled
        return machine.Settled(settled, self._clock.now_ns())

    def _member(self) -> Member:
        """What the next renewal says of this member."""
        self._note_clients()
        applier = self._applier
        assert applier.position is not None, "the follower renews what has been published"
        note = replace(
            self._note,
            # below a closed header nobody claims any more, and who did is looked for before a goodbye
            engines_keep=0 if self._is_leaving else self._store.engines(EngineMode.KEEP),
            held_back_by=self._held_by() + self._draining_held_by(),
        )
        acknowledged = applier.acknowledged.reached
        return Member(
            id=self.member,
            applied=applier.position,
            digest=applier.digest,
            acknowledged=acknowledged,
            drained=min(acknowledged, applier.drained.reached),
            note=note.encode(),
        )

    def _deadline_ns(self) -> int:
        return self._clock.now_ns() + self._timing.call_ns
