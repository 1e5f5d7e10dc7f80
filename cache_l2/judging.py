"""Which filled reservations may still be published: each is judged by the log over its whole chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_l2.namespaces import NamespaceRegistry
from cache_l2.reservations import PendingPage, ReservationBook
from kv_types.ids import KEY_BYTES, PageKey, Stamp
from kv_types.limits import ANCESTORS_WALKED_MAX, CHAIN_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE

Chain = Callable[[], Sequence[PageKey] | None]
"""Keys from the root to a page; None: more than may be looked at."""


class CommitJudge(Protocol):
    """The state of the log at one position; `invalidation.validity` implements it."""

    @property
    def position(self) -> Stamp | None:
        """How far the log has been applied; None before it was joined."""
        ...

    def judge(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> RefuseReason:
        """Reason why a page of this stamp must not be published, NONE where nothing speaks against it (I3, R2, R5).

        `chain` is called only when the keys decide.
        """
        ...


class JudgedArena(Protocol):
    """What judging needs of the arena."""

    def chain(self, key: bytes, *, pages_max: int) -> bytes | None:
        """Packed keys from the root to the visible or reserved entry of a key; None: longer."""
        ...

    def lineage_known(self, *, row: int, reservations: Sequence[int], rests_on: int) -> list[bool]:
        """Whether each reservation has an instance among its ancestors, in a bounded number of steps for all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTerms:
    """What all pages of one commit share. `rests_on` is the instance of the deepest page that their request reused."""

    stamp: Stamp
    producer: bytes = b""
    tags: tuple[bytes, ...] = ()
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    rests_on: int = UNKNOWN_INSTANCE


class BatchJudging:
    """Judges the pages of one commit, parents first. What one batch may walk is bounded, however it is made up."""

    def __init__(
        self,
        judge: CommitJudge,
        arena: JudgedArena,
        namespaces: NamespaceRegistry,
        terms: CommitTerms,
        *,
        row: int,
        reservations: Sequence[int],
    ) -> None:
        self._judge = judge
        self._arena = arena
        self._namespaces = namespaces
        self._terms = terms
        self._row = row
        self._reservations = reservations
        self._vetted: set[bytes] = set()
        self._lineage: dict[int, bool] | None = None
        self._keys_left = CHAIN_PAGES_MAX

    def judge_all(self, book: ReservationBook, *, is_closed: bool) -> tuple[list[RefuseReason], list[int]]:
        """Take the reservations from the book: a reason each, and those that end because of theirs."""
        reasons, refused = [], []
        for reservation in self._reservations:
            page = book.take(self._row, reservation)
            if page is None:
                reasons.append(RefuseReason.EXPIRED)
                continue
            reasons.append(RefuseReason.CLOSED if is_closed else self.judge(reservation, page))
            if reasons[-1]:
                refused.append(reservation)
        return reasons, refused

    def judge(self, reservation: int, page: PendingPage) -> RefuseReason:
        """Reason why this page must not be published; NONE where nothing speaks against it."""
        nothing_reused = self._terms.rests_on == NO_INSTANCE
        reason = self._ask(page, lineage_known=nothing_reused)
        if reason is RefuseReason.INVALIDATED and not nothing_reused and self._is_lineage_known(reservation):
            # Only now does it matter what it rests on: to find that out costs a walk.
            reason = self._ask(page, lineage_known=True)
        if reason is RefuseReason.NONE:
            self._vetted.add(page.key)
        return reason

    def _ask(self, page: PendingPage, *, lineage_known: bool) -> RefuseReason:
        terms = self._terms
        registered = self._namespaces.find(page.namespace)
        if registered is None:  # nothing of it is in the arena any more
            return RefuseReason.EXPIRED
        origin = Origin(
            producer=terms.producer,
            tags=terms.tags,
            from_ms=terms.computed_from_ms,
            until_ms=terms.computed_until_ms,
            revision=terms.stamp.revision,
            lineage_known=lineage_known,
        )
        return self._judge.judge(registered.namespace, terms.stamp, origin, lambda: self._chain(page))

    def _chain(self, page: PendingPage) -> Sequence[PageKey] | None:
        """Keys that decide about a page: its own alone when its parent passed in this batch, by the same terms."""
        if page.parent is None or page.parent in self._vetted:
            return (PageKey(page.key),)
        pages_max = min(ANCESTORS_WALKED_MAX, self._keys_left)
        packed = self._arena.chain(page.parent, pages_max=pages_max) if pages_max > 0 else None
        if packed is None:
            return None
        self._keys_left -= len(packed) // KEY_BYTES
        above = [PageKey(packed[at : at + KEY_BYTES]) for at in range(0, len(packed), KEY_BYTES)]
        return (*above, PageKey(page.key))

    def _is_lineage_known(self, reservation: int) -> bool:
        """Whether the instance that the request reused is a resident ancestor of the page. Found out for all at once."""
        if self._terms.rests_on in (NO_INSTANCE, UNKNOWN_INSTANCE):
            return self._terms.rests_on == NO_INSTANCE
        if self._lineage is None:
            known = self._arena.lineage_known(
                row=self._row, reservations=self._reservations, rests_on=self._terms.rests_on
            )
            self._lineage = dict(zip(self._reservations, known, strict=True))
        return self._lineage[reservation]
