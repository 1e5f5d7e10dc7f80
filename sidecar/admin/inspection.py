"""Inspection: tells where the pages of a chain are on this node and why each would be served or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_l2.inspection import PageFacts
from invalidation.validity import Validity
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError
from kv_types.ids import PageKey, Stamp
from kv_types.limits import ANCESTORS_WALKED_MAX, INSPECT_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.page_keys import unpack_keys
from kv_types.selectors import Origin

_PAGES_A_TURN = 64
# What may be anything is selected by every selector of origins.
_UNKNOWN = Origin(producer=None, tags=None, from_ms=0, until_ms=0, revision=0, lineage_known=False)


class InspectedStore(Protocol):
    """What inspection needs of the node's pages."""

    def inspect(self, key: PageKey) -> PageFacts | None:
        """What is visible under a key; None: nothing."""
        ...

    def chain(self, key: PageKey, *, pages_max: int) -> Sequence[PageKey] | None:
        """Keys from the root to a visible page; None: more than `pages_max`."""
        ...


@dataclass(frozen=True, slots=True)
class PageReport:
    """One page: what the store has under its key, whether it would be served, and why or why not."""

    key: PageKey
    facts: PageFacts | None
    servable: bool
    why: str


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Pages in their order, and where in the log this sidecar stands."""

    pages: Sequence[PageReport]
    position: Stamp | None


class Inspection:
    """Reads the store and the validity of one sidecar. All calls run on the store's own thread."""

    def __init__(
        self, store: InspectedStore, validity: Validity, *, clock: Clock, freshness_ns: Callable[[], int]
    ) -> None:
        """`freshness_ns` gives the boot-clock time until which this sidecar serves anything."""
        self._store = store
        self._validity = validity
        self._clock = clock
        self._freshness_ns = freshness_ns

    async def chain(self, packed: bytes, *, start: int, namespace: Namespace | None) -> ChainReport:
        """Tell about pages `start`… of a chain (n × 32 bytes), at most INSPECT_PAGES_MAX of them.

        A chain ends for whoever looks it up at its first page that is not here: those behind it are told about, as not
        reachable. `namespace`, where it is known, lets the first absent page be judged: which record a put of it would
        have to be newer than. Raises InvalidArgumentError, LimitExceededError.
        """
        keys = unpack_keys(packed)
        if not start < len(keys):
            raise InvalidArgumentError(f"start={start} is behind the chain's {len(keys)} pages")
        broken_at = await self._broken_at(keys[:start])
        pages = []
        for index in range(start, min(len(keys), start + INSPECT_PAGES_MAX)):
            await asyncio.sleep(0)
            facts = self._store.inspect(keys[index])
            if broken_at is not None:
                why = f"page {broken_at} of the chain is not here, so that nobody gets further than that"
                pages.append(PageReport(keys[index], facts, servable=False, why=why))
                continue
            report = await self._report(keys, index, facts, namespace)
            if not _in_place(facts, keys, index):
                broken_at = index
            pages.append(report)
        return ChainReport(pages, self._validity.position)

    async def _broken_at(self, keys: Sequence[PageKey]) -> int | None:
        for index, key in enumerate(keys):
            if index % _PAGES_A_TURN == 0:
                await asyncio.sleep(0)
            if not _in_place(self._store.inspect(key), keys, index):
                return index
        return None

    async def _report(
        self, keys: Sequence[PageKey], index: int, facts: PageFacts | None, namespace: Namespace | None
    ) -> PageReport:
        key = keys[index]
        if facts is None:
            return PageReport(key, None, servable=False, why=await self._absent(keys[: index + 1], namespace))
        if not _in_place(facts, keys, index):
            why = "it is here, but stands on another page than the one before it in this chain"
            return PageReport(key, facts, servable=False, why=why)
        if self._clock.now_ns() >= self._freshness_ns():
            why = "this sidecar serves nothing now: the log is not confirmed; see `stratakv status`"
            return PageReport(key, facts, servable=False, why=why)
        terms = (
            facts.namespace.namespace,
            facts.stamp,
            facts.origin,
            lambda: self._store.chain(key, pages_max=ANCESTORS_WALKED_MAX),
        )
        refused = self._validity.judge(*terms)
        return PageReport(key, facts, servable=not refused, why=self._validity.explain(*terms))

    async def _absent(self, chain: Sequence[PageKey], namespace: Namespace | None) -> str:
        """Say what the stamp of a put of a page would have to be, of which nothing is known; that bisects for it."""
        position = self._validity.position
        if namespace is None or position is None:
            return "not on this node"
        needed, enough = 0, position.revision
        while needed < enough:
            await asyncio.sleep(0)
            middle = (needed + enough) // 2
            stamp = Stamp(position.incarnation, middle)
            if self._validity.judge(namespace, stamp, _UNKNOWN, lambda: chain):
                needed = middle + 1
            else:
                enough = middle
        if not needed:
            return "not on this node; no record selects it"
        below = Stamp(position.incarnation, needed - 1)
        told = self._validity.explain(namespace, below, _UNKNOWN, lambda: chain)
        return f"not on this node; a put of it needs a stamp of {needed} or later: {told}"


def _in_place(facts: PageFacts | None, chain: Sequence[PageKey], index: int) -> bool:
    """Whether a page is here and stands on the one before it in the chain; a bare key says nothing of what it stands on."""
    if facts is None:
        return False
    return len(chain) == 1 or facts.parent == (chain[index - 1] if index else None)
