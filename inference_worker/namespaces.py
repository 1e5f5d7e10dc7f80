"""A namespace as one client knows it, and what can be done with its pages wherever they are reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inference_worker.accounting import OwnCounts
from inference_worker.buffers import Buffers
from inference_worker.deadlines import Deadline
from inference_worker.lease import PageLease
from inference_worker.reused import ReusedPages
from kv_types.errors import InvalidArgumentError
from kv_types.ids import LifeId, NamespaceId, Stamp
from kv_types.limits import PAGE_BYTES_MAX
from kv_types.namespace import Namespace, Uncacheable
from kv_types.numbers import check_integer
from kv_types.outcomes import LookUpOutcome, MissReason, PutOutcome, Refused, RefuseReason, Stored
from kv_types.page_keys import Keys
from kv_types.page_layout import PageLayout, check_page_bytes
from kv_types.scale_groups import check_stored_as
from kv_types.validity import UNKNOWN_INSTANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTerms:
    """How pages are to be stored.

    start: index in the chain of the first page to store. stamp: the position that was loaded before the computation
    began (R1). ttl_s: None takes the sidecar's default, 0 is never. computed_*_ms: the producer's wall clock, 0 when
    unknown. reused: what the request has reused; None outside of one.
    """

    deadline: Deadline
    stamp: Stamp
    start: int = 0
    ttl_s: int | None = None
    tags: tuple[bytes, ...] = ()
    producer: bytes = b""
    computed_from_ms: int = 0
    computed_until_ms: int = 0
    reused: ReusedPages | None = None

    def rests_on(self, packed: bytes, *, first: int, life: LifeId) -> int:
        """Instance that pages from index `first` of a chain on were computed on, for an arena of this life.

        Outside of a request nobody knows what was reused.
        """
        if self.reused is None:
            return UNKNOWN_INSTANCE
        return self.reused.rests_on(packed, first=first, life=life)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a request loaded before any reuse (R1, R16), and how it gives its place back.

    `refused` says why nothing that it computes may be stored; then there is no stamp.
    """

    stamp: Stamp | None = None
    view: int = 0
    freshness_ns: int = 0
    refused: RefuseReason = RefuseReason.NONE
    end: Callable[[], None] = field(default=lambda: None)


class Pages(Protocol):
    """The pages of one namespace over one way to reach them. Keys are a chain from the root, as in PageStore.

    `reused` and the terms of a put belong to a request, which is told what it was given and what it stored.
    """

    def match(self, keys: Keys, start: int) -> LookUpOutcome:
        """Tell how many pages of keys[start:] could be served."""
        ...

    def lease(
        self, keys: Keys, start: int, deadline: Deadline | None, reused: ReusedPages | None = None
    ) -> PageLease:
        """Pin the longest servable prefix of keys[start:]; `deadline` None is the client's usual one."""
        ...

    def lease_left(self, keys: Keys, start: int, missed: MissReason) -> PageLease:
        """Pin what L2 has of keys[start:], and wait for nothing; what is absent misses for the reason `missed`."""
        ...

    def lease_uncounted(self, keys: Keys, start: int, deadline: Deadline | None) -> PageLease:
        """Pin what L2 has of keys[start:], a look-up that somebody else has counted; nothing is loaded for it."""
        ...

    def get(
        self,
        keys: Keys,
        destinations: Buffers,
        start: int,
        deadline: Deadline,
        reused: ReusedPages | None = None,
    ) -> LookUpOutcome:
        """Copy the longest servable prefix of keys[start:] out."""
        ...

    def put(self, keys: Keys, sources: Buffers, terms: PutTerms) -> list[PutOutcome]:
        """Store keys[terms.start:]."""
        ...

    def begin(self, deadline: Deadline) -> Begun:
        """Load freshness and view for a request."""
        ...


class RegisteredNamespace:
    """A namespace registered with one client; stays valid over every life of the sidecar.

    Made by `Client.register`. `page_bytes` is the size of one page, 0 when uncacheable. For an uncacheable
    computation `uncacheable` holds the reason, and every operation answers with it.
    """

    __slots__ = ("absent", "counts", "namespace", "owner", "page_bytes", "pages", "uncacheable")

    def __init__(self, owner: object, identity: Namespace | Uncacheable, *, page_bytes: int) -> None:
        self.owner: object | None = owner
        """The link it was registered with; None once it was forgotten."""
        self.namespace = identity if isinstance(identity, Namespace) else None
        self.uncacheable = identity if isinstance(identity, Uncacheable) else None
        self.page_bytes = page_bytes
        self.counts = OwnCounts()
        self.absent: Pages
        """What `pages` is while nothing serves this namespace."""
        self.pages: Pages
        """How its pages are reached now; replaced as a whole when the connection comes or goes."""

    @property
    def id(self) -> NamespaceId:
        """The namespace's 32 bytes; raises InvalidArgumentError for an uncacheable computation, which has none."""
        return self.identified.id

    @property
    def identified(self) -> Namespace:
        """The namespace itself; raises InvalidArgumentError for an uncacheable computation."""
        if self.namespace is None:
            raise InvalidArgumentError(f"an uncacheable computation has no namespace: {self.uncacheable}")
        return self.namespace

    @property
    def label(self) -> str:
        """What it is called in statistics: the id in hexadecimal, or the reason why there is none."""
        if self.uncacheable is not None:
            return f"uncacheable:{self.uncacheable.reason.value}"
        return self.id.hex()

    def __repr__(self) -> str:
        return f"RegisteredNamespace({self.label}, page_bytes={self.page_bytes})"


def page_bytes_of(identity: Namespace | Uncacheable, page_bytes: int | None) -> int:
    """Return the size of one page: given for an engine's own layout, known for the canonical one, 0 if uncacheable.

    Raises InvalidArgumentError when it has to be given and is not, LayoutConflictError when it contradicts the
    geometry or can't be stored as the namespace says, LimitExceededError.
    """
    if isinstance(identity, Uncacheable):
        return 0
    if page_bytes is None:
        return PageLayout.of(identity).page_bytes
    check_integer(page_bytes, "page_bytes", low=1, high=PAGE_BYTES_MAX)
    check_page_bytes(identity, page_bytes)
    check_stored_as(identity, page_bytes)
    return page_bytes


REFUSE_FOR: dict[MissReason, RefuseReason] = {
    MissReason.UNREACHABLE: RefuseReason.UNREACHABLE,
    MissReason.DEADLINE: RefuseReason.DEADLINE,
    MissReason.UNCACHEABLE: RefuseReason.UNCACHEABLE,
    MissReason.CLOSED: RefuseReason.CLOSED,
    MissReason.OVERLOADED: RefuseReason.OVERLOADED,
    MissReason.STALE: RefuseReason.UNLISTED,
}
"""Why a put is refused where a look-up would miss before it reached any page."""

_UNCONFIRMED = frozenset({RefuseReason.DEADLINE, RefuseReason.UNREACHABLE})


def pages_maybe_stored(outcomes: Sequence[PutOutcome]) -> int:
    """Pages of a put up to the last that was stored, or may have been without its being confirmed."""
    for at in range(len(outcomes), 0, -1):
        outcome = outcomes[at - 1]
        if isinstance(outcome, Stored) or (isinstance(outcome, Refused) and outcome.reason in _UNCONFIRMED):
            return at
    return 0
