"""Administration of the fleet through this sidecar: invalidate, announce, tell who is in it and where pages are. No gRPC."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from cache_l2.namespaces import NamespaceRecord
from invalidation.fence import Wait
from invalidation.log import FenceState, InvalidationLog, LogStatistics, LogUnavailableError
from invalidation.notes import MemberNote
from invalidation.records import LogEntry, LogRecord
from invalidation.timing import Timing
from kv_types.clock import Clock, Pause
from kv_types.errors import (
    InvalidArgumentError,
    LimitExceededError,
    LogUnreachableError,
    ProtocolError,
    UnknownNamespaceError,
)
from kv_types.events import Selected, WeightsAnnounced
from kv_types.ids import NamespaceId, Stamp
from kv_types.limits import (
    CALL_DEADLINE_S_DEFAULT,
    FENCE_POLL_S_MAX,
    INVALIDATE_SELECTORS_MAX,
    LOG_BATCH_RECORDS_MAX,
    LOG_FOLLOW_S_MAX,
    REPLICAS_MAX,
)
from kv_types.namespace import Namespace
from kv_types.selectors import Selector, may_be_same_weights
from sidecar.admin.fencing import Append, FenceResult, Fencing, derived_id
from sidecar.admin.looks import Looks
from sidecar.logs import logger

_SECOND_NS = 1_000_000_000
_DECODED_A_TURN = 64
_log = logger("administration")
_Answer = TypeVar("_Answer")


class Following(Protocol):
    """What administration needs of whoever follows the log for this sidecar."""

    @property
    def member(self) -> bytes:
        """This sidecar's id in the fleet, of this life."""
        ...

    @property
    def position(self) -> Stamp | None:
        """How far it has followed the log; None before it has."""
        ...

    def wake(self) -> None:
        """The log may have grown: look now."""
        ...


class CountingStore(Protocol):
    """What administration needs of the node's pages."""

    def census(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, int]]:
        """Count what any of the selectors selects, each page once, in steps of bounded work: (pages, bytes) of each."""
        ...

    def namespaces(self) -> Sequence[NamespaceRecord]:
        """Every namespace of this life."""
        ...


class AdmitReplicas(Protocol):
    """Judges a number of replicas that are to answer from now on."""

    async def __call__(self, replicas: int, *, force: bool) -> None:
        """Raise InvalidArgumentError with the remedy, LogUnavailableError; with `force` they need not be there yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Who is in the fleet, as the log has it."""

    state: FenceState
    statistics: LogStatistics


@dataclass(frozen=True, slots=True)
class KnownNamespaces:
    """Namespaces by id; `incomplete` says why those of the rest of the fleet are missing, empty where they are there.

    `position` is the log's tip when the fleet's directory was read, None where it was not: no page whose stamp is below it
    is in a namespace that is missing here.
    """

    by_id: Mapping[NamespaceId, Namespace]
    incomplete: str = ""
    position: Stamp | None = None


