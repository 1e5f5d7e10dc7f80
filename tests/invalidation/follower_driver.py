"""A follower driven by hand: its time, what it last asked for, and answers made for it."""

from __future__ import annotations

from collections.abc import Sequence

from invalidation.follower import (
    Action,
    Applied,
    Booted,
    CallBoot,
    CallRenew,
    Follower,
    Heard,
    Phase,
    Renewed,
    Reset,
    Started,
    TimeCame,
    WaitUntil,
    Woken,
)
from invalidation.log import Boot, Renewal, RenewalStatus
from invalidation.records import LogEntry, LogRecord
from kv_types.ids import LogIncarnation, Stamp
from kv_types.limits import LOG_RENEWAL_GAP_S
from tests.conformance.log_harness import selected

MS = 1_000_000
LEASE_NS = 4_000 * MS
SETTLE_NS = 7_000 * MS
GAP_NS = int(LOG_RENEWAL_GAP_S * 1e9)
INTERVAL_NS = LEASE_NS // 4 * 7 // 8
START_NS = 1_000_000 * MS
FIRST, SECOND = LogIncarnation(b"1" * 16), LogIncarnation(b"2" * 16)


def _digest(revision: int) -> bytes:
    return bytes([revision]) * 20


def boot_at(revision: int = 0, incarnation: LogIncarnation = FIRST, *, settled: bool = True) -> Boot:
    return Boot(
        tip=Stamp(incarnation, revision), digest=_digest(revision), floors={}, tombstones={}, weights={},
        settled=settled, replicas=0,
    )  # fmt: skip


def records_of(first: int, last: int) -> list[LogRecord]:
    return [
        LogRecord(revision, LogEntry(event=selected(revision)), _digest(revision))
        for revision in range(first, last + 1)
    ]


class Driver:
    """A follower, its time, and what it last asked for."""

    def __init__(self, *, spread: float = 0.0) -> None:
        self.follower = Follower(lease_ns=LEASE_NS, settle_ns=SETTLE_NS, spread=spread)
        self.now_ns = START_NS
        self.number = 0

    def send(self, event: object) -> list[Action]:
        actions = self.follower.step(event)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, CallRenew):
                assert action.number > self.number, "numbers grow"
                self.number = action.number
        return actions

    def phase(self) -> Phase:
        return self.follower.phase

    def start(self, boot: Boot) -> list[Action]:
        assert self.send(Started(self.now_ns)) == [CallBoot()]
        assert self.send(Booted(boot, self.now_ns)) == [Reset(boot)]
        return self.send(Applied(self.now_ns))

    def follow(self, boot: Boot | None = None) -> None:
        """Come to the point where the first renewal is answered and the next is waited for."""
        boot = boot or boot_at()
        self.start(boot)
        self.renewed(boot.tip.revision)

    def renewed(
        self,
        tip: int,
        records: Sequence[LogRecord] = (),
        *,
        status: RenewalStatus = RenewalStatus.OK,
        incarnation: LogIncarnation = FIRST,
        confirmed: bool = True,
        took_ns: int = 0,
        number: int | None = None,
    ) -> list[Action]:
        number = self.number if number is None else number
        renewal = Renewal(status, incarnation, number, tip, records, confirmed, 0)
        return self.send(Renewed(renewal, self.now_ns - took_ns, self.now_ns))

    def wake(self) -> list[Action]:
        return self.send(Woken(self.now_ns))

    def hear(self, after: Stamp, records: Sequence[LogRecord]) -> list[Action]:
        return self.send(Heard(after, records, self.now_ns))

    def wait(self, delta_ns: int = INTERVAL_NS) -> list[Action]:
        self.now_ns += delta_ns
        return self.send(TimeCame(self.now_ns))

    def wait_out(self, actions: list[Action]) -> list[Action]:
        """Wait as long as it asks for; returns what it does then."""
        while actions and isinstance(actions[-1], WaitUntil):
            actions = self.wait(max(actions[-1].at_ns - self.now_ns, 0))
        return actions
