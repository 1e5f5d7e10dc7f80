"""FakePageStore: the PageStore protocol over dictionaries, for tests of whatever sits on top of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kv_types.errors import BufferMismatchError, InvalidArgumentError, UnknownNamespaceError
from kv_types.ids import NamespaceId, PageKey, Stamp, new_log_incarnation
from kv_types.namespace import Namespace
from kv_types.outcomes import (
    KNOWN,
    STORED,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Tier,
)
from kv_types.page_keys import pack_keys
from kv_types.page_layout import PageLayout


@dataclass(frozen=True, slots=True)
class _Page:
    parent: PageKey | None
    data: bytes


class FakePageStore:
    """Unbounded and never evicting, unless `capacity_pages` says when it is FULL. `tier` is what its hits claim."""

    def __init__(self, *, tier: Tier = Tier.L2, capacity_pages: int | None = None) -> None:
        self._tier = tier
        self._capacity_pages = capacity_pages
        self._page_bytes: dict[NamespaceId, int] = {}
        self._pages: dict[tuple[NamespaceId, PageKey], _Page] = {}
        self._stamp = Stamp(new_log_incarnation(), 0)
        self._counts: Counter[str] = Counter(requested_pages=0)

    def register(self, namespace: Namespace) -> NamespaceId:
        self._page_bytes[namespace.id] = PageLayout.of(namespace).page_bytes
        return namespace.id

    def hide(self, namespace: NamespaceId, key: PageKey) -> None:
        """Remove a page and whatever stands on it, and advance the log."""
        self._pages.pop((namespace, key), None)
        for (space, above), page in list(self._pages.items()):
            if space == namespace and page.parent == key:
                self.hide(namespace, above)
        self._stamp = Stamp(self._stamp.incarnation, self._stamp.revision + 1)

    def look_up(self, namespace: NamespaceId, keys: Sequence[PageKey]) -> LookUpOutcome:
        self._size_of(namespace)
        pack_keys(keys)
        return self._outcome(self._prefix(namespace, keys), len(keys))

    def get(
        self, namespace: NamespaceId, keys: Sequence[PageKey], destinations: Sequence[memoryview]
    ) -> LookUpOutcome:
        page_bytes = self._size_of(namespace)
        pack_keys(keys)
        _check_buffers(destinations, len(keys), page_bytes, writable=True)
        found = self._prefix(namespace, keys)
        for key, destination in zip(keys[:found], destinations, strict=False):
            destination.cast("B")[:] = self._pages[namespace, key].data
        self._counts["requested_pages"] += len(keys)
        self._counts[f"{self._tier.name.lower()}_pages"] += found
        self._counts["missed_pages_absent"] += len(keys) - found
        return self._outcome(found, len(keys))

    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        stamp: Stamp | None,
        start: int = 0,
    ) -> list[PutOutcome]:
        page_bytes = self._size_of(namespace)
        pack_keys(keys)
        if not 0 <= start <= len(keys):
            raise InvalidArgumentError(f"start {start} of a chain of {len(keys)} pages")
        _check_buffers(sources, len(keys) - start, page_bytes, writable=False)
        return [
            self._put_page(namespace, keys, start + index, bytes(source), stamp)
            for index, source in enumerate(sources)
        ]

    def stamp(self) -> Stamp | None:
        return self._stamp

    def statistics(self) -> Mapping[str, int]:
        return {**self._counts, "resident_pages": len(self._pages)}

    def _put_page(
        self, namespace: NamespaceId, keys: Sequence[PageKey], index: int, data: bytes, stamp: Stamp | None
    ) -> PutOutcome:
        if (
            stamp is None
            or stamp.incarnation != self._stamp.incarnation
            or stamp.revision > self._stamp.revision
        ):
            return Refused(RefuseReason.STAMP_FOREIGN)
        parent = keys[index - 1] if index else None
        if parent is not None and (namespace, parent) not in self._pages:
            return Refused(RefuseReason.PARENT_ABSENT)
        if (namespace, keys[index]) in self._pages:
            return KNOWN
        if self._capacity_pages is not None and len(self._pages) >= self._capacity_pages:
            return Refused(RefuseReason.FULL)
        self._pages[namespace, keys[index]] = _Page(parent, data)
        return STORED

    def _prefix(self, namespace: NamespaceId, keys: Sequence[PageKey]) -> int:
        absent = (index for index, key in enumerate(keys) if (namespace, key) not in self._pages)
        return next(absent, len(keys))

    def _outcome(self, found: int, asked: int) -> LookUpOutcome:
        if not found:
            return Miss(MissReason.ABSENT)
        return Hit(found, self._tier, MissReason.NONE if found == asked else MissReason.ABSENT)

    def _size_of(self, namespace: NamespaceId) -> int:
        if namespace not in self._page_bytes:
            raise UnknownNamespaceError(f"namespace {namespace.hex()} is not registered")
        return self._page_bytes[namespace]


def _check_buffers(buffers: Sequence[memoryview], count: int, page_bytes: int, *, writable: bool) -> None:
    if len(buffers) != count:
        raise BufferMismatchError(f"{len(buffers)} buffers for {count} pages")
    for buffer in buffers:
        if buffer.nbytes != page_bytes or not buffer.c_contiguous or (writable and buffer.readonly):
            raise BufferMismatchError(
                f"a buffer of {buffer.nbytes} bytes does not hold a page of {page_bytes}"
            )
