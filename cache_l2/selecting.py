"""What a selector means in one arena: the arguments of the native steps that hide, or count, what it selects."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Protocol, TypedDict

from cache_l2.namespaces import NamespaceRegistry
from cache_l2.provenance import ProvenanceTable
from kv_types.errors import LimitExceededError
from kv_types.limits import HIDING_STEP_WORK_MAX, HIDING_WALK_WORK, SELECTORS_MATCHED_MAX
from kv_types.selectors import EVERYTHING, Selector

_NO_END = (1 << 64) - 1
_PART_SELECTORS = 1024
"""Selectors that are gone through before it is asked whether others must run."""
_LOOK_MATCHES = 2
"""A look at one selector, and at the page under its key, takes as long as holding it against so many namespaces."""


class StepTerms(TypedDict):
    """What a native step takes; bitmaps are by number, None stands for all, 0 and 2**64 - 1 for no bound."""

    key: bytes | None
    namespaces: bytes | None
    provenances: bytes | None
    since_ms: int
    until_ms: int
    since_revision: int
    until_revision: int


class SteppingArena(Protocol):
    """What selecting needs of the arena."""

    def find(self, key: bytes) -> dict[str, int | bytes] | None:
        """Return the visible entry under a key."""
        ...

    def hide_step(
        self,
        *,
        key: bytes | None,
        namespaces: bytes | None,
        provenances: bytes | None,
        since_ms: int,
        until_ms: int,
        since_revision: int,
        until_revision: int,
        cursor: int,
        work_max: int,
    ) -> tuple[int, int]:
        """Hide a bounded part of what matches: (next cursor or -1, visible pages hidden)."""
        ...

    def count_step(
        self,
        *,
        key: bytes | None,
        namespaces: bytes | None,
        provenances: bytes | None,
        since_ms: int,
        until_ms: int,
        since_revision: int,
        until_revision: int,
        cursor: int,
        work_max: int,
        census: int,
    ) -> tuple[int, int, int]:
        """Count a bounded part of it: (next cursor or -1, pages, payload bytes), each page once in one census."""
        ...


class Selecting:
    """Reads selectors against the namespaces and provenances that this life knows."""

    def __init__(
        self,
        arena: SteppingArena,
        namespaces: NamespaceRegistry,
        provenances: ProvenanceTable,
        *,
        skew_ms: int,
    ) -> None:
        self._arena = arena
        self._namespaces = namespaces
        self._provenances = provenances
        self._skew_ms = skew_ms
        self._censuses = 0
        self._matched = 0

    def hiding(self, selectors: Sequence[Selector]) -> Iterator[int]:
        """Hide what any of the selectors selects, in steps of bounded work; yields the pages hidden in each.

        Short walks share a step, so that a storm of small invalidations does not spend its time on taking turns.
        """
        left, hidden = HIDING_STEP_WORK_MAX, 0
        began = self._namespaces.registrations
        for terms in self.terms(selectors):
            if terms is None:
                yield hidden
                left, hidden = HIDING_STEP_WORK_MAX, 0
                continue
            cursor = 0
            while cursor >= 0:
                self._leave_out_newer(terms, began)
                cursor, pages = self._arena.hide_step(
                    **terms, cursor=cursor, work_max=max(left, HIDING_WALK_WORK)
                )
                hidden += pages
                left -= pages + HIDING_WALK_WORK if _is_subtree(terms) else HIDING_STEP_WORK_MAX
                if left <= 0:
                    yield hidden
                    left, hidden = HIDING_STEP_WORK_MAX, 0
        if left < HIDING_STEP_WORK_MAX:
            yield hidden

    def counting(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, int]]:
        """Count what hiding would hide, each page once, in steps of bounded work; yields (pages, bytes) of each.

        Raises LimitExceededError when another count that began meanwhile has ended this one.
        """
        self._censuses += 1
        census, began = self._censuses, self._namespaces.registrations
        for terms in self.terms(selectors):
            if terms is None:
                yield 0, 0
                continue
            cursor = 0
            while cursor >= 0:
                self._leave_out_newer(terms, began)
                if census != self._censuses:  # the arena remembers the pages that one census has met
                    raise LimitExceededError("another count of pages began and ended this one: ask again")
                cursor, pages, payload_bytes = self._arena.count_step(
                    **terms, cursor=cursor, work_max=HIDING_STEP_WORK_MAX, census=census
                )
                yield pages, payload_bytes

    def terms(self, selectors: Sequence[Selector]) -> Iterator[StepTerms | None]:
        """Yield the arguments of what is to be walked, each walk once; None now and then: let others run.

        Selectors that the namespace alone decides share one walk. What can select nothing here is left out: what is
        registered or put later is judged by a log that has these records already.
        """
        unique = yield from self._unique(selectors)
        if EVERYTHING in unique:
            yield _terms()
            return
        wide = [one for one in unique if one.key is None and not one.names_origin]
        if wide and (namespaces := (yield from self._bitmap(wide))) is not None:
            yield _terms(namespaces=namespaces)
        for selector in unique:
            if self._has_spent(_LOOK_MATCHES):
                yield None
            if selector.key is not None and not selector.names_origin:
                if self._selects_entry(selector):
                    yield _terms(key=selector.key)
            elif selector.names_origin:
                namespaces = (yield from self._bitmap([selector])) if selector.names_namespace else None
                if namespaces is not None or not selector.names_namespace:
                    yield self._origin_terms(selector, namespaces)

    def _unique(self, selectors: Sequence[Selector]) -> Generator[None, None, dict[Selector, None]]:
        """Each selector once, in order. Yields to let others run."""
        unique: dict[Selector, None] = {}
        for begin in range(0, len(selectors), _PART_SELECTORS):
            part = selectors[begin : begin + _PART_SELECTORS]
            unique |= dict.fromkeys(part)
            if self._has_spent(_LOOK_MATCHES * len(part)):
                yield None
        return unique

    def _has_spent(self, matches: int) -> bool:
        """Count work, in selectors held against namespaces; True when it is time to let others run."""
        self._matched += matches
        if self._matched < SELECTORS_MATCHED_MAX:
            return False
        self._matched = 0
        return True

    def _bitmap(self, selectors: Sequence[Selector]) -> Generator[None, None, bytes | None]:
        """Numbers of the namespaces that any of these may select; None where there are none. Yields to let others run."""
        numbers = []
        for record in list(self._namespaces):
            for begin in range(0, len(selectors), _PART_SELECTORS):
                part = selectors[begin : begin + _PART_SELECTORS]
                matches = any(selector.matches_namespace(record.namespace) for selector in part)
                if self._has_spent(len(part)):
                    yield None
                if matches:
                    numbers.append(record.number)
                    break
        return _bits(numbers) if numbers else None

    def _leave_out_newer(self, terms: StepTerms, began: int) -> None:
        """Take the numbers of namespaces registered since `began` out of a bitmap: those that had them before have no pages."""
        if terms["namespaces"] is None or self._namespaces.registrations == began:
            return
        bitmap = bytearray(terms["namespaces"])
        for record in self._namespaces:
            if record.serial >= began and record.number >> 3 < len(bitmap):
                bitmap[record.number >> 3] &= ~(1 << (record.number & 7)) & 0xFF
        terms["namespaces"] = bytes(bitmap)

    def _selects_entry(self, selector: Selector) -> bool:
        """Whether the namespace of the page under the selector's key is one that it selects."""
        assert selector.key is not None
        if not selector.names_namespace:
            return True
        entry = self._arena.find(selector.key)
        if entry is None:
            return False
        number = entry["namespace_slot"]
        assert isinstance(number, int)
        return selector.matches_namespace(self._namespaces.of_number(number).namespace)

    def _origin_terms(self, selector: Selector, namespaces: bytes | None) -> StepTerms:
        provenances = None
        if selector.producer is not None or selector.tag is not None:
            provenances = _bits(self._provenances.matching(selector.producer, selector.tag))
        since_ms, until_ms = selector.since_ms, selector.until_ms
        return _terms(
            key=selector.key,
            namespaces=namespaces,
            provenances=provenances,
            since_ms=0 if since_ms is None else max(0, since_ms - self._skew_ms),
            until_ms=_NO_END if until_ms is None else min(_NO_END, until_ms + self._skew_ms),
            since_revision=selector.since_revision or 0,
            until_revision=_NO_END if selector.until_revision is None else selector.until_revision,
        )


def _terms(
    *,
    key: bytes | None = None,
    namespaces: bytes | None = None,
    provenances: bytes | None = None,
    since_ms: int = 0,
    until_ms: int = _NO_END,
    since_revision: int = 0,
    until_revision: int = _NO_END,
) -> StepTerms:
    return StepTerms(
        key=key, namespaces=namespaces, provenances=provenances, since_ms=since_ms, until_ms=until_ms,
        since_revision=since_revision, until_revision=until_revision,
    )  # fmt: skip


def _is_subtree(terms: StepTerms) -> bool:
    """Whether a walk goes no further than the pages that it hides."""
    return terms["key"] is not None and terms == _terms(key=terms["key"])


def _bits(numbers: Sequence[int]) -> bytes:
    """Return a bitmap with these bits set, the lowest bit of the first byte being number 0."""
    bitmap = bytearray(max(numbers, default=0) // 8 + 1)
    for number in numbers:
        bitmap[number >> 3] |= 1 << (number & 7)
    return bytes(bitmap)
