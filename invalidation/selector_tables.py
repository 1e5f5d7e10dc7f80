"""SelectorTables: what the log selects since when, laid out by what must be known of a page to say whether it is selected."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from invalidation.compaction import CompactionLimits, Kept, floors_of, keep, loading
from invalidation.log import Boot
from invalidation.turns import Turns
from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import LOG_TURN_ENTRIES_MAX
from kv_types.selectors import Origin, Selector

OriginMatches = tuple[int, list[tuple[PageKey, int]]]
"""What selects pages of one origin: a revision, or else keys and their revisions."""


class SelectorTables:
    """Floors and tombstones at one position. Not thread-safe.

    `keys`, `fields` and `origins` hold the tombstones, each in the order of the revisions: those of a page's key, of fields of
    its namespace, and of how it came to be. `origin_memory` and `field_floors` are what judging remembers of them.
    """

    def __init__(self, limits: CompactionLimits) -> None:
        self.kept = Kept(limits=limits)
        self.newest = 0
        """Newest revision that selects anything."""
        self.keys: dict[PageKey, dict[Selector, int]] = {}
        self.fields: dict[Selector, int] = {}
        self.origins: dict[Selector, int] = {}
        self.newest_key = self.newest_origin = 0
        self.origin_memory: dict[tuple[NamespaceId, Origin, int], OriginMatches] = {}
        self.field_floors: OrderedDict[NamespaceId, tuple[int, int]] = OrderedDict()

    @classmethod
    def of(cls, boot: Boot, limits: CompactionLimits) -> Turns[SelectorTables]:
        """Make the tables of what a log says at its tip."""
        tables = cls(limits)
        tables.kept = yield from loading(boot.floors, boot.tombstones, limits=limits)
        for count, (selector, revision) in enumerate(tables.kept.tombstones.items(), 1):
            tables._index(selector, revision)
            if not count % LOG_TURN_ENTRIES_MAX:
                yield
        newest = next(reversed(tables.kept.tombstones.values()), 0)
        tables.newest = max(newest, *floors_of(tables.kept).values(), 0)
        return tables

    def select(self, selector: Selector, revision: int) -> None:
        """Take in a record that selects by a selector, newer than all before it. One of everything begins new tables."""
        self.newest = revision
        self._unindex(selector)
        dropped = keep(self.kept, selector, revision)
        if selector in self.kept.tombstones:
            self._index(selector, revision)
        for old in dropped:
            self._unindex(old)

    def statistics(self) -> Mapping[str, int]:
        """Sizes, all bounded."""
        return {
            "tombstones": len(self.kept.tombstones),
            "tombstones_of_keys": sum(map(len, self.keys.values())),
            "tombstones_of_namespace_fields": len(self.fields),
            "tombstones_of_origins": len(self.origins),
            "floors": len(floors_of(self.kept)),
            "namespaces_remembered": len(self.field_floors),
            "origins_remembered": len(self.origin_memory),
        }

    def _index(self, selector: Selector, revision: int) -> None:
        if selector.names_origin:
            self.origins[selector] = revision
            self.newest_origin = max(self.newest_origin, revision)
            self.origin_memory.clear()
        elif selector.key is not None:
            self.keys.setdefault(selector.key, {})[selector] = revision
            self.newest_key = max(self.newest_key, revision)
        else:
            self.fields[selector] = revision

    def _unindex(self, selector: Selector) -> None:
        if selector.names_origin:
            self.origins.pop(selector, None)
        elif selector.key is None:
            self.fields.pop(selector, None)
        elif selector.key in self.keys:
            self.keys[selector.key].pop(selector, None)
            if not self.keys[selector.key]:
                del self.keys[selector.key]
