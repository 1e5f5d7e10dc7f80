"""Which content an adapter's name and path stand for in the engine's own cache, which tells adapters apart by those alone."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from kv_types.limits import ADAPTERS_REMEMBERED_MAX


class EngineAdapter(NamedTuple):
    """An adapter as the engine's own cache names it, and what it really is."""

    name: tuple[str, str]
    content: bytes


class AdapterContents:
    """Bounded. Whoever computes with another content than the one that is known must see to it that the former is gone."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def is_other(self, adapter: EngineAdapter | None) -> bool:
        """Whether the engine's cache may have blocks of this name that another content computed."""
        if adapter is None:
            return False
        known = self._known.get(adapter.name)
        if known is None:
            if len(self._known) >= ADAPTERS_REMEMBERED_MAX:
                return True
            self._known[adapter.name] = known = adapter.content
        self._known.move_to_end(adapter.name)
        return known != adapter.content

    def replace(self, adapter: EngineAdapter) -> None:
        """Nothing is left of what any name stood for, and this one stands for this content."""
        self._known.clear()
        self._known[adapter.name] = adapter.content
