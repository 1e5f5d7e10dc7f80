"""Floors of validity: which stamps may still commit after what has been hidden. Pure; no clock, no arena.

A stamp is a revision of the present log. A page may be committed only if nothing that selects it, or anything it was
computed on, was recorded after its stamp (rules R2, R3). Forgetting a tombstone raises the floor of everything to its
revision, never less (rule R4): that may refuse a good page, it never lets a bad one in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from kv_types.ids import KEY_BYTES, NamespaceId
from kv_types.limits import NAMESPACES_MAX, TOMBSTONES_MAX

_Key = TypeVar("_Key", bound=bytes)


class Floors:
    """Revisions below which stamps are refused: for everything, for a namespace, for a page and what stands on it."""

    def __init__(self, *, tombstones_max: int = TOMBSTONES_MAX, namespaces_max: int = NAMESPACES_MAX) -> None:
        self._everything = 0
        self._namespaces: OrderedDict[NamespaceId, int] = OrderedDict()
        self._pages: OrderedDict[bytes, int] = OrderedDict()
        self._newest_page = 0
        self._tombstones_max = tombstones_max
        self._namespaces_max = namespaces_max

    def __len__(self) -> int:
        return len(self._pages) + len(self._namespaces)

    def hide_everything(self, revision: int) -> None:
        """Every stamp below `revision` is refused from now on; older, narrower floors say nothing any more."""
        self._everything = max(self._everything, revision)
        self._namespaces.clear()
        self._pages.clear()

    def hide_namespace(self, namespace: NamespaceId, revision: int) -> None:
        """Stamps below `revision` are refused for this namespace."""
        self._keep(self._namespaces, namespace, revision, self._namespaces_max)

    def hide_pages(self, packed: bytes, revision: int) -> None:
        """Stamps below `revision` are refused for these pages (n × 32 bytes) and what is computed on them."""
        self._newest_page = max(self._newest_page, revision)
        for at in range(0, len(packed), KEY_BYTES):
            self._keep(self._pages, packed[at : at + KEY_BYTES], revision, self._tombstones_max)

    def needs_chain(self, revision: int) -> bool:
        """Whether a stamp is so old that the keys of the whole chain decide; the usual answer is no."""
        return revision < self._newest_page

    def permits_namespace(self, namespace: NamespaceId, revision: int) -> bool:
        """Whether neither everything nor the namespace was hidden after `revision`."""
        return revision >= max(self._everything, self._namespaces.get(namespace, 0))

    def permits_pages(self, keys: Iterable[bytes], revision: int) -> bool:
        """Whether none of `keys` was hidden after `revision`."""
        return all(revision >= self._pages.get(key, 0) for key in keys)

    def _keep(self, table: OrderedDict[_Key, int], key: _Key, revision: int, limit: int) -> None:
        table[key] = max(revision, table.get(key, 0))
        table.move_to_end(key)
        while len(table) > limit:
            _, forgotten = table.popitem(last=False)
            self._everything = max(self._everything, forgotten)
