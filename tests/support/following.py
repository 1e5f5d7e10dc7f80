"""A LogShell over a real arena and a LocalLog that records, fails, lags and hangs as tests ask, on a clock of theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cache_l2.store import ArenaConfig, ArenaStore
from invalidation.listing import Listings
from invalidation.local_log import LocalLog
from invalidation.log import Boot, LogLimits, LogUnavailableError, Member, Renewal
from invalidation.notes import MemberNote
from invalidation.records import LogEntry, LogRecord
from invalidation.turns import Turns
from invalidation.validity import Validity
from kv_types.events import Event, Selected, WeightsAnnounced
from kv_types.ids import Stamp
from kv_types.selectors import Selector
from sidecar.log.directory import FleetDirectory
from sidecar.log.shell import LogShell, ShellTiming
from sidecar.log.watch import LogWatch
from tests.support.manual_time import SECOND_NS, ManualTime, until

MIB = 1 << 20
LEASE_NS = 3 * SECOND_NS
SETTLE_NS = 5 * SECOND_NS
_FAR_NS = 1 << 62

Trace = list[tuple[Any, ...]]


class TracedValidity(Validity):
    """Says when floors are raised."""

    trace: Trace

    def apply(self, record: LogRecord) -> None:
        self.trace.append(("floors", record.revision))
        super().apply(record)

    def restarting(self, boot: Boot) -> Turns[None]:
        yield from super().restarting(boot)
        self.trace.append(("restart", boot.tip.revision))


class TracedStore(ArenaStore):
    """Says when pages are hidden, events published, and freshness granted."""

    trace: Trace

    def hiding(self, *selectors: Selector) -> Iterator[int]:
        for hidden in super().hiding(*selectors):
            self.trace.append(("hidden", hidden))
            yield hidden

    def publish(self, event: Event, stamp: Stamp) -> int:
        view = super().publish(event, stamp)
        self.trace.append(("published", type(event).__name__, stamp.revision))
        return view

    def publish_freshness(self, freshness_ns: int) -> None:
        super().publish_freshness(freshness_ns)
        self.trace.append(("fresh", freshness_ns))

    def drain(self) -> None:
        super().drain()
        self.trace.append(("closed",))


class TroubledLog(LocalLog):
    """`trouble` is raised by every verb while it is set; `before_renewal` runs while a renewal is on its way, `before_news`
    while a wake-up is.
    """

    def __init__(self, *, clock: ManualTime, trace: Trace, limits: LogLimits | None = None) -> None:
        super().__init__(clock=clock, limits=limits)
        self.trace = trace
        self.trouble: LogUnavailableError | None = None
        self.before_renewal: Callable[[], Awaitable[None]] | None = None
        self.before_news: Callable[[], Awaitable[None]] | None = None
        self.members_seen: list[Member] = []
        self.known: list[bytes] = []

    def _call(self, verb: str) -> Any:
        if self.trouble is not None:
            self.trace.append(("failed", verb))
            raise self.trouble
        self.trace.append(("called", verb))
        return super()._call(verb)

    async def renew(self, member: Member, *, number: int, deadline_ns: int) -> Renewal:
        self.members_seen.append(member)
        self.trace.append(("renewing", member.applied.revision, member.acknowledged, self._clock.now_ns()))
        if self.before_renewal is not None:
            await self.before_renewal()
        return await super().renew(member, number=number, deadline_ns=deadline_ns)

    async def woken(self, after: int, *, digest: bytes, deadline_ns: int) -> Sequence[LogRecord] | None:
        news = await super().woken(after, digest=digest, deadline_ns=deadline_ns)
        if self.before_news is not None:
            await self.before_news()
        return news

    async def know(self, canonicals: Any, *, deadline_ns: int) -> Stamp:
        tip = await super().know(canonicals, deadline_ns=deadline_ns)
        self.known += canonicals
        return tip


class FollowingSite:
    """One sidecar's following, without its services."""

    def __init__(self, *, limits: LogLimits | None = None, settle_ns: int = SETTLE_NS, **config: Any) -> None:
        defaults: dict[str, Any] = {
            "arena_bytes": 4 * MIB, "segment_bytes": MIB // 8, "client_rows": 6, "leases_per_client": 256,
            "ring_records": 4096, "prefault": False,
        }  # fmt: skip
        self.trace: Trace = []
        # from the real boot time on, since the native half compares freshness with that
        self.time = ManualTime(BOOTTIME_NS())
        self.validity = TracedValidity(skew_ms=1000)
        self.validity.trace = self.trace
        self.store = TracedStore(ArenaConfig(**{**defaults, **config}), clock=self.time, judge=self.validity)
        self.store.trace = self.trace
        self.log = TroubledLog(clock=self.time, trace=self.trace, limits=limits)
        self.settle_ns = settle_ns
        self.admit: Callable[[], Awaitable[None]] | None = None
        self.look: Callable[[], Awaitable[None]] | None = None
        self.call_ns = SECOND_NS
        self.durations: list[float] = []
        self.listings = Listings()
        self.directory: FleetDirectory
        self.shell: LogShell

    def make_shell(self) -> LogShell:
        self.directory = FleetDirectory(
            self.log, self.store, self.listings, clock=self.time, call_ns=self.call_ns, pause=self.time.pause
        )
        return LogShell(
            self.log,
            self.store,
            self.validity,
            clock=self.time,
            timing=ShellTiming(lease_ns=LEASE_NS, settle_ns=self.settle_ns, call_ns=self.call_ns),
            note=MemberNote(lease_ns=LEASE_NS, engines_keep=0, host="here", pid=7, version="1"),
            admit=self.admit,
            enter=self.directory.enter_all,
            pause=self.time.pause,
            observe=self.durations.append,
        )

    @asynccontextmanager
    async def running(self, *, joined: bool = True) -> AsyncIterator[LogShell]:
        """Follow; ends with an error of the shell, if it had one. With `joined`, wait for the first confirmation."""
        self.shell = self.make_shell()
        self.directory.follow(self.shell)
        watch = LogWatch(
            self.shell, self.log, self.directory, clock=self.time, call_ns=self.call_ns, look=self.look, pause=self.time.pause
        )  # fmt: skip
        running = [asyncio.create_task(work.run()) for work in (self.shell, watch)]
        try:
            if joined:
                await until(self.shell.confirmed.is_set, what="the first confirmation")
                await until(self.shell.idle.is_set, what="rest")
            yield self.shell
        finally:
            for task in running:
                task.cancel()
            ends = await asyncio.gather(*running, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def append(self, *events: Selected | WeightsAnnounced) -> int:
        """Append as somebody else would; returns the last revision."""
        revision = 0
        for event in events:
            appended = await LocalLog.append(
                self.log, LogEntry(event=event), request_id=os.urandom(16), deadline_ns=_FAR_NS
            )
            revision = appended.stamp.revision
        return revision

    async def caught_up(self, revision: int) -> None:
        """Wait until a revision is applied and acknowledged to the log, moving the clock where somebody waits for it."""
        for _ in range(1000):
            state = self.shell.state()
            applied = state.position.revision if state.position is not None else -1
            told = self.log.members_seen[-1].acknowledged if self.log.members_seen else -1
            if applied >= revision and told >= revision:
                return
            await self.time.run(0.01)
        raise AssertionError(f"revision {revision} was not applied and acknowledged: {self.shell.state()}")

    def close(self) -> None:
        self.store.check_invariants()
        self.store.close()


def BOOTTIME_NS() -> int:
    import time

    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
