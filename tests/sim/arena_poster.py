"""The reader's half of posts in the arena's model: granted slots are filled, and word is left of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from kv_types.ids import KEY_BYTES
from tests.sim.arena import ModelArena
from tests.sim.arena_entries import Entry, Row
from tests.sim.arena_posts import Post, Ring


class Poster(ABC):
    """What a mapping needs to post."""

    _arena: ModelArena
    _row: Row
    _ring: Ring | None
    _give_way: Callable[[], None]

    @abstractmethod
    def stamp(self) -> tuple[int, bytes, int]:
        """See cache_l2._native.Reader.stamp."""

    @abstractmethod
    def fill(
        self, offsets: Sequence[int], sources: Any, *, page_bytes: int, counter: int = 0, kernel: int = -1
    ) -> None:
        """See cache_l2._native.Reader.fill."""

    @abstractmethod
    def _chain(self, keys: Any, start: int) -> list[bytes]:
        """The keys one by one."""

    def post(
        self, counter: int, keys: Any, sources: Any, *, namespace: int, start: int, resident: int, page_bytes: int,
        incarnation: bytes, revision: int, ttl_s: int = -1, deadline_ns: int, terms: bytes,
    ) -> tuple[int, list[int]]:  # fmt: skip
        """See cache_l2._native.Reader.post."""
        chain = self._chain(keys, start)
        freshness_ns = self._arena.freshness_ns
        is_present = self.stamp()[1:] == (incarnation, revision) and self._arena.now_ns() < freshness_ns
        if (
            self._ring is None
            or self._arena.closed
            or not is_present
            or not self._may_be_posted(chain, start, resident)
        ):
            return 0, []
        taken = self._take_offers(len(chain) - start)
        if not taken:
            return 0, []
        self.fill([entry.number for entry in taken.values()], sources, page_bytes=page_bytes, counter=counter)
        if self._arena.now_ns() > deadline_ns:
            self._give_back(taken)
            return 2, []
        parent = chain[start - 1] if start else None
        self._row.posts.append(
            Post(namespace, page_bytes, parent, b"".join(chain[start:]), list(taken), ttl_s, terms)
        )
        self._give_way()
        self._row.is_posting = True
        self._ring()
        return 1, list(taken)

    def _may_be_posted(self, chain: list[bytes], start: int, resident: int) -> bool:
        own = b"".join(post.keys for post in self._row.posts)
        posted = {own[at : at + KEY_BYTES] for at in range(0, len(own), KEY_BYTES)}
        if start > resident and chain[start - 1] not in posted:
            return False
        self._give_way()
        return not any(key in self._arena.index or key in posted for key in chain[start:])

    def _take_offers(self, pages: int) -> dict[int, Entry]:
        """So many slots, or none."""
        taken: dict[int, Entry] = {}
        while len(taken) < pages and self._row.offers:
            one, entry = self._row.offers.popitem()
            taken[one] = self._row.taken[one] = entry
            self._give_way()
        if len(taken) < pages:
            self._give_back(taken)
            return {}
        return taken

    def _give_back(self, taken: dict[int, Entry]) -> None:
        for one, entry in taken.items():
            if self._row.taken.pop(one, None) is not None:
                self._row.offers[one] = entry
