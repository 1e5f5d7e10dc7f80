"""Which filled reservations may still be published: each is judged by the log over its whole chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_l2.namespaces import NamespaceRegistry
from cache_l2.reservations import PendingPage
from kv_types.ids import KEY_BYTES, PageKey, Stamp
from kv_types.limits import ANCESTORS_WALKED_MAX, CHAIN_PAGES_MAX
from kv_types.namespace import Namespace
from kv_types.outcomes import RefuseReason
from kv_types.selectors import Origin
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE

Chain = Callable[[], Sequence[PageKey] | None]
"""Keys from the root to a page; None: more than may be looked at."""

_GENERATION_MASK = 0xFFFF_FFFF


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

    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        """Return the visible entry under a key."""
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
        self, judge: CommitJudge, arena: JudgedArena, namespaces: NamespaceRegistry, terms: CommitTerms
    ) -> None:
        self._judge = judge
        self._arena = arena
        self._namespaces = namespaces
        self._terms = terms
        self._vetted: set[bytes] = set()
        self._lineage: dict[bytes, bool] = {}
        self._keys_left = CHAIN_PAGES_MAX
        self._entries_left = ANCESTORS_WALKED_MAX

    def judge(self, page: PendingPage) -> RefuseReason:
        """Reason why this page must not be published; NONE where nothing speaks against it."""
        reason = self._ask(page, lineage_known=self._terms.rests_on == NO_INSTANCE)
        if reason is RefuseReason.INVALIDATED and self._rests_on_ancestor(page):
            # Only now does it matter what it rests on: to find that out costs a walk.
            reason = self._ask(page, lineage_known=True)
        if reason is RefuseReason.NONE:
            self._vetted.add(page.key)
        return reason

    def _ask(self, page: PendingPage, *, lineage_known: bool) -> RefuseReason:
        terms = self._terms
        origin = Origin(
            producer=terms.producer,
            tags=terms.tags,
            from_ms=terms.computed_from_ms,
            until_ms=terms.computed_until_ms,
            revision=terms.stamp.revision,
            lineage_known=lineage_known,
        )
        namespace = self._namespaces.of_id(page.namespace).namespace
        return self._judge.judge(namespace, terms.stamp, origin, lambda: self._chain(page))

    def _chain(self, page: PendingPage) -> Sequence[PageKey] | None:
        """Keys that decide about a page: its own alone when its parent passed in this batch, by the same terms."""
        if page.parent is None or page.parent in self._vetted:
            return (PageKey(page.key),)
        packed = self._arena.chain(page.parent, pages_max=min(ANCESTORS_WALKED_MAX, self._keys_left))
        if packed is None:
            return None
        self._keys_left -= len(packed) // KEY_BYTES
        above = [PageKey(packed[at : at + KEY_BYTES]) for at in range(0, len(packed), KEY_BYTES)]
        return (*above, PageKey(page.key))

    def _rests_on_ancestor(self, page: PendingPage) -> bool:
        """Whether the instance that the request reused is a resident ancestor of the page."""
        if self._terms.rests_on in (NO_INSTANCE, UNKNOWN_INSTANCE) or page.parent is None:
            return False
        known = self._lineage.get(page.parent)
        if known is None:
            known = self._walk_up(page.parent)
        self._lineage[page.key] = known
        return known

    def _walk_up(self, key: bytes) -> bool:
        packed = self._arena.chain(key, pages_max=ANCESTORS_WALKED_MAX) or b""
        for end in range(len(packed), 0, -KEY_BYTES):
            if self._entries_left <= 0:
                break
            self._entries_left -= 1
            entry = self._arena.find(packed[end - KEY_BYTES : end])
            if entry is not None and instance_of(entry) == self._terms.rests_on:
                return True
        return False


def instance_of(entry: dict[str, int | bytes]) -> int:
    """Return the instance of a visible entry, as leases and gets name it."""
    generation, number = entry["generation"], entry["entry"]
    assert isinstance(generation, int)
    assert isinstance(number, int)
    return (generation & _GENERATION_MASK) << 32 | (number + 1)
