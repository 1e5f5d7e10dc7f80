"""Which pages may be published, put or loaded: each is judged by the log over its whole chain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_l2.namespaces import NamespaceRegistry
from cache_l2.reservations import PendingPage, ReservationBook
from kv_types.ids import KEY_BYTES, PageKey, Stamp
from kv_types.limits import ANCESTORS_WALKED_MAX, CHAIN_PAGES_MAX, VETTED_TERMS_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.page_keys import unpack_keys
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

    def judge_loaded(self, namespace: Namespace, stamp: Stamp, origin: Origin, chain: Chain) -> RefuseReason:
        """Judge a page that was stored before, here or elsewhere: what only a first commit must satisfy was satisfied then."""
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
    """What all pages of one commit share. `rests_on` is the instance of the deepest page that their request reused.

    Of a loaded page it is a line, and `producer` and `tags` are None where they can't be told any more.
    """

    stamp: Stamp
    producer: bytes | None = b""
    tags: tuple[bytes, ...] | None = ()
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    rests_on: int = UNKNOWN_INSTANCE

    def origin(self, *, lineage_known: bool) -> Origin:
        """How such a page came to be, as selectors see it."""
        return Origin(
            producer=self.producer, tags=self.tags, from_ms=self.computed_from_ms, until_ms=self.computed_until_ms,
            revision=self.stamp.revision, lineage_known=lineage_known,
        )  # fmt: skip


Judge = Callable[[Namespace, Stamp, Origin, Chain], RefuseReason]
PackedChain = Callable[[bytes, int], bytes | None]
"""Packed keys from the root to a page under a key, at most so many; None: more."""


class Vetted:
    """Keys of pages that passed by the same terms at the same position: of their children only the own key decides.

    By VETTED_TERMS_MAX terms at a time: chains that are loaded side by side have one each, and take turns.
    """

    def __init__(self) -> None:
        self._position: Stamp | None = None
        self._by_terms: OrderedDict[CommitTerms, set[bytes]] = OrderedDict()
        self._keys: set[bytes] = set()

    def begin(self, position: Stamp | None, terms: CommitTerms) -> None:
        """Go on by these; what passed at another position is forgotten."""
        if position != self._position:
            self._position = position
            self._by_terms.clear()
        self._keys = self._by_terms.setdefault(terms, set())
        self._by_terms.move_to_end(terms)
        if len(self._by_terms) > VETTED_TERMS_MAX:
            self._by_terms.popitem(last=False)
        if len(self._keys) >= ANCESTORS_WALKED_MAX:
            self._keys.clear()

    def add(self, key: bytes) -> None:
        """This page has passed."""
        self._keys.add(key)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys


class PageJudging:
    """Judges pages by some terms, parents first. What one of it may walk is bounded, however the pages are made up."""

    def __init__(
        self, judge: Judge, chain: PackedChain, namespaces: NamespaceRegistry, *, vetted: Vetted
    ) -> None:
        self._judge = judge
        self._packed_chain = chain
        self._namespaces = namespaces
        self._vetted = vetted
        self._keys_left = CHAIN_PAGES_MAX

    def judge(
        self,
        page: PendingPage,
        terms: CommitTerms,
        *,
        position: Stamp | None,
        is_lineage_known: Callable[[], bool],
    ) -> RefuseReason:
        """Reason why this page must not be published; NONE where nothing speaks against it."""
        self._vetted.begin(position, terms)
        nothing_reused = terms.rests_on == NO_INSTANCE
        reason = self._ask(page, terms, lineage_known=nothing_reused)
        if reason is RefuseReason.INVALIDATED and not nothing_reused and is_lineage_known():
            # Only now does it matter what it rests on: to find that out costs a walk.
            reason = self._ask(page, terms, lineage_known=True)
        if reason is RefuseReason.NONE:
            self._vetted.add(page.key)
        return reason

    def _ask(self, page: PendingPage, terms: CommitTerms, *, lineage_known: bool) -> RefuseReason:
        registered = self._namespaces.find(page.namespace)
        if registered is None:  # nothing of it is in the arena any more
            return RefuseReason.EXPIRED
        origin = terms.origin(lineage_known=lineage_known)
        return self._judge(registered.namespace, terms.stamp, origin, lambda: self._chain(page))

    def _chain(self, page: PendingPage) -> Sequence[PageKey] | None:
        """Keys that decide about a page: its own alone when its parent passed by the same terms."""
        if page.parent is None or page.parent in self._vetted:
            return (PageKey(page.key),)
        pages_max = min(ANCESTORS_WALKED_MAX, self._keys_left)
        packed = self._packed_chain(page.parent, pages_max) if pages_max > 0 else None
        if packed is None:
            return None
        self._keys_left -= len(packed) // KEY_BYTES
        return (*unpack_keys(packed), PageKey(page.key))


class BatchJudging:
    """Judges the pages of one commit."""

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
        self._position = judge.position
        self._arena = arena
        self._terms = terms
        self._row = row
        self._reservations = reservations
        self._lineage: dict[int, bool] | None = None
        self._judging = PageJudging(judge.judge, chain_of(arena), namespaces, vetted=Vetted())

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
        return self._judging.judge(
            page, self._terms, position=self._position, is_lineage_known=lambda: self._is_lineage_known(reservation)
        )  # fmt: skip

    def _is_lineage_known(self, reservation: int) -> bool:
        """Whether the instance that the request reused is a resident ancestor of the page. Found out for all at once."""
        if self._terms.rests_on == UNKNOWN_INSTANCE:
            return False
        if self._lineage is None:
            known = self._arena.lineage_known(
                row=self._row, reservations=self._reservations, rests_on=self._terms.rests_on
            )
            self._lineage = dict(zip(self._reservations, known, strict=True))
        return self._lineage[reservation]


def chain_of(arena: JudgedArena) -> PackedChain:
    """Chains as the arena has them."""
    return lambda key, pages_max: arena.chain(key, pages_max=pages_max)


def probed_chain(arena: JudgedArena, parent: PageKey | None, keys: Sequence[PageKey]) -> PackedChain:
    """Chains of pages that are not in the arena, but for their ancestors up to `parent`, which the first key follows."""
    places = {key: index for index, key in enumerate(keys)}
    run = b"".join(keys)

    def chain(key: bytes, pages_max: int) -> bytes | None:
        pages = places[PageKey(key)] + 1 if key in places else 0
        above_max = pages_max - pages
        if parent is None:
            return None if above_max < 0 else run[: pages * KEY_BYTES]
        above = arena.chain(parent, pages_max=above_max) if above_max > 0 else None
        return None if above is None else above + run[: pages * KEY_BYTES]

    return chain
