"""One node's pages as administration and inspection see them: a dict under a fixed freshness, counted by its selectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kv_types.errors import UnknownNamespaceError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.selectors import Origin, Selector


@dataclass(frozen=True, slots=True)
class Named:
    """A namespace as a store hands it out."""

    namespace: Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePage:
    """A resident page."""

    namespace: NamespaceId
    parent: PageKey | None
    stamp: Stamp
    origin: Origin
    payload_bytes: int = 1000
    leases: int = 0
    expires_in_ms: int = -1
    last_access_ms_ago: int = -1


class FakeStore:
    """Pages by key. A selector counts a page by its namespace, its own key and its own origin."""

    def __init__(self, *namespaces: Namespace, freshness_ns: int = 1 << 62) -> None:
        self.pages: dict[PageKey, FakePage] = {}
        self.known = list(namespaces)
        self.fresh_until_ns = freshness_ns

    def add(self, space: Namespace, key: PageKey, parent: PageKey | None, stamp: Stamp) -> FakePage:
        origin = Origin(producer=b"p", tags=(b"t",), from_ms=1, until_ms=2, revision=stamp.revision)
        self.pages[key] = FakePage(namespace=space.id, parent=parent, stamp=stamp, origin=origin)
        return self.pages[key]

    def census(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, int]]:
        for key, page in self.pages.items():
            space = self.namespace(page.namespace).namespace
            if any(
                one.matches_namespace(space)
                and one.matches_origin(page.origin, skew_ms=0)
                and one.key in (None, key)
                for one in selectors
            ):
                yield 1, page.payload_bytes

    def namespaces(self) -> Sequence[Named]:
        return [Named(space) for space in self.known]

    def namespace(self, namespace: NamespaceId) -> Named:
        for space in self.known:
            if space.id == namespace:
                return Named(space)
        raise UnknownNamespaceError(namespace.hex())

    def inspect(self, key: PageKey) -> FakePage | None:
        return self.pages.get(key)

    def chain(self, key: PageKey) -> Sequence[PageKey] | None:
        keys: list[PageKey] = []
        at: PageKey | None = key
        while at is not None:
            keys.insert(0, at)
            at = self.pages[at].parent
        return keys

    def freshness_ns(self) -> int:
        return self.fresh_until_ns
