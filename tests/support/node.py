"""One node's pages as administration and inspection see them: a dict, counted by its selectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cache_l2.inspection import PageFacts
from cache_l2.namespaces import NamespaceRecord
from cache_l2.pins import PinBoard
from kv_types.errors import UnknownNamespaceError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.selectors import Origin, Selector
from tests.support.pinned_arena import SLOT, FakePinnedArena

PINNED_MAX = 8
"""Pages that its quota of pins allows."""


class FakeStore:
    """Pages by key. A selector counts a page by its namespace, its own key and its own origin."""

    def __init__(self, *namespaces: Namespace) -> None:
        self.pages: dict[PageKey, PageFacts] = {}
        self.pinned = FakePinnedArena()
        self.pins = PinBoard(self.pinned, quota_bytes=PINNED_MAX * SLOT, find=self._find)
        self._records = [
            NamespaceRecord(space, space.id, number, 1000) for number, space in enumerate(namespaces)
        ]

    def add(self, space: Namespace, key: PageKey, parent: PageKey | None, stamp: Stamp) -> PageFacts:
        self.pages[key] = PageFacts(
            key=key,
            parent=parent,
            namespace=next(record for record in self._records if record.id == space.id),
            stamp=stamp,
            origin=Origin(producer=b"p", tags=(b"t",), from_ms=1, until_ms=2, revision=stamp.revision),
            payload_bytes=1000,
            leases=0,
            expires_in_ms=None,
            last_access_ms_ago=None,
        )
        return self.pages[key]

    def census(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, int]]:
        for key, page in self.pages.items():
            if any(
                one.matches_namespace(page.namespace.namespace)
                and one.matches_origin(page.origin, skew_ms=0)
                and one.key in (None, key)
                for one in selectors
            ):
                yield 1, page.payload_bytes

    def namespaces(self) -> Sequence[NamespaceRecord]:
        return self._records

    def namespace(self, namespace: NamespaceId) -> NamespaceRecord:
        record = self._find(namespace)
        if record is None:
            raise UnknownNamespaceError("not here")
        return record

    def _find(self, namespace: NamespaceId) -> NamespaceRecord | None:
        return next((record for record in self._records if record.id == namespace), None)

    def inspect(self, key: PageKey) -> PageFacts | None:
        return self.pages.get(key)

    def chain(self, key: PageKey, *, pages_max: int) -> Sequence[PageKey] | None:
        keys: list[PageKey] = []
        at: PageKey | None = key
        while at is not None:
            keys.insert(0, at)
            at = self.pages[at].parent
        return keys if len(keys) <= pages_max else None
