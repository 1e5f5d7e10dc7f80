"""Slots in advance and posts in the arena's model: the writer's half of puts that wait for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.sim.arena_entries import FREE, GRANTED, Entry, Row
from tests.sim.arena_tree import PageTree

SHARE = 8
"""A row has at most this part of the entries in advance: they are few here, and there are several rows."""


class Post(NamedTuple):
    """What next_post returns."""

    namespace_slot: int
    payload_bytes: int
    parent: bytes | None
    keys: bytes
    ids: list[int]
    ttl_s: int
    terms: bytes


class PostingTree(PageTree):
    """Grants and posts of rows."""

    def grant(
        self,
        *,
        row: int,
        payload_bytes: int,
        wanted: int,
        bytes_max: int,
        now_ns: int,
        spared: int = 0,
        namespace_slot: int = 0,
    ) -> int:
        it = self.rows[row]
        if it.state != 1:
            return 0
        number = (spared & 0xFFFFFFFF) - 1
        kept = self.entries[number] if 0 <= number < len(self.entries) else None
        self._pinned = kept if kept is not None and kept.instance == spared else None
        while len(it.offers) < min(wanted, max(1, len(self.entries) // SHARE)) and self._make_room(1):
            entry = self._free.pop()
            entry.state, entry.row = GRANTED, row
            self.give_way()
            it.offers[entry.instance] = entry
        self._pinned = None
        return len(it.offers)

    def recall_grants(self, row: int) -> None:
        offers, self.rows[row].offers = self.rows[row].offers, {}
        for entry in offers.values():
            self._end_grant(entry)

    def drop_grants(self, *, row: int, ids: Sequence[int]) -> None:
        for one in ids:
            entry = self.rows[row].taken.pop(one, None)
            if entry is not None:
                self._end_grant(entry)

    def posting_rows(self) -> list[int]:
        return [number for number, row in enumerate(self.rows) if row.is_posting]

    def next_post(self, row: int) -> Post | None:
        it = self.rows[row]
        if not it.posts or not it.state:
            self.give_way()
            it.is_posting = bool(it.posts) and bool(it.state)  # who has posted meanwhile keeps its bit
            return None
        post: Post = it.posts[0]
        return post

    def settle_post(self, row: int) -> None:
        self.give_way()
        self.rows[row].posts.pop(0)

    def end_grants(self, row: int) -> None:
        """The process has ended: nobody writes there any more."""
        it = self.rows[row]
        for entry in (*it.offers.values(), *it.taken.values()):
            self._end_grant(entry)
        it.offers, it.taken = {}, {}

    def find_room(self, row: Row, missing: int) -> bool:
        """Room for a put that asks: of its own slots first, of everybody's before it is refused."""
        if not self._free:
            self.recall_grants(self.rows.index(row))
        if self._make_room(missing):
            return True
        for number in range(len(self.rows)):
            self.recall_grants(number)
        return bool(self._free)

    def is_posted(self, key: bytes) -> bool:
        """Whether somebody has posted a page and it is not settled."""
        return any(
            key == post.keys[at : at + 32]
            for row in self.rows
            if row.is_posting
            for post in row.posts
            for at in range(0, len(post.keys), 32)
        )

    def await_settled(self, key: bytes) -> bool:
        """Wait for that, for a bounded time; nobody else works here meanwhile."""
        return False

    def _end_grant(self, entry: Entry) -> None:
        assert entry.state == GRANTED, "only a granted slot ends so"
        entry.generation += 2
        self._release(entry)
        assert entry.state == FREE, "it is free"


Ring = Callable[[], None]
"""Wakes the sidecar."""
