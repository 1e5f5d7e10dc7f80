"""Puts that clients posted in shared memory, carried out in order, and the slots that are granted to them for the next ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from cache_l2._native import Arena, size_class
from cache_l2.attach_messages import Commit
from cache_l2.attach_wire import decode_client_message
from cache_l2.namespaces import NamespaceRecord
from kv_policy.grants import granted_bytes_max, slots_to_offer
from kv_types.clock import Clock
from kv_types.errors import ProtocolError, StrataError
from kv_types.ids import PageKey
from kv_types.limits import GRANT_IDLE_S, POSTED_PAGES_PER_TURN, POSTS_PER_TURN
from kv_types.validity import NO_INSTANCE

_SECOND_NS = 1_000_000_000

_log = structlog.get_logger("stratakv.posts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedPut:
    """Pages of one chain that their client has filled already. `granted` are their slots; `ttl_s` as for a reservation."""

    record: NamespaceRecord
    parent: PageKey | None
    keys: bytes
    granted: list[int]
    ttl_s: int | None
    terms: Commit


_Post: TypeAlias = tuple[int, int, bytes | None, bytes, list[int], int, bytes]
"""What `Arena.next_post` tells of one."""
Store = Callable[[int, PostedPut], int]
"""Publishes what may be published of a row's posted put; returns the instance stored last, NO_INSTANCE where there is none."""
FindNamespace = Callable[[int, int], NamespaceRecord | None]
"""Namespace of a number that a row has registered."""


class PostedPuts:
    """Reads the rows' rings. The event loop's thread alone calls it."""

    def __init__(
        self, arena: Arena, *, arena_bytes: int, clock: Clock, find: FindNamespace, store: Store
    ) -> None:
        self._arena = arena
        self._arena_bytes = arena_bytes
        self._clock = clock
        self._find = find
        self._store = store
        self._put_ns: dict[int, int] = {}
        """When each row that has slots in advance put last."""
        self._last_row = -1
        """Of which a post was carried out last, all rows having their turns."""
        self.garbled = 0
        """Rows whose rings held what no client writes."""

    def settle(self) -> bool:
        """Carry out what was posted, a bounded part of it, all rows by turns; returns whether something may be left.

        The next call goes on behind the row where this one ends: one that posts without end keeps nobody waiting.
        """
        rows = self._arena.posting_rows()
        rows = [row for row in rows if row > self._last_row] + [row for row in rows if row <= self._last_row]
        posts = pages = 0
        while rows:
            having: list[int] = []
            for row in rows:
                if posts >= POSTS_PER_TURN or pages >= POSTED_PAGES_PER_TURN:
                    return True
                if carried_out := self._settle_next(row):
                    self._last_row = row
                    posts += 1
                    pages += carried_out
                    having.append(row)
            rows = having
        return False

    def settle_every(self) -> None:
        """Carry out all that was posted before: somebody is about to look for it."""
        for row in self._arena.posting_rows():
            self.settle_all(row)

    def settle_all(self, row: int) -> None:
        """Carry out all that a row has posted: it ends, or is about to ask for something."""
        for _ in range(POSTS_PER_TURN):
            if not self._settle_next(row):
                return

    def offer(self, row: int, record: NamespaceRecord, *, pages: int, spared: int = NO_INSTANCE) -> None:
        """Keep slots on offer to a row that has just put so many pages of a namespace, and count them for its tenant.

        The chain of the page `spared` is not evicted for them.
        """
        wanted = slots_to_offer(
            arena_bytes=self._arena_bytes, slot_bytes=size_class(record.page_bytes), put_pages=pages
        )
        if wanted:
            self._put_ns[row] = self._clock.now_ns()
            self._arena.grant(
                row=row, payload_bytes=record.page_bytes, wanted=wanted, bytes_max=granted_bytes_max(self._arena_bytes),
                now_ns=self._put_ns[row], spared=spared, namespace_slot=record.number,
            )  # fmt: skip

    def recall_idle(self) -> None:
        """Take back what is on offer to rows that have not put for GRANT_IDLE_S."""
        since_ns = self._clock.now_ns() - int(GRANT_IDLE_S * _SECOND_NS)
        for row in [row for row, put_ns in self._put_ns.items() if put_ns < since_ns]:
            self._arena.recall_grants(row)
            del self._put_ns[row]

    def forget(self, row: int) -> None:
        """The row has ended."""
        self._put_ns.pop(row, None)

    def _settle_next(self, row: int) -> int:
        """Carry out a row's next post; returns its pages, 0 where there is none."""
        pages = 0
        try:
            if (post := self._arena.next_post(row)) is not None:
                pages = len(post[4])
                try:
                    self._carry_out(row, post)
                finally:
                    self._arena.settle_post(row)
        except (ValueError, StrataError) as error:
            # Nobody waits for an answer, and what follows may be right: a ring that isn't is left alone from here on.
            self.garbled += 1
            _log.warning("a client posted what can't be carried out", row=row, error=str(error))
        return pages

    def _carry_out(self, row: int, post: _Post) -> None:
        granted = post[4]
        try:
            put = self._read(row, *post)
            stored_last = self._store(row, put)
        except BaseException:
            self._arena.drop_grants(row=row, ids=granted)
            raise
        self.offer(row, put.record, pages=len(granted), spared=stored_last)

    def _read(
        self,
        row: int,
        number: int,
        payload_bytes: int,
        parent: bytes | None,
        keys: bytes,
        granted: list[int],
        ttl_s: int,
        terms: bytes,
    ) -> PostedPut:
        _, message = decode_client_message(terms)
        if not isinstance(message, Commit) or message.reservations:
            raise ProtocolError("the terms of a post are a commit that names no reservation")
        record = self._find(row, number)
        if record is None or record.page_bytes != payload_bytes:
            raise ProtocolError(f"a post of {payload_bytes} bytes a page in namespace {number}")
        return PostedPut(
            record=record, parent=None if parent is None else PageKey(parent), keys=keys, granted=granted,
            ttl_s=None if ttl_s < 0 else ttl_s, terms=message,
        )  # fmt: skip
