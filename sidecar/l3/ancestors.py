"""AncestorKeeper: what a page that is stored in L3 stands on shall be there too, and not grow old before it.

A node whose arena has the head of a prompt never asks L3 for it, so that for Redis the head is what was used least, and goes
first: then everything behind it is there in vain. So whoever stores pages gives their ancestors their time anew, now and
then, and stores those again that have gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cache_l2.store import ArenaStore
from cache_l3.record_store import RecordName, RecordStore
from kv_types.clock import Clock
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import (
    ANCESTORS_WALKED_MAX,
    L3_KEPT_PAGES_MAX,
    L3_KEPT_S,
    L3_PROBE_PAGES_MAX,
    L3_RESTORED_PAGES_MAX,
)
from kv_types.outcomes import MissReason
from kv_types.record import PageDescription
from sidecar.l3.recent_keys import RecentKeys

_GONE = (MissReason.ABSENT, MissReason.CORRUPT)


class AncestorKeeper:
    """Remembers which pages were in L3 a short while ago."""

    def __init__(self, store: ArenaStore, records: RecordStore, *, clock: Clock, ttl_s: int) -> None:
        self._store = store
        self._records = records
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept = RecentKeys(keys_max=L3_KEPT_PAGES_MAX, age_ns_max=int(L3_KEPT_S * 1e9))

    def there(self, keys: Iterable[PageKey]) -> None:
        """These are in L3 now."""
        self._kept.note(keys, now_ns=self._clock.now_ns())

    async def missing(self, pages: Sequence[PageDescription], *, deadline_ns: int) -> list[int]:
        """Give the ancestors of pages their time anew; returns the instances of resident ones that L3 lacks, parents first."""
        own = {page.key for page in pages}
        missing: list[int] = []
        for page in pages:
            if page.parent is not None and page.parent not in own and not self._is_kept(page.parent):
                missing += await self._missing_above(page.namespace, page.parent, deadline_ns)
        return missing

    async def _missing_above(self, namespace: NamespaceId, parent: PageKey, deadline_ns: int) -> list[int]:
        chain = self._store.chain(parent, pages_max=ANCESTORS_WALKED_MAX) or []
        keys = [key for key in chain if not self._is_kept(key)]
        missing: list[int] = []
        for begin in range(0, len(keys), L3_PROBE_PAGES_MAX):
            missing += await self._missing_of(
                namespace, keys[begin : begin + L3_PROBE_PAGES_MAX], deadline_ns
            )
        return missing

    def _is_kept(self, key: PageKey) -> bool:
        return self._kept.has(key, now_ns=self._clock.now_ns())

    def _ttl_of(self, key: PageKey) -> int:
        """No record outlives its page's time, as far as this node knows it."""
        instance = self._store.instance(key)
        left_s = None if instance is None else self._store.expires_in_s(instance)
        return self._ttl_s if left_s is None else max(1, min(self._ttl_s, left_s))

    async def _missing_of(
        self, namespace: NamespaceId, keys: Sequence[PageKey], deadline_ns: int
    ) -> list[int]:
        names = [RecordName(namespace, key) for key in keys]
        ttl_s = {name: self._ttl_of(name.key) for name in names}
        if await self._records.refresh(ttl_s, deadline_ns=deadline_ns) == len(names):
            self.there(keys)
            return []
        missing = []
        found = await self._records.probe(names, deadline_ns=deadline_ns)
        self.there(key for key, there in zip(keys, found, strict=True) if not isinstance(there, MissReason))
        gone = [key for key, there in zip(keys, found, strict=True) if there in _GONE]
        for key in gone[:L3_RESTORED_PAGES_MAX]:
            await asyncio.sleep(0)
            instance = self._store.instance(key)
            if instance is not None:
                missing.append(instance)
        return missing
