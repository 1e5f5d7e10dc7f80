"""The PageStore protocol: what every tier, fake and client can do with pages under their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.outcomes import LookUpOutcome, PutOutcome


class PageStore(Protocol):
    """Pages of registered namespaces under chained keys.

    `keys` is always a chain from the root: keys[0] is the first page of the prompt. A store serves only the
    longest prefix of the chain that is resident and valid (invariant I4).
    """

    def look_up(self, namespace: NamespaceId, keys: Sequence[PageKey]) -> LookUpOutcome:
        """Answer how many pages of the chain could be served now. Moves no bytes and pins nothing.

        Raises LimitExceededError, UnknownNamespaceError.
        """
        ...

    def get(
        self, namespace: NamespaceId, keys: Sequence[PageKey], destinations: Sequence[memoryview]
    ) -> LookUpOutcome:
        """Copy the longest servable prefix into `destinations` (writable, page_bytes each, one a key).

        Destinations after the hit's end are unspecified. Raises BufferMismatchError, LimitExceededError,
        UnknownNamespaceError.
        """
        ...

    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        stamp: Stamp | None,
        start: int = 0,
    ) -> list[PutOutcome]:
        """Store pages `keys[start:]` from `sources` (page_bytes each, one a stored key).

        keys[:start] are the ancestors. `stamp` is the position that was loaded before the computation began and before
        it reused anything (rule R1); None: none was, and every page is refused as STAMP_FOREIGN. One outcome a source, in
        order. Raises BufferMismatchError, LimitExceededError, UnknownNamespaceError.
        """
        ...

    def stamp(self) -> Stamp | None:
        """Return the log position to load before any reuse, or None while there is none."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counters and gauges by name."""
        ...
