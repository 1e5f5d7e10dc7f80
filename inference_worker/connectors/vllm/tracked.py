"""One live request as the governor sees it: whether it is tainted, from where on, and which selected keys it may yet meet."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from inference_worker.connectors.vllm.block_index import BlockIndex
from inference_worker.connectors.vllm.governed import LiveRequest
from inference_worker.connectors.vllm.selection import Selection
from kv_types.engine_limits import ENGINE_KEYS_AWAITED_MAX
from kv_types.ids import KEY_BYTES


class BlockGeometry(NamedTuple):
    """Sizes of the engine's blocks and our pages."""

    block_tokens: int
    blocks_per_page: int

    @property
    def page_tokens(self) -> int:
        """Tokens of one page."""
        return self.block_tokens * self.blocks_per_page


class Tracked:
    """`view`: while it is tainted or awaits keys, the last one over which its chain was seen to be valid."""

    def __init__(self, live: LiveRequest, geometry: BlockGeometry) -> None:
        self.live = live
        self._geometry = geometry
        self.view = 0
        self.deferrals = 0
        self.is_until_gate = False
        """Whether only a new look-up ends the taint: the request was named under other weights."""
        self._tainted_from: int | None = None
        self._asked_from: int | None = None
        self._awaited: dict[int, set[bytes]] = {}
        self._noted = 0

    @property
    def is_tainted(self) -> bool:
        """Whether nothing of it may be hashed, saved or shared."""
        return self._tainted_from is not None

    @property
    def is_awaiting(self) -> bool:
        """Whether a page that it computes may turn out to be one that was selected."""
        return bool(self._awaited)

    def begin(self) -> None:
        """It holds nothing that was selected."""
        self.is_until_gate = False
        self._tainted_from = self._asked_from = None
        self._awaited.clear()
        self.forget_noted()

    def forget_noted(self) -> None:
        """Its blocks are others from now on, or are hashed anew: the index is told of all of them again."""
        self._noted = 0

    def taint(self, page: int) -> None:
        """What it holds from this page of its chain on was selected."""
        self._tainted_from = page if self._tainted_from is None else min(page, self._tainted_from)
        self._awaited.clear()

    def first_selected(self, selection: Selection, taken: Set[bytes]) -> int | None:
        """Index of the first selected page among those that it has begun to hold; None: none, as far as can be told.

        Keys of pages that it computes and whose tokens are not all there yet are remembered for `first_awaited`.
        """
        pages = -(-self.live.computed_tokens // self._geometry.page_tokens)
        if not pages:
            return None
        namespaces = self.live.namespaces
        if selection.takes_all_of(namespaces):
            return 0
        found = [] if not selection.by_key else self._found_keys(selection, pages)
        if self._geometry.blocks_per_page > 1 and taken:  # pages may share their first blocks
            blocks = -(-self.live.computed_tokens // self._geometry.block_tokens)
            hashes = self.live.block_hashes[:blocks]
            hit = next((index for index, block_hash in enumerate(hashes) if block_hash in taken), None)
            found += [] if hit is None else [hit // self._geometry.blocks_per_page]
        return min(found) if found else None

    def _found_keys(self, selection: Selection, pages: int) -> list[int]:
        namespaces = self.live.namespaces
        chains = self.live.page_keys(0, pages)
        page = selection.first_page(namespaces, chains)
        if page is not None:
            return [page]
        known = min((len(chain) for chain in chains), default=0) // KEY_BYTES
        keys = set(selection.keys_of(namespaces)) if known < pages else set()
        for index in range(known, pages) if keys else ():
            awaited = self._awaited.setdefault(index, set())
            awaited |= keys
            if sum(map(len, self._awaited.values())) > ENGINE_KEYS_AWAITED_MAX:
                return [known]
        return []

    def first_awaited(self) -> int | None:
        """Index of the first page whose tokens are there by now and whose key was selected meanwhile."""
        for page in sorted(self._awaited):
            keys = self.live.page_keys(page, page + 1)
            if not all(keys):
                return None
            if not self._awaited.pop(page).isdisjoint(keys):
                return page
        return None

    def is_clean_again(self) -> bool:
        """Whether it holds nothing any more of what was selected: it was taken away, or is to be computed anew.

        Steps that were in flight then may still write there, before the steps that compute it anew: nothing there counts
        as computed until those have.
        """
        assert self._tainted_from is not None
        return (
            not self.is_until_gate
            and self.live.computed_tokens <= self._tainted_from * self._geometry.page_tokens
        )

    def wants_recomputation(self) -> int | None:
        """Index of the first block to compute anew, told once for each page; None: none, or it would not help."""
        page = self._tainted_from
        if page is None or self.is_until_gate or (self._asked_from is not None and self._asked_from <= page):
            return None
        self._asked_from = page
        return page * self._geometry.blocks_per_page

    def note(self, index: BlockIndex, tokens: int) -> None:
        """Tell the index of the blocks of its first `tokens` tokens, as far as they are new."""
        hashes = self.live.block_hashes
        blocks = min(tokens // self._geometry.block_tokens, len(hashes))
        if blocks <= self._noted:
            return
        step = self._geometry.blocks_per_page
        keys = self.live.page_keys(self._noted // step, blocks // step)
        index.note(self.live.namespaces, hashes, keys, start=self._noted, end=blocks)
        self._noted = blocks
