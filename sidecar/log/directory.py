"""FleetDirectory: enters the namespaces that are registered here into the fleet's directory, before anything is stored there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Protocol

from cache_l2.namespaces import NamespaceRecord
from invalidation.listing import Listings
from invalidation.log import InvalidationLog, LogUnavailableError
from kv_types.clock import Clock, Pause
from kv_types.errors import LogUnreachableError
from kv_types.ids import LogIncarnation, NamespaceId, Stamp
from kv_types.limits import LISTING_S_MAX, LOG_BACKOFF_S_MAX, LOG_KNOW_AGAIN_S, LOG_NAMESPACES_BATCH_MAX

_SECOND_NS = 1_000_000_000
_DIRECTORY_S = 0.25
_FIRST_PAUSE_S = 0.0005
_PAUSE_GROWTH = 1.5


class ListsNamespaces(Protocol):
    """What whoever registers namespaces needs of the fleet's directory."""

    def is_listed(self, namespace: NamespaceId) -> bool:
        """Whether what is begun now may be stored under it."""
        ...

    async def list_namespace(self, record: NamespaceRecord) -> None:
        """Return once it is listed. Raises LogUnreachableError."""
        ...


class RegisteringStore(Protocol):
    """What the directory needs of the node's store."""

    def namespaces(self) -> Sequence[NamespaceRecord]:
        """Every namespace that is registered, in the order of registration."""
        ...


class FollowingShell(Protocol):
    """What the directory needs of whoever follows the log."""

    @property
    def position(self) -> Stamp | None:
        """How far the log has been followed; None before it was joined."""
        ...

    @property
    def is_following(self) -> bool:
        """Whether the log answered at the last call."""
        ...

    def wake(self) -> None:
        """The log may have grown: look now."""
        ...


class FleetDirectory:
    """This sidecar's entries in the fleet's directory of namespaces. Everything runs on one event loop.

    A namespace is *listed* once the directory has it and this sidecar has followed the log to there; what is begun from
    then on may be stored under it (`invalidation.listing`). Clients are told of a namespace's registration only then,
    which takes one call of the log for one that is new. Another incarnation's directory is empty: what is registered is
    entered there before that incarnation is joined.
    """

    def __init__(
        self,
        log: InvalidationLog,
        store: RegisteringStore,
        listings: Listings,
        *,
        clock: Clock,
        call_ns: int,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._log = log
        self._store = store
        self._listings = listings
        self._clock = clock
        self._call_ns = call_ns
        self._pause = pause
        self._shell: FollowingShell | None = None
        self._entered_ns: dict[NamespaceId, int] = {}
        """When each was entered last."""
        self._failed_ns: int | None = None

    def follow(self, shell: FollowingShell) -> None:
        """Say who follows the log; called once, before anything else."""
        self._shell = shell

    def is_listed(self, namespace: NamespaceId) -> bool:
        """Whether what is begun now may be stored under it."""
        return self._listings.lists(namespace, self._position)

    async def list_namespace(self, record: NamespaceRecord) -> None:
        """Return once it is listed. Takes LISTING_S_MAX at most, and no time while the log is known not to answer.

        Raises LogUnreachableError where it could not be listed by then.
        """
        until_ns = self._clock.now_ns() + int(LISTING_S_MAX * _SECOND_NS)
        pause_s, why = _FIRST_PAUSE_S, ""
        while not self.is_listed(record.id):
            why = why or self._why_not_now(until_ns)
            if why:
                raise LogUnreachableError(
                    f"the log of the fleet has not entered namespace {record.id.hex()[:16]} in its directory ({why}): "
                    "nothing can be stored under it before; see what `stratakv status` says of the log"
                )
            if self._is_entered(record.id):  # by a revision that is still being applied here
                await self._pause(pause_s)
                pause_s *= _PAUSE_GROWTH
            else:
                why = await self._try_to_enter(record, until_ns)

    async def enter_all(self) -> LogIncarnation | None:
        """Enter all that is registered, and return the incarnation that has it; None where nothing is registered.

        Called before the log is read for joining it: so whatever stamp that gives, the directory had them by then.
        Raises LogUnavailableError.
        """
        records = self._store.namespaces()
        if not records:
            return None
        return (await self._enter(records, self._clock.now_ns() + self._call_ns)).incarnation

    async def run(self) -> None:
        """Enter what is not yet, and all of it now and then: the directory forgets what it has not heard of longest."""
        while True:
            await self._pause(_DIRECTORY_S)
            position = self._position
            if position is None or self._shell is None or not self._shell.is_following:
                continue
            fresh = self._to_enter(position)
            if not fresh:
                continue
            try:
                await self._enter(fresh, self._clock.now_ns() + self._call_ns)
            except LogUnavailableError:
                await self._pause(LOG_BACKOFF_S_MAX)

    @property
    def _position(self) -> Stamp | None:
        return None if self._shell is None else self._shell.position

    def _why_not_now(self, until_ns: int) -> str:
        now_ns = self._clock.now_ns()
        if self._shell is None or not self._shell.is_following:
            return "the log does not answer"
        if self._failed_ns is not None and now_ns < self._failed_ns + int(LOG_BACKOFF_S_MAX * _SECOND_NS):
            return "it has failed to just now"
        return "it takes too long" if now_ns >= until_ns else ""

    def _is_entered(self, namespace: NamespaceId) -> bool:
        position = self._position
        return position is not None and self._listings.has(namespace, position.incarnation)

    async def _try_to_enter(self, record: NamespaceRecord, until_ns: int) -> str:
        """Enter one; returns why that failed, or nothing."""
        try:
            await self._enter([record], min(until_ns, self._clock.now_ns() + self._call_ns))
        except LogUnavailableError as error:
            self._failed_ns = self._clock.now_ns()
            return str(error)
        assert self._shell is not None, "who has a position follows"
        if not self.is_listed(record.id):
            self._shell.wake()
        return ""

    async def _enter(self, records: Sequence[NamespaceRecord], deadline_ns: int) -> Stamp:
        tip = await self._log.know(
            [record.namespace.canonical for record in records], deadline_ns=deadline_ns
        )
        now_ns = self._clock.now_ns()
        self._listings.enter((record.id for record in records), tip)
        self._entered_ns.update((record.id, now_ns) for record in records)
        self._failed_ns = None
        return tip

    def _to_enter(self, position: Stamp) -> Sequence[NamespaceRecord]:
        """Those that the present incarnation's directory does not have from here, or has not heard of for long."""
        registered = self._store.namespaces()
        ids = {record.id for record in registered}
        self._listings.forget_others(ids)
        for namespace in self._entered_ns.keys() - ids:
            del self._entered_ns[namespace]
        old_ns = self._clock.now_ns() - int(LOG_KNOW_AGAIN_S * _SECOND_NS)
        due = (
            record
            for record in registered
            if not self._listings.has(record.id, position.incarnation)
            or self._entered_ns.get(record.id, old_ns) <= old_ns
        )
        return list(itertools.islice(due, LOG_NAMESPACES_BATCH_MAX))
