"""What the gRPC service needs of a store of pages, as a protocol; `sidecar.serving.arena_service` meets it with the arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_types.ids import LifeId, NamespaceId, PageKey, Stamp
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import Known, LookUpOutcome, MissReason, PutOutcome, Refused
from kv_types.validity import UNKNOWN_INSTANCE


@dataclass(frozen=True, slots=True)
class ServedNamespace:
    """A registered namespace; `page_bytes` is the payload of one of its pages."""

    id: NamespaceId
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """A reserved place of one page: `view` is writable, page_bytes long, and valid until commit or abort."""

    reservation: int
    view: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTerms:
    """What all pages of one put share. `stamp` is the position that their computation started from (rule R1).

    `rests_on` is the instance of the deepest page that their request reused.
    """

    stamp: Stamp
    ttl_s: int | None = None
    producer: bytes = b""
    tags: tuple[bytes, ...] = ()
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    rests_on: int = UNKNOWN_INSTANCE


class LeasedPages(Protocol):
    """The longest servable prefix behind `start`, pinned until released."""

    @property
    def views(self) -> Sequence[memoryview]:
        """One read-only view a page, page_bytes long each."""
        ...

    @property
    def ended_by(self) -> MissReason:
        """Why it is no longer."""
        ...

    @property
    def instance(self) -> int:
        """Instance of the last page, NO_INSTANCE for none."""
        ...

    @property
    def pages_l3(self) -> int:
        """How many of them, the last ones, were brought from L3 for this call."""
        ...

    @property
    def load(self) -> LoadDecision | None:
        """What was chosen between loading and computing; None where L3 was not asked, or had nothing."""
        ...

    def release(self) -> None:
        """Let go of the pages; may be called twice."""
        ...


class ServedStore(Protocol):
    """One thread's store. Misses and refusals are values; errors are the caller's faults."""

    @property
    def life(self) -> LifeId:
        """This life of the sidecar."""
        ...

    def stamp(self) -> Stamp | None:
        """Return the position to load before any reuse, or None while there is none."""
        ...

    def register_namespace(self, canonical: bytes, page_bytes: int) -> ServedNamespace:
        """Make a namespace known. Raises ProtocolError, LayoutConflictError, LimitExceededError."""
        ...

    async def list_namespace(self, namespace: NamespaceId) -> bool:
        """Have a registered namespace listed, so that what is begun from then on may be stored under it.

        False where that takes too long, or can't be now.
        """
        ...

    def served_namespace(self, namespace: NamespaceId) -> ServedNamespace:
        """Return a registered namespace; raises UnknownNamespaceError."""
        ...

    def look_up_chain(self, namespace: NamespaceId, keys: bytes) -> LookUpOutcome:
        """Tell how much of a chain could be served now; pins nothing, counts nothing."""
        ...

    async def lease_chain(
        self,
        namespace: NamespaceId,
        keys: bytes,
        *,
        start: int,
        wait_s: float,
        compute: ComputeCost | None = None,
    ) -> LeasedPages:
        """Pin what can be served of keys[start:], once what this node lacks was loaded, for `wait_s` seconds at most.

        `compute`: of the chain's pages, from its first on; no more is loaded than that takes longer.

        Counted as one look-up of the whole chain, when it is over.
        """
        ...

    def prefetch(
        self, namespace: NamespaceId, rows: Sequence[bytes], *, compute: ComputeCost | None = None
    ) -> list[int]:
        """Begin to load what this node lacks of chains, and return at once: pages of each that may come."""
        ...

    def reserve_page(
        self, namespace: NamespaceId, *, parent: PageKey | None, key: PageKey, ttl_s: int | None
    ) -> Place | Known | Refused:
        """Reserve a place for one page; `parent` is None for the first of a chain."""
        ...

    def commit_page(self, place: Place, terms: PutTerms) -> PutOutcome:
        """Make a filled place visible, unless its chain became invalid since the stamp (rule R2)."""
        ...

    def abort_page(self, place: Place) -> None:
        """Give a place back."""
        ...

    def count_written(self, namespace: NamespaceId, written_bytes: int) -> None:
        """Account payload bytes that a put moved."""
        ...
