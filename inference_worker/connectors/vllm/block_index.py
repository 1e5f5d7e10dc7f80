"""Which of the engine's hashed blocks hold which pages, so that an event evicts exactly those that it selects. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from inference_worker.connectors.vllm.selection import Selection
from kv_types.engine_limits import ENGINE_BLOCKS_INDEXED_MAX, ENGINE_BLOCKS_PRUNED_AT_ONCE
from kv_types.ids import KEY_BYTES, NamespaceId
from kv_types.namespace import Namespace

_SpaceId = tuple[NamespaceId, ...]


class _Node:
    """One hashed block. Children form a list through `next` and `previous`, since most have one and some have thousands.

    `page` is the first block of the page that it belongs to; `keys` those of that page, one a rank, on its last block.
    """

    __slots__ = ("child", "hash", "keys", "next", "page", "parent", "previous", "space")

    def __init__(self, block_hash: bytes, space: _Space, parent: _Node | None, page: _Node | None) -> None:
        self.hash = block_hash
        self.space = space
        self.parent = parent
        self.page: _Node = self if page is None else page
        self.keys: tuple[bytes, ...] = ()
        self.child: _Node | None = None
        self.previous: _Node | None = None
        self.next: _Node | None = None
        if parent is not None:
            self.next = parent.child
            if self.next is not None:
                self.next.previous = self
            parent.child = self

    def children(self) -> Iterator[_Node]:
        child = self.child
        while child is not None:
            following = child.next
            yield child
            child = following

    def unlink(self) -> None:
        if self.previous is not None:
            self.previous.next = self.next
        elif self.parent is not None:
            self.parent.child = self.next
        if self.next is not None:
            self.next.previous = self.previous


class _Space:
    """The blocks of one computation: its namespaces, one a rank (none: it can't be named), and its pages by any rank's key.

    `tails` are blocks of pages that are not full: nobody knows yet which page they will be of.
    """

    __slots__ = ("is_gone", "namespaces", "nodes", "pages", "tails")

    def __init__(self, namespaces: tuple[Namespace, ...]) -> None:
        self.namespaces = namespaces
        self.nodes: dict[bytes, _Node] = {}
        self.pages: dict[bytes, _Node] = {}
        self.tails: dict[bytes, _Node] = {}
        self.is_gone = False


class BlockIndex:
    """Bounded: with each block that is noted a few old ones are looked at, and those that the pool has no more are forgotten.

    A block that the pool has lost stays as long as blocks above it are there: they are derived from it all the same.
    """

    def __init__(self, *, blocks_per_page: int, is_cached: Callable[[bytes], bool]) -> None:
        """`is_cached` tells whether the pool has a block of this hash."""
        self._blocks_per_page = blocks_per_page
        self._is_cached = is_cached
        self._spaces: dict[_SpaceId, _Space] = {}
        self._queue: deque[_Node] = deque()
        self._nodes = 0
        self._is_overfull = False

    def __len__(self) -> int:
        return self._nodes

    def note(
        self,
        namespaces: tuple[Namespace, ...],
        block_hashes: Sequence[bytes],
        keys: Sequence[bytes],
        *,
        start: int,
        end: int,
    ) -> None:
        """Blocks [start, end) of a chain were hashed. `keys`, one a rank: packed, of the pages from block `start`'s on.

        Where fewer keys are given than the blocks fill pages, those pages count as not full yet.
        """
        if self._is_overfull:
            return
        before = self._nodes
        space = self._space(namespaces)
        step = self._blocks_per_page
        node = self._node_before(space, block_hashes, start)
        first_page = start // step
        for index in range(start, end):
            node = self._add(space, block_hashes[index], node, starts_page=index % step == 0)
            if index % step == step - 1:
                at = (index // step - first_page) * KEY_BYTES
                self._name_page(node, tuple(chain[at : at + KEY_BYTES] for chain in keys))
        # Only now: what is being noted stands on blocks that may be gone from the pool.
        self._prune((self._nodes - before) * ENGINE_BLOCKS_PRUNED_AT_ONCE)
        if self._nodes > ENGINE_BLOCKS_INDEXED_MAX:
            self.clear()
            self._is_overfull = True  # what isn't told apart is taken by any event (I6)

    def take(self, selection: Selection) -> set[bytes] | None:
        """Hashes of all blocks that are selected or stand on such (R3), which are forgotten here; None: all of the pool's."""
        if self._is_overfull or selection.is_everything:
            self.clear()
            return None
        taken: set[bytes] = set()
        for space in list(self._spaces.values()):
            if selection.takes_all_of(space.namespaces):
                taken.update(space.nodes)
                self._drop(space)
            elif selection.by_key:
                self._take_pages(space, selection, taken)
        self._compact()
        return taken

    def clear(self) -> None:
        """Forget all."""
        for space in self._spaces.values():
            space.is_gone = True
        self._spaces.clear()
        self._queue.clear()
        self._nodes = 0
        self._is_overfull = False

    def _space(self, namespaces: tuple[Namespace, ...]) -> _Space:
        name = tuple(namespace.id for namespace in namespaces)
        space = self._spaces.get(name)
        if space is None:
            space = self._spaces[name] = _Space(namespaces)
        return space

    def _node_before(self, space: _Space, block_hashes: Sequence[bytes], start: int) -> _Node | None:
        """The node below block `start`; where it and others below are not known, they are noted without their keys."""
        known = start
        while known and block_hashes[known - 1] not in space.nodes:
            known -= 1
        node = space.nodes[block_hashes[known - 1]] if known else None
        for index in range(known, start):
            node = self._add(space, block_hashes[index], node, starts_page=index % self._blocks_per_page == 0)
        return node

    def _add(self, space: _Space, block_hash: bytes, parent: _Node | None, *, starts_page: bool) -> _Node:
        node = space.nodes.get(block_hash)
        if node is not None:
            return node
        node = _Node(block_hash, space, parent, None if starts_page or parent is None else parent.page)
        space.nodes[block_hash] = space.tails[block_hash] = node
        self._nodes += 1
        self._queue.append(node)
        return node

    def _name_page(self, last: _Node, keys: tuple[bytes, ...]) -> None:
        if last.keys or not keys or not all(keys):
            return
        last.keys = keys
        space = last.space
        namesakes = {space.pages.pop(key) for key in keys if key in space.pages}
        if namesakes:  # the engine tells apart what keys don't: such pages are of any key
            for twin in (*namesakes, last):
                space.tails[twin.page.hash] = twin.page
            return
        for key in keys:
            space.pages[key] = last
        for node in self._blocks_of_page(last):
            space.tails.pop(node.hash, None)

    @staticmethod
    def _blocks_of_page(last: _Node) -> Iterator[_Node]:
        node: _Node | None = last
        while node is not None:
            yield node
            node = None if node is node.page else node.parent

    def _take_pages(self, space: _Space, selection: Selection, taken: set[bytes]) -> None:
        is_unknown = False
        for key in selection.keys_of(space.namespaces):
            last = space.pages.get(key)
            if last is None:
                is_unknown = True
            else:
                self._take_closure(last.page, taken)
        if is_unknown:  # it may be the page that one of these becomes part of
            for tail in list(space.tails.values()):
                if tail.hash not in taken:
                    self._take_closure(tail, taken)
        if not space.nodes:
            self._drop(space)

    def _take_closure(self, first: _Node, taken: set[bytes]) -> None:
        first.unlink()
        waiting = [first]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children())
            taken.add(node.hash)
            self._forget(node)

    def _forget(self, node: _Node) -> None:
        space = node.space
        del space.nodes[node.hash]
        space.tails.pop(node.hash, None)
        for key in node.keys:
            space.pages.pop(key, None)
        self._nodes -= 1

    def _drop(self, space: _Space) -> None:
        space.is_gone = True
        self._nodes -= len(space.nodes)
        del self._spaces[tuple(namespace.id for namespace in space.namespaces)]

    def _is_known(self, node: _Node) -> bool:
        return not node.space.is_gone and node.space.nodes.get(node.hash) is node

    def _prune(self, looks: int) -> None:
        for _ in range(min(looks, len(self._queue))):
            node = self._queue.popleft()
            if not self._is_known(node):
                continue
            if node.child is not None or self._is_cached(node.hash):
                self._queue.append(node)
            else:
                self._prune_upwards(node)

    def _prune_upwards(self, leaf: _Node) -> None:
        """Forget a block that the pool has lost, and those below it that are lost too and that nothing else stands on."""
        node: _Node | None = leaf
        while node is not None and node.child is None and not self._is_cached(node.hash):
            node.unlink()
            self._forget(node)
            if (
                node.keys and node is not node.page
            ):  # which page the rest of its blocks is of can't be told any more
                for block in self._blocks_of_page(node):
                    if block is not node:
                        node.space.tails[block.hash] = block
            if not node.space.nodes:
                self._drop(node.space)
            node = node.parent

    def _compact(self) -> None:
        """Let go of what was forgotten, once it is the larger part."""
        if len(self._queue) > 2 * self._nodes:
            self._queue = deque(filter(self._is_known, self._queue))
