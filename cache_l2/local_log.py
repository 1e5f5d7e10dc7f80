"""The log of one sidecar's life, kept on this node alone: what was hidden, since when, and what may still commit.

What is hidden is hidden in the order of rule R14: raise the floors, hide the pages, append to the ring, publish the
view; only then may anybody be told that it is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from cache_l2.floors import Floors
from cache_l2.reservations import PendingPage
from kv_types.events import Event, EverythingHidden, LogStarted, NamespaceHidden, encode_event, pages_hidden
from kv_types.ids import NamespaceId, Stamp, new_log_incarnation
from kv_types.limits import ANCESTORS_WALKED_MAX
from kv_types.outcomes import RefuseReason


class HidingArena(Protocol):
    """What the log needs of the arena."""

    def publish_event(self, *, incarnation: bytes, revision: int, kind: int, payload: bytes) -> int:
        """Append to the ring, then publish the next view."""
        ...

    def hide(self, keys: bytes) -> int:
        """Hide pages with everything computed on them."""
        ...

    def hide_namespace(self, namespace_slot: int) -> int:
        """Hide a namespace's pages."""
        ...

    def hide_all(self) -> int:
        """Hide every page."""
        ...

    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        """Return the visible entry under a key."""
        ...


class LocalLog:
    """A log with a random incarnation and revisions from 0. Not thread-safe."""

    def __init__(self, arena: HidingArena) -> None:
        self._arena = arena
        self._incarnation = new_log_incarnation()
        self._revision = 0
        self.floors = Floors()

    def start(self) -> None:
        """Publish the incarnation as the first event."""
        self._publish(LogStarted())

    def stamp(self) -> Stamp:
        """Present position."""
        return Stamp(self._incarnation, self._revision)

    def hide_pages(self, packed: bytes) -> int:
        """Hide pages (n × 32 bytes) and whatever was computed on them; returns the pages hidden."""
        if not packed:
            return 0
        self._revision += 1
        self.floors.hide_pages(packed, self._revision)
        hidden = self._arena.hide(packed)
        events = list(pages_hidden(packed))
        for event in events[:-1]:
            # a view before the last must not be stamped with the revision: its reader may still hold later pages in L1
            self._publish(event, revision=self._revision - 1)
        self._publish(events[-1])
        return hidden

    def hide_namespace(self, namespace: NamespaceId, number: int | None) -> int:
        """Hide a namespace's pages; `number` None: it was never registered here, so that it has none."""
        self._revision += 1
        self.floors.hide_namespace(namespace, self._revision)
        hidden = 0 if number is None else self._arena.hide_namespace(number)
        self._publish(NamespaceHidden(namespace))
        return hidden

    def hide_all(self) -> int:
        """Hide every page; returns how many."""
        self._revision += 1
        self.floors.hide_everything(self._revision)
        hidden = self._arena.hide_all()
        self._publish(EverythingHidden())
        return hidden

    def judge(self, page: PendingPage, stamp: Stamp, vetted: set[bytes]) -> RefuseReason:
        """Reason why a page of this stamp must not be published, NONE where nothing speaks against it (I3, R2, R5).

        `vetted` collects the pages that passed; a page on top of one of them needs no look at the whole chain.
        """
        if stamp.incarnation != self._incarnation or stamp.revision > self._revision:
            return RefuseReason.STAMP_FOREIGN
        if not self.floors.permits_namespace(page.namespace, stamp.revision):
            return RefuseReason.INVALIDATED
        if self.floors.needs_chain(stamp.revision):
            chain = (page.key,) if page.parent in vetted else self._chain(page)
            if chain is None or not self.floors.permits_pages(chain, stamp.revision):
                return RefuseReason.INVALIDATED
            vetted.add(page.key)
        return RefuseReason.NONE

    def _chain(self, page: PendingPage) -> Iterable[bytes] | None:
        """Keys of a page and its resident ancestors; None when they are more than may be looked at."""
        keys = [page.key]
        parent = page.parent
        while parent is not None:
            if len(keys) > ANCESTORS_WALKED_MAX:
                return None
            keys.append(parent)
            entry = self._arena.find(parent)
            if entry is None:
                break  # not resident: the arena refuses the page for want of its parent
            above = entry.get("parent")
            parent = above if isinstance(above, bytes) else None
        return keys

    def _publish(self, event: Event, *, revision: int | None = None) -> None:
        kind, payload = encode_event(event)
        self._arena.publish_event(
            incarnation=self._incarnation,
            revision=self._revision if revision is None else revision,
            kind=int(kind),
            payload=payload,
        )
