"""Applies what the log says to the arena in the order of rule R14: floors, pages, ring and view, and only then others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from invalidation.log import Boot
from invalidation.records import NO_DIGEST, LogRecord
from invalidation.turns import in_turns
from invalidation.validity import Validity
from kv_types.events import Event, LogStarted, Selected
from kv_types.ids import NO_INCARNATION, Stamp
from kv_types.limits import LOG_APPLY_RECORDS_MAX
from kv_types.selectors import EVERYTHING, Selector
from sidecar.log.view_positions import ViewPositions


class FollowedStore(Protocol):
    """What following the log needs of the arena's store."""

    def hiding(self, *selectors: Selector) -> Iterator[int]:
        """Hide what the selectors select in steps of bounded work; yields the pages hidden in each."""
        ...

    def publish(self, event: Event, stamp: Stamp) -> int:
        """Append to the ring and publish the next view; returns it."""
        ...


class LogApplier:
    """Owns the order. `validity` judges commits meanwhile, so it is told of records before their pages are hidden.

    Between two steps of hiding the event loop serves others: look-ups go on under the view that was published last, and
    commits are held against the new records already, so that nothing which they select can slip in behind the hiding.

    A batch is applied in chunks: all floors of a chunk, then all its pages, then its events one after the other. For
    each record its pages are hidden before its event and view are published, as R14 demands; that the pages of later
    records of the chunk are hidden by then as well makes no view promise more than it may. What it saves: a page is
    looked at once a chunk instead of once a record.
    """

    def __init__(
        self, validity: Validity, store: FollowedStore, *, observe: Callable[[float], None] | None = None
    ) -> None:
        """`observe` is told the seconds that each chunk took."""
        self._validity = validity
        self._store = store
        self._observe = observe
        self.position: Stamp | None = None
        """What has been hidden and published."""
        self.digest = NO_DIGEST
        """Digest of the log there."""
        self.acknowledged = ViewPositions()
        self.drained = ViewPositions()
        self.pages_hidden = 0
        self.records_applied = 0

    async def reset(self, boot: Boot) -> None:
        """Another incarnation, or the first: every page is void, and stamps of any other are refused from now on."""
        began = time.perf_counter()
        await in_turns(self._validity.restarting(boot))
        await self._hide([EVERYTHING])
        self.acknowledged.begin()
        self.drained.begin()
        self._publish(LogStarted(), boot.tip, boot.digest)
        self._observed(began)

    async def reapply(self, boot: Boot, *, after: int) -> None:
        """The same incarnation after a gap: hide what was selected since revision `after`; workers drop all of L1."""
        began = time.perf_counter()
        await in_turns(self._validity.restarting(boot))
        missed = [selector for selector, _ in self._validity.newer(after)]
        await asyncio.sleep(0)  # there may be thousands
        await self._hide(missed)
        self._publish(LogStarted(), boot.tip, boot.digest)
        self._observed(began)

    async def apply(self, records: Sequence[LogRecord]) -> None:
        """Apply the records that follow the position."""
        incarnation = self.position.incarnation if self.position is not None else NO_INCARNATION
        for begin in range(0, len(records), LOG_APPLY_RECORDS_MAX):
            began = time.perf_counter()
            chunk = records[begin : begin + LOG_APPLY_RECORDS_MAX]
            for record in chunk:
                self._validity.apply(record)
            await self._hide([one.event.selector for one in chunk if isinstance(one.event, Selected)])
            for record in chunk:
                self._publish(record.event, Stamp(incarnation, record.revision), record.digest)
            self.records_applied += len(chunk)
            self._observed(began)
            await asyncio.sleep(0)

    async def _hide(self, selectors: Sequence[Selector]) -> None:
        for hidden in self._store.hiding(*selectors):
            self.pages_hidden += hidden
            await asyncio.sleep(0)

    def _publish(self, event: Event, stamp: Stamp, digest: bytes) -> None:
        view = self._store.publish(event, stamp)
        self.position, self.digest = stamp, digest
        self.acknowledged.published(view, stamp.revision)
        self.drained.published(view, stamp.revision)

    def _observed(self, began: float) -> None:
        if self._observe is not None:
            self._observe(time.perf_counter() - began)