class Administration:
    """The verbs of an administrator. All calls run on the store's own thread.

    Raises LogUnreachableError where the log does not answer and nothing was changed, InvalidArgumentError and
    LimitExceededError for what the caller gave.
    """

    def __init__(
        self,
        following: Following,
        log: InvalidationLog,
        store: CountingStore,
        *,
        timing: Timing,
        clock: Clock,
        admit_replicas: AdmitReplicas | None = None,
        pause: Pause = asyncio.sleep,
        call_s: float = CALL_DEADLINE_S_DEFAULT,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`call_s` is what one call of the log may take. `admit_replicas` judges numbers of replicas; None: all are taken."""
        self._following = following
        self._log = log
        self._store = store
        self._timing = timing
        self._clock = clock
        self._admit_replicas = admit_replicas
        self._pause = pause
        self._wall_ms = wall_ms
        self._counting = asyncio.Lock()
        self._call_ns = int(call_s * _SECOND_NS)
        self._looks = Looks(log, clock, call_ns=self._call_ns)
        self._fencing = Fencing(
            log,
            me=following.member,
            looks=self._looks,
            timing=timing,
            clock=clock,
            pause=pause,
            call_s=call_s,
            appended=following.wake,
        )

    @property
    def member(self) -> bytes:
        """This sidecar's id in the fleet."""
        return self._following.member

    def end(self) -> None:
        """End every wait and stream: the sidecar goes down."""
        self._fencing.end()

    # --- what changes the log ---

    async def invalidate(
        self,
        selectors: Sequence[Selector],
        *,
        reason: str,
        author: str,
        wait: Wait | None,
        timeout_s: float,
        request_id: bytes,
    ) -> FenceResult:
        """Append one record a selector, in order, and wait for all; with the same `request_id` no selector comes twice."""
        _check_selectors(selectors)
        appends, seen = [], Counter[bytes]()
        for selector in selectors:
            said = selector.encode()
            part = derived_id(request_id, b"selector", said, str(seen[said]).encode())
            seen[said] += 1
            appends.append(self._append(Selected(selector), reason, author, part))
        _log.info(
            "invalidating", records=len(selectors), first=selectors[0].describe(), reason=reason, author=author,
            request=request_id.hex(),
        )  # fmt: skip
        return self._told(await self._fencing.append(appends, wait=wait, timeout_s=timeout_s), request_id)

    async def announce(
        self,
        model: str,
        version: str,
        *,
        invalidate_version: str | None,
        reason: str,
        author: str,
        wait: Wait | None,
        timeout_s: float,
        request_id: bytes,
    ) -> FenceResult:
        """Tell workers that `model` has weights `version` from now on, then invalidate what has others.

        `invalidate_version` is the one version that is invalidated; None: every other than `version`, whatever was
        announced before. Which version a log told last would be no answer: it may have lost that, or another call may
        announce at the same time, and what neither of the two names would stay.
        """
        announced = WeightsAnnounced(model, version)
        said = announced.encode()
        if invalidate_version is None:
            replaced = Selector(model=model, other_weights_than=version)
        elif may_be_same_weights(invalidate_version, version):
            raise InvalidArgumentError(
                f"version {version!r} can't be announced and invalidated at once: name the one that it replaces"
            )
        else:
            replaced = Selector(model=model, weights_version=invalidate_version)
        old = Selected(replaced)
        old_id = derived_id(request_id, b"replaced weights", said, old.selector.encode())
        appends = [
            self._append(announced, reason, author, derived_id(request_id, b"weights", said)),
            replace(self._append(old, reason, author, old_id), is_after=True),
        ]
        _log.info(
            "announcing weights", model=model, version=version, invalidates=replaced.describe(), reason=reason,
            author=author, request=request_id.hex(),
        )  # fmt: skip
        return self._told(await self._fencing.append(appends, wait=wait, timeout_s=timeout_s), request_id)

    async def await_fence(self, stamp: Stamp, *, wait: Wait, timeout_s: float) -> FenceResult:
        """Wait for records of an incarnation up to a revision."""
        return await self._fencing.wait(stamp, wait=wait, timeout_s=timeout_s)

    async def set_replicas(self, replicas: int, *, force: bool = False) -> None:
        """Set the number of configured replicas of the log; with `force` even if they are not there yet."""
        if not 0 <= replicas <= REPLICAS_MAX:
            raise InvalidArgumentError(f"the log has 0 to {REPLICAS_MAX} configured replicas; got {replicas}")
        judge = self._admit_replicas
        if judge is not None:
            await self._ask(lambda _: judge(replicas, force=force))
        await self._ask(lambda deadline_ns: self._log.set_replicas(replicas, deadline_ns=deadline_ns))
        _log.info("set the number of configured replicas", replicas=replicas)

    async def forget_members(self, ids: Sequence[bytes], *, all_gone: bool) -> list[bytes]:
        """Take members off the list whose processes are known to be no more; returns those that were.

        One that no fence has given up yet is watched for the fence's waiting time first: whoever renews stays.
        """
        members = (await self._state()).members
        chosen = [member for member in ids if member in members]
        chosen += [
            member for member, state in members.items() if all_gone and state.gone and member not in chosen
        ]
        windows = [self._window_s(members[member].note) for member in chosen if not members[member].gone]
        if windows:
            await self._pause(max(windows))
        forgotten = []
        for member in chosen:
            number = members[member].number
            if await self._leave(member, number):
                forgotten.append(member)
        return forgotten

    # --- what only reads ---

    async def members(self) -> Fleet:
        """Tell who is in the fleet."""
        state = await self._state()
        statistics = await self._ask(lambda deadline_ns: self._log.statistics(deadline_ns=deadline_ns))
        return Fleet(state=state, statistics=statistics)

    async def dry_run(self, selectors: Sequence[Selector]) -> tuple[int, int]:
        """Count what selectors would hide in L2 of this node: (pages, bytes), each page once."""
        _check_selectors(selectors)
        pages = size = 0
        async with self._counting:  # a store counts for one at a time
            for more_pages, more_bytes in self._store.census(selectors):
                pages, size = pages + more_pages, size + more_bytes
                await asyncio.sleep(0)
        return pages, size

    async def namespaces(self) -> KnownNamespaces:
        """Namespaces of the fleet and of this sidecar."""
        found = {record.namespace.id: record.namespace for record in self._store.namespaces()}
        try:
            directory = await self._ask(lambda deadline_ns: self._log.namespaces(deadline_ns=deadline_ns))
        except LogUnreachableError as error:
            return KnownNamespaces(found, str(error))
        unread = 0
        for index, canonical in enumerate(directory.canonicals):
            if index % _DECODED_A_TURN == 0:
                await asyncio.sleep(0)
            try:
                namespace = Namespace.from_canonical(canonical)
            except ProtocolError:
                unread += 1
            else:
                found.setdefault(namespace.id, namespace)
        missing = f"{unread} of the fleet's namespaces can't be read" if unread else ""
        return KnownNamespaces(found, missing, directory.tip)

    async def namespace(self, wanted: NamespaceId) -> Namespace:
        """A namespace of this sidecar or, else, of the fleet. Raises UnknownNamespaceError."""
        own = (record.namespace for record in self._store.namespaces() if record.id == wanted)
        if (found := next(own, None)) is not None:
            return found
        known = await self.namespaces()
        if wanted not in known.by_id:
            missing = f" ({known.incomplete})" if known.incomplete else ""
            raise UnknownNamespaceError(
                f"neither this sidecar nor its fleet knows the namespace {wanted.hex()}{missing}"
            )
        return known.by_id[wanted]

    async def records(
        self, *, after: int, incarnation: bytes, count: int, follow: bool
    ) -> AsyncGenerator[tuple[Stamp, LogRecord], None]:
        """Yield the kept records after a revision, oldest first, with their positions.

        `incarnation` is that of `after`; where it is not the present one, all records of the present one come. `count` 0:
        all there are. `follow`: then those that come, for up to LOG_FOLLOW_S_MAX; the log is read again only when this
        sidecar has heard of more.
        """
        until_ns = self._clock.now_ns() + int(LOG_FOLLOW_S_MAX * _SECOND_NS)
        left = count if count and not follow else None
        while True:
            batch = LOG_BATCH_RECORDS_MAX if left is None else min(left, LOG_BATCH_RECORDS_MAX)
            tip, records = await self._read(after, batch, patient_until_ns=until_ns if follow else 0)
            if incarnation and incarnation != tip.incarnation:
                after, incarnation = 0, tip.incarnation
                continue
            incarnation = tip.incarnation
            for record in records:
                after = record.revision
                yield Stamp(tip.incarnation, record.revision), record
            left = None if left is None else left - len(records)
            if records and after < tip.revision and left != 0:
                continue
            if not follow or not await self._news(Stamp(tip.incarnation, after), until_ns):
                return

    async def _read(
        self, after: int, count: int, *, patient_until_ns: int
    ) -> tuple[Stamp, Sequence[LogRecord]]:
        while True:
            try:
                return await self._ask(
                    lambda deadline_ns: self._log.read(after, count=count, deadline_ns=deadline_ns)
                )
            except LogUnreachableError:
                if self._fencing.ending or self._clock.now_ns() >= patient_until_ns:
                    raise
                await self._pause(FENCE_POLL_S_MAX)

    async def _news(self, known: Stamp, until_ns: int) -> bool:
        """Wait until this sidecar has followed the log past `known`; False when time is up or the sidecar goes down.

        Never answers at once: a sidecar that is behind the log's incarnation has news all the time.
        """
        while not self._fencing.ending and self._clock.now_ns() < until_ns:
            await self._pause(FENCE_POLL_S_MAX)
            position = self._following.position
            if position is not None and (
                position.incarnation != known.incarnation or position.revision > known.revision
            ):
                return True
        return False

    async def _state(self) -> FenceState:
        return await self._ask(
            lambda deadline_ns: self._looks.look(deadline_ns=deadline_ns), within_ns=self._looks.look_ns
        )

    async def _leave(self, member: bytes, number: int) -> bool:
        return await self._ask(
            lambda deadline_ns: self._log.leave(member, number=number, drained=True, deadline_ns=deadline_ns)
        )

    async def _ask(self, verb: Callable[[int], Awaitable[_Answer]], *, within_ns: int = 0) -> _Answer:
        try:
            return await verb(self._clock.now_ns() + (within_ns or self._call_ns))
        except LogUnavailableError as error:
            raise LogUnreachableError(
                f"the invalidation log does not answer ({error}); see what `stratakv status` says of it"
            ) from error

    def _append(
        self, event: Selected | WeightsAnnounced, reason: str, author: str, request_id: bytes
    ) -> Append:
        entry = LogEntry(event=event, reason=reason, author=author, appended_wall_ms=self._wall_ms())
        return Append(entry, request_id)

    def _window_s(self, note: str) -> float:
        told = MemberNote.decode(note)
        return self._timing.window_ns(lease_ns=None if told is None else told.lease_ns) / _SECOND_NS

    def _told(self, result: FenceResult, request_id: bytes) -> FenceResult:
        _log.info(
            "invalidated" if result.unconfirmed is None else "not confirmed",
            request=request_id.hex(), records=len(result.stamps), why=result.why, waited_ms=result.waited_ms,
            missing=len(result.missing), gone=len(result.gone),
            revision=result.stamps[-1].revision if result.stamps else None,
        )  # fmt: skip
        return result


def _check_selectors(selectors: Sequence[Selector]) -> None:
    if not 1 <= len(selectors) <= INVALIDATE_SELECTORS_MAX:
        raise LimitExceededError(
            f"one call takes 1 to {INVALIDATE_SELECTORS_MAX} selectors; got {len(selectors)}: name less, or more in one "
            "selector"
        )
