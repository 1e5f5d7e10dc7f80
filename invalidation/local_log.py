"""LocalLog: the invalidation log of one sidecar without a fleet, in its memory; same verbs, same bounds, same rules."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from invalidation.compaction import CompactionLimits, Kept, floors_of, keep
from invalidation.log import (
    Appended,
    Boot,
    Directory,
    FenceState,
    LogLimits,
    LogStatistics,
    LogUnavailableError,
    Member,
    MemberState,
    Renewal,
    RenewalStatus,
    checked_number,
)
from invalidation.records import NO_DIGEST, LogEntry, LogRecord, next_digest, read_record
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import INCARNATION_BYTES, LogIncarnation, Stamp, log_incarnation
from kv_types.limits import REPLICAS_MAX

ID_BYTES = 16


@dataclass(slots=True)
class _Incarnation:
    """What one incarnation holds."""

    id: LogIncarnation
    limits: LogLimits
    replicas: int = 0
    settled: bool = False
    tip: int = 0
    digest: bytes = NO_DIGEST
    records: deque[tuple[LogRecord, bytes]] = field(default_factory=deque)
    """Each with its payload."""
    kept: Kept = field(init=False)
    weights: OrderedDict[str, str] = field(default_factory=OrderedDict)
    members: OrderedDict[bytes, MemberState] = field(default_factory=OrderedDict)
    requests: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    namespaces: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        bounds = self.limits
        self.kept = Kept(
            limits=CompactionLimits(
                tombstones_per_scope=bounds.per_scope, tombstones=bounds.tombstones, scopes=bounds.scopes
            )
        )

    @property
    def first(self) -> int:
        """Revision of the oldest record kept, or of the next one."""
        return self.tip - len(self.records) + 1

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.id, self.tip)

    @property
    def confirmed(self) -> bool:
        """Nobody else has a copy, so that only a log which asks for none is confirmed."""
        return self.replicas == 0


class LocalLog:
    """An InvalidationLog that nobody else can reach: it ends with its process, and a new one is a new incarnation.

    `random` gives random bytes, for incarnations. Verbs answer at once; only `woken` waits. For one event loop.
    """

    def __init__(
        self, *, clock: Clock, random: Callable[[int], bytes] = os.urandom, limits: LogLimits | None = None
    ) -> None:
        self._clock = clock
        self._limits = limits or LogLimits()
        self._random = random
        self._grown = asyncio.Event()
        self._counters: Counter[str] = Counter()
        self._is_closed = False
        self._now = self._begin(replicas=0)

    async def append(self, entry: LogEntry, *, request_id: bytes, deadline_ns: int) -> Appended:
        """Append one entry; the same `request_id` again returns where its entry stands."""
        now = self._call("append")
        _check_id(request_id, "request id")
        if request_id not in now.requests:
            self._append(now, entry.encode())
            now.requests[request_id] = now.tip
            if len(now.requests) > self._limits.requests:
                now.requests.popitem(last=False)
        stamp = Stamp(now.id, now.requests[request_id])
        return Appended(stamp, now.settled, frozenset(now.members))

    async def renew(self, member: Member, *, number: int, deadline_ns: int) -> Renewal:
        """Register the member at its position, and return what follows."""
        now = self._call("renew")
        _check_id(member.id, "member id")
        checked_number(number, "the number of a renewal")
        for revision in (member.applied.revision, member.acknowledged, member.drained):
            checked_number(revision, "a revision")
        status = _compare(now, member)
        if status is RenewalStatus.OK:
            self._register(now, member, number)
        records = (
            _after(now, member.applied.revision, self._limits.batch) if status is RenewalStatus.OK else ()
        )
        return Renewal(status, now.id, number, now.tip, tuple(records), now.confirmed, now.replicas)

    async def boot(self, *, deadline_ns: int) -> Boot:
        """Return all that a follower starts from."""
        now = self._call("boot")
        return Boot(
            tip=now.stamp,
            digest=now.digest,
            floors=floors_of(now.kept),
            tombstones=dict(now.kept.tombstones),
            weights=dict(now.weights),
            settled=now.settled,
            replicas=now.replicas,
        )

    async def fence(self, *, deadline_ns: int) -> FenceState:
        """Return the members as they are."""
        now = self._call("fence")
        return FenceState(now.stamp, now.settled, dict(now.members), now.confirmed, now.replicas)

    async def fork(self, incarnation: LogIncarnation, *, deadline_ns: int) -> None:
        """Start a new incarnation if it still is this one."""
        now = self._call("fork")
        if now.id == incarnation:
            self._now = self._begin(replicas=now.replicas)
            self._wake()

    async def settle(self, incarnation: LogIncarnation, *, deadline_ns: int) -> bool:
        """Declare the incarnation settled if it still is this one."""
        now = self._call("settle")
        now.settled = now.settled or now.id == incarnation
        return now.id == incarnation

    async def leave(self, member: bytes, *, number: int, drained: bool, deadline_ns: int) -> bool:
        """Take a member out, or mark it as gone, unless it has renewed since."""
        now = self._call("leave")
        _check_id(member, "member id")
        checked_number(number, "the number of a renewal")
        state = now.members.get(member)
        if state is None or state.number != number:
            return False
        if drained:
            del now.members[member]
        else:
            now.members[member] = replace(state, gone=True)
        return True

    async def set_replicas(self, replicas: int, *, deadline_ns: int) -> None:
        """Set k. With any but 0 nothing is confirmed: a log in one process's memory has no replicas."""
        now = self._call("set_replicas")
        if not 0 <= replicas <= REPLICAS_MAX:
            raise InvalidArgumentError(f"a log has 0 to {REPLICAS_MAX} configured replicas; got {replicas}")
        now.replicas = replicas

    async def read(self, after: int, *, count: int, deadline_ns: int) -> tuple[Stamp, Sequence[LogRecord]]:
        """Return the first `count` of the kept records after a revision, and the tip."""
        now = self._call("read")
        most = checked_number(min(count, self._limits.batch), "a count of records", least=1)
        return now.stamp, tuple(_after(now, checked_number(after, "a revision"), most))

    async def know(self, canonicals: Sequence[bytes], *, deadline_ns: int) -> Stamp:
        """Enter namespaces; the one entered longest ago makes room."""
        now = self._call("know")
        for canonical in canonicals:
            now.namespaces[canonical] = None
            now.namespaces.move_to_end(canonical)
            if len(now.namespaces) > self._limits.namespaces:
                now.namespaces.popitem(last=False)
        return now.stamp

    async def namespaces(self, *, deadline_ns: int) -> Directory:
        """Return what was entered."""
        now = self._call("namespaces")
        return Directory(now.stamp, tuple(now.namespaces))

    async def woken(self, after: int, *, digest: bytes, deadline_ns: int) -> Sequence[LogRecord] | None:
        """Wait for a record after `after`, or another incarnation, until the deadline."""
        now = self._call("woken")
        checked_number(after, "a revision")
        while self._now is now and now.tip <= after and not self._is_closed:
            remaining_s = (deadline_ns - self._clock.now_ns()) / 1e9
            try:
                async with asyncio.timeout(max(remaining_s, 0.0)):
                    await self._grown.wait()
            except TimeoutError:
                return None
        if self._now is not now or now.tip <= after or after + 1 < now.first:
            return ()
        following, payload = now.records[after + 1 - now.first]
        is_same = next_digest(digest, payload) == following.digest
        return tuple(_after(now, after, self._limits.batch)) if is_same else ()

    async def statistics(self, *, deadline_ns: int) -> LogStatistics:
        """Return the sizes."""
        now = self._call("statistics")
        return LogStatistics(
            records=len(now.records),
            tombstones=len(now.kept.tombstones),
            floors=len(floors_of(now.kept)),
            members=len(now.members),
            requests=len(now.requests),
            counters=dict(self._counters),
        )

    async def close(self) -> None:
        """Answer no further call, and end those that wait."""
        self._is_closed = True
        self._wake()

    def _begin(self, *, replicas: int) -> _Incarnation:
        return _Incarnation(log_incarnation(self._random(INCARNATION_BYTES)), self._limits, replicas)

    def _call(self, verb: str) -> _Incarnation:
        if self._is_closed:
            raise LogUnavailableError("closed")
        self._counters[verb] += 1
        return self._now

    def _append(self, now: _Incarnation, payload: bytes) -> None:
        now.tip += 1
        now.digest = next_digest(now.digest, payload)
        record = read_record(now.tip, payload, now.digest)
        now.records.append((record, payload))
        if len(now.records) > self._limits.records:
            now.records.popleft()
        match record.event:
            case Selected(selector):
                keep(now.kept, selector, now.tip)
            case WeightsAnnounced(model, version):
                now.weights[model] = version
                now.weights.move_to_end(model)
                if len(now.weights) > self._limits.weights:
                    now.weights.popitem(last=False)
        self._wake()

    def _register(self, now: _Incarnation, member: Member, number: int) -> None:
        if member.id not in now.members and len(now.members) >= self._limits.members:
            gone = next((id for id, state in now.members.items() if state.gone), None)
            if gone is None:
                raise LogUnavailableError("members", f"{self._limits.members} members are all there may be")
            del now.members[gone]
        now.members[member.id] = MemberState(number, member.acknowledged, member.drained, member.note)

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


def _compare(now: _Incarnation, member: Member) -> RenewalStatus:
    """Whether the member's position is one of this log's, and what follows it is kept (rule R8)."""
    applied = member.applied.revision
    if member.applied.incarnation != now.id:
        return RenewalStatus.NEW_INCARNATION
    if applied > now.tip:
        return RenewalStatus.FORK
    if applied == now.tip:
        return RenewalStatus.OK if member.digest == now.digest else RenewalStatus.FORK
    if applied + 1 < now.first:
        return RenewalStatus.GAP
    following, payload = now.records[applied + 1 - now.first]
    is_same = next_digest(member.digest, payload) == following.digest
    return RenewalStatus.OK if is_same else RenewalStatus.FORK


def _after(now: _Incarnation, revision: int, count: int) -> list[LogRecord]:
    begin = max(revision + 1 - now.first, 0)
    return [record for record, _ in itertools.islice(now.records, begin, begin + count)]


def _check_id(value: bytes, what: str) -> None:
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise InvalidArgumentError(f"a {what} is exactly {ID_BYTES} random bytes; got {value!r}")
