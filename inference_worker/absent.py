"""Pages that cannot be reached: a miss or refusal with the reason, counted, unless they come into reach in time."""

from __future__ import annotations

from collections.abc import Callable

from inference_worker.buffers import Buffers, page_sources, page_views
from inference_worker.chains import pages_after
from inference_worker.deadlines import Deadline
from inference_worker.lease import PageLease, empty_lease
from inference_worker.namespaces import REFUSE_FOR, Begun, Pages, PutTerms, RegisteredNamespace
from inference_worker.reused import ReusedPages
from kv_types.outcomes import LookUpOutcome, Miss, MissReason, PutOutcome, Refused
from kv_types.page_keys import Keys

Acquire = Callable[[RegisteredNamespace, Deadline], Pages | MissReason]
"""Returns pages that can be reached now, or why not, within the deadline. Raises ClosedError when the client is closed."""


class AbsentPages:
    """Asks `acquire` at each call, since the pages may have come into reach; answers and counts the miss otherwise."""

    __slots__ = ("_acquire", "_deadline_s", "_looked", "_namespace")

    def __init__(
        self,
        namespace: RegisteredNamespace,
        acquire: Acquire,
        *,
        deadline_s: float,
        looked: Callable[[], None] = lambda: None,
    ) -> None:
        """`looked` hears of each look-up that is counted as missed here."""
        self._namespace = namespace
        self._acquire = acquire
        self._deadline_s = deadline_s
        self._looked = looked

    def match(self, keys: Keys, start: int) -> LookUpOutcome:
        """Answer as the pages do when they are in reach, else Miss."""
        pages_after(keys, start)
        found = self._acquire(self._namespace, Deadline(self._deadline_s))
        return Miss(found) if isinstance(found, MissReason) else found.match(keys, start)

    def lease(
        self, keys: Keys, start: int, deadline: Deadline | None, reused: ReusedPages | None = None
    ) -> PageLease:
        """Lease when the pages are in reach, else return an empty lease."""
        wanted = pages_after(keys, start)
        deadline = Deadline(self._deadline_s) if deadline is None else deadline
        found = self._acquire(self._namespace, deadline)
        if not isinstance(found, MissReason):
            return found.lease(keys, start, deadline, reused)
        self._count(wanted, start, found)
        return empty_lease(found)

    def lease_left(self, keys: Keys, start: int, missed: MissReason) -> PageLease:
        """Lease when the pages are in reach, else return an empty lease."""
        wanted = pages_after(keys, start)
        found = self._acquire(self._namespace, Deadline(0.0))
        if not isinstance(found, MissReason):
            return found.lease_left(keys, start, missed)
        self._count(wanted, start, found)
        return empty_lease(found)

    def lease_uncounted(self, keys: Keys, start: int, deadline: Deadline | None) -> PageLease:
        """Lease when the pages are in reach, else return an empty lease."""
        pages_after(keys, start)
        deadline = Deadline(self._deadline_s) if deadline is None else deadline
        found = self._acquire(self._namespace, deadline)
        if isinstance(found, MissReason):
            return empty_lease(found)
        return found.lease_uncounted(keys, start, deadline)

    def get(
        self,
        keys: Keys,
        destinations: Buffers,
        start: int,
        deadline: Deadline,
        reused: ReusedPages | None = None,
    ) -> LookUpOutcome:
        """Get when the pages are in reach, else Miss. Raises BufferMismatchError as the pages would."""
        wanted = pages_after(keys, start)
        found = self._acquire(self._namespace, deadline)
        if not isinstance(found, MissReason):
            return found.get(keys, destinations, start, deadline, reused)
        self._check(destinations, wanted, writable=True, what="destination")
        self._count(wanted, start, found)
        return Miss(found)

    def put(self, keys: Keys, sources: Buffers, terms: PutTerms) -> list[PutOutcome]:
        """Put when the pages are in reach, else refuse each. Raises BufferMismatchError as the pages would."""
        offered = pages_after(keys, terms.start)
        found = self._acquire(self._namespace, terms.deadline)
        if not isinstance(found, MissReason):
            return found.put(keys, sources, terms)
        if self._namespace.uncacheable is None:
            page_sources(sources, pages=offered, page_bytes=self._namespace.page_bytes)
        return [Refused(REFUSE_FOR[found])] * offered

    def begin(self, deadline: Deadline) -> Begun:
        """Begin when the pages are in reach; else nothing that the request computes can be stored (R1)."""
        found = self._acquire(self._namespace, deadline)
        return Begun(refused=REFUSE_FOR[found]) if isinstance(found, MissReason) else found.begin(deadline)

    def _check(self, buffers: Buffers, pages: int, *, writable: bool, what: str) -> None:
        if self._namespace.uncacheable is None:
            page_views(
                buffers, pages=pages, page_bytes=self._namespace.page_bytes, writable=writable, what=what
            )

    def _count(self, wanted: int, start: int, reason: MissReason) -> None:
        self._namespace.counts.look_up(requested=start + wanted, l1=start, reason=reason)
        self._looked()
