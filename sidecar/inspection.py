"""Inspection: tells where the pages of a chain are on this node and why each would be served or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.limits import INSPECT_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.page_keys import unpack_keys
from kv_types.selectors import Origin

_PAGES_A_TURN = 64
_UNKNOWN = Origin(producer=None, tags=None, from_ms=0, until_ms=0, revision=0, lineage_known=False)


class PageFacts(Protocol):
    """What a store knows of one resident page."""

    @property
    def namespace(self) -> NamespaceId:
        """The namespace that it was put under."""
        ...

    @property
    def parent(self) -> PageKey | None:
        """Key of the page that it stands on; None at the root."""
        ...

    @property
    def stamp(self) -> Stamp:
        """Position that its request loaded before it reused anything."""
        ...

    @property
    def origin(self) -> Origin:
        """How it came to be."""
        ...

    @property
    def payload_bytes(self) -> int:
        """Size."""
        ...

    @property
    def leases(self) -> int:
        """Leases that pin it now."""
        ...

    @property
    def expires_in_ms(self) -> int:
        """Time to live that is left; -1: no end."""
        ...

    @property
    def last_access_ms_ago(self) -> int:
        """Time since it was last read; -1: not yet."""
        ...


class InspectedStore(Protocol):
    """What inspection needs of the node's pages."""

    def inspect(self, key: PageKey) -> PageFacts | None:
        """What is visible under a key; None: nothing."""
        ...

    def freshness_ns(self) -> int:
        """Boot-clock time until which anything is served."""
        ...


class Explaining(Protocol):
    """What inspection needs of the validity that judges this sidecar's commits."""

    @property
    def position(self) -> Stamp | None:
        """How far the log has been read; None before it has."""
        ...

    def explain(
        self,
        namespace: Namespace,
        stamp: Stamp,
        origin: Origin,
        chain: Callable[[], Sequence[PageKey] | None],
    ) -> str:
        """Say which record forbids a page of this stamp; empty where none does."""
        ...


@dataclass(frozen=True, slots=True)
class PageReport:
    """One page: what the store has under its key, and why it would not be served (empty: it would)."""

    key: PageKey
    facts: PageFacts | None
    why: str


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Pages in their order, and where in the log this sidecar stands."""

    pages: Sequence[PageReport]
    position: Stamp | None


class Inspection:
    """Reads the store and the validity of one sidecar. All calls run on the store's own thread."""

    def __init__(self, store: InspectedStore, validity: Explaining, *, clock: Clock) -> None:
        self._store = store
        self._validity = validity
        self._clock = clock

    async def chain(self, packed: bytes, *, start: int, namespace: Namespace | None) -> ChainReport:
        """Tell about pages `start`… of a chain (n × 32 bytes), at most INSPECT_PAGES_MAX of them.

        A chain ends for whoever looks it up at its first page that is not here: those behind it are told about, as not
        reachable. `namespace`, where it is known, lets the first absent page be judged: which record a put of it would
        have to be newer than. Raises InvalidArgumentError, LimitExceededError.
        """
        keys = unpack_keys(packed)
        if not start < len(keys):
            raise InvalidArgumentError(f"start={start} is behind the chain's {len(keys)} pages")
        stale = self._stale()
        broken_at = await self._first_absent(keys[:start])
        pages = []
        for index in range(start, min(len(keys), start + INSPECT_PAGES_MAX)):
            if index % _PAGES_A_TURN == 0:
                await asyncio.sleep(0)
            facts = self._store.inspect(keys[index])
            if broken_at is None and (facts is None or _misplaced(facts, keys, index)):
                broken_at = index
                why = self._absent(facts, keys[: index + 1], namespace)
            elif broken_at is not None:
                why = f"page {broken_at} of the chain is not here, so that nobody gets further than that"
            else:
                why = stale
            pages.append(PageReport(keys[index], facts, why))
        return ChainReport(pages, self._validity.position)

    async def _first_absent(self, keys: Sequence[PageKey]) -> int | None:
        for index, key in enumerate(keys):
            if index % _PAGES_A_TURN == 0:
                await asyncio.sleep(0)
            facts = self._store.inspect(key)
            if facts is None or _misplaced(facts, keys, index):
                return index
        return None

    def _stale(self) -> str:
        if self._clock.now_ns() < self._store.freshness_ns():
            return ""
        return "this sidecar serves nothing now: the log is not confirmed; see `stratakv status`"

    def _absent(self, facts: PageFacts | None, chain: Sequence[PageKey], namespace: Namespace | None) -> str:
        if facts is not None:
            return "it is here, but stands on another page than the one before it in this chain"
        position = self._validity.position
        if namespace is None or position is None:
            return "not on this node"
        forbidden = self._validity.explain(namespace, Stamp(position.incarnation, 0), _UNKNOWN, lambda: chain)
        return f"not on this node; {forbidden}" if forbidden else "not on this node"


def _misplaced(facts: PageFacts, keys: Sequence[PageKey], index: int) -> bool:
    """Whether the page under a key stands on another one than the chain says; a bare key says nothing."""
    return len(keys) > 1 and facts.parent != (keys[index - 1] if index else None)
