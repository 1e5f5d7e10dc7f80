"""PrefixIndex: page key → page number, closed under prefixes; no torch, no memory, no locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_types.errors import InvalidArgumentError
from kv_types.ids import PageKey


@dataclass(slots=True)
class _Node:
    page: int
    parent: PageKey | None
    children: set[PageKey] = field(default_factory=set)


class PrefixIndex:
    """A forest of resident chains. A key is here only while its parent is. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[PageKey, _Node] = {}
        self._keys: dict[int, PageKey] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: PageKey) -> bool:
        return key in self._nodes

    def find(self, key: PageKey) -> int | None:
        """Page number under a key, or None."""
        node = self._nodes.get(key)
        return None if node is None else node.page

    def longest_prefix(self, keys: Sequence[PageKey]) -> list[int]:
        """Page numbers of the resident keys at the front of a chain."""
        pages: list[int] = []
        for key in keys:
            node = self._nodes.get(key)
            if node is None:
                break
            pages.append(node.page)
        return pages

    def insert(self, key: PageKey, page: int, *, parent: PageKey | None) -> None:
        """Add a key on top of its parent (None: the first of a chain).

        Raises InvalidArgumentError when the key or the page number is here already or the parent is not.
        """
        if key in self._nodes:
            raise InvalidArgumentError(f"key {key.hex()} is indexed already, as page {self._nodes[key].page}")
        if page in self._keys:
            raise InvalidArgumentError(f"page {page} is indexed already, under {self._keys[page].hex()}")
        if parent is not None:
            below = self._nodes.get(parent)
            if below is None:
                raise InvalidArgumentError(f"parent {parent.hex()} of {key.hex()} is not indexed")
            below.children.add(key)
        self._nodes[key] = _Node(page, parent)
        self._keys[page] = key

    def remove_page(self, page: int) -> PageKey:
        """Remove a tail by its page number; returns its key. Raises InvalidArgumentError when it is none."""
        key = self._keys.get(page)
        if key is None:
            raise InvalidArgumentError(f"page {page} is not indexed")
        node = self._nodes[key]
        if node.children:
            raise InvalidArgumentError(f"page {page} carries {len(node.children)} pages; remove those first")
        self._drop(key, node)
        return key

    def remove_subtree(self, key: PageKey) -> list[int]:
        """Remove a key and what stands on it; returns page numbers, children first ([]: not here)."""
        if key not in self._nodes:
            return []
        order = [key]
        for above in order:  # grows while it is walked: breadth first
            order.extend(self._nodes[above].children)
        removed: list[int] = []
        for above in reversed(order):
            node = self._nodes[above]
            self._drop(above, node)
            removed.append(node.page)
        return removed

    def clear(self) -> list[int]:
        """Remove everything; returns page numbers, children first."""
        pages = list(reversed(self._keys))  # a parent came before what stands on it
        self._nodes.clear()
        self._keys.clear()
        return pages

    def _drop(self, key: PageKey, node: _Node) -> None:
        if node.parent is not None:
            self._nodes[node.parent].children.discard(key)
        del self._nodes[key]
        del self._keys[node.page]
