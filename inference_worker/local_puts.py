"""Puts into shared memory: without a round trip where slots were granted in advance, else reserve, fill in place, commit."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Sequence

from cache_l2._native import Reader
from cache_l2.attach_messages import Commit
from cache_l2.attach_registrations import Registration
from cache_l2.attach_wire import encode_message
from cache_l2.reader import AttachedArena, Reserved
from inference_worker.buffers import PageSource
from inference_worker.namespaces import PutTerms, pages_maybe_stored
from inference_worker.reused import ReusedPages, Run
from kv_types.errors import ClosedError, ProtocolError
from kv_types.ids import KEY_BYTES, LifeId, PageKey
from kv_types.limits import BATCH_PAGES_MAX, GRANTS_PER_CLIENT_MAX
from kv_types.outcomes import STORED, PutOutcome, Refused, RefuseReason, Stored
from kv_types.validity import UNKNOWN_INSTANCE, stored_instance

_ABORT_DEADLINE_S = 0.01
"""An abort is not waited for: a put must not outlast its deadline, and the sidecar takes reservations back anyway."""
_SECOND_NS = 1_000_000_000
_UNANSWERED = 0
_LATE = 2
_Put = tuple[PutOutcome, int]
"""What became of one page of a put, and its instance: unknown where it was not stored, or is not known to be."""


class LocalPuts:
    """Stores pages of one namespace in one life of the sidecar."""

    __slots__ = ("_attached", "_life", "_page_bytes", "_reader", "_registration")

    def __init__(
        self,
        attached: AttachedArena,
        reader: Reader,
        registration: Registration,
        *,
        life: LifeId,
        page_bytes: int,
    ) -> None:
        self._attached = attached
        self._reader = reader
        self._registration = registration
        self._life = life
        self._page_bytes = page_bytes

    def store(
        self, packed: bytes, views: Sequence[PageSource], terms: PutTerms, *, first: int, resident: int
    ) -> list[PutOutcome]:
        """Store pages of a chain from index `first` on; one outcome a view. `resident` pages of the chain were found here.

        Raises ValueError once the mapping is closed.
        """
        rests_on = terms.rests_on(packed, first=first, life=self._life)
        puts: list[_Put] = []
        for begin in range(0, len(views), BATCH_PAGES_MAX):
            batch = views[begin : begin + BATCH_PAGES_MAX]
            posted = self._post(packed, batch, first + begin, terms, rests_on, resident)
            puts += posted or self._store_batch(packed, batch, first + begin, terms, rests_on)
            if isinstance(puts[-1][0], Refused):
                # What follows stands on a page that is not there.
                puts += [(puts[-1][0], UNKNOWN_INSTANCE)] * (len(views) - len(puts))
                break
        if terms.reused is not None:
            self._note_stored(terms.reused, packed, first, puts)
        return [outcome for outcome, _ in puts]

    def _note_stored(self, reused: ReusedPages, packed: bytes, first: int, puts: Sequence[_Put]) -> None:
        pages = pages_maybe_stored([outcome for outcome, _ in puts])
        numbers = array("Q", [number for _, number in puts[:pages]])
        if pages:
            reused.stored(packed, Run(self._life, first, pages, numbers[-1], numbers))

    def _post(
        self,
        packed: bytes,
        batch: Sequence[PageSource],
        first: int,
        terms: PutTerms,
        rests_on: int,
        resident: int,
    ) -> list[_Put] | None:
        """Fill slots that were granted in advance, and leave word of it; None where the sidecar must be asked.

        The sidecar has not seen these pages yet when they count as stored, but whoever looks one up from now on waits for it.
        """
        left_s = terms.deadline.remaining_s()
        if len(batch) > GRANTS_PER_CLIENT_MAX or left_s <= 0:
            return None
        told = Commit(
            reservations=(), stamp=terms.stamp, producer=terms.producer, tags=terms.tags,
            computed_from_ms=terms.computed_from_ms, computed_until_ms=terms.computed_until_ms, rests_on=rests_on,
        )  # fmt: skip
        kind, ids = self._reader.post(
            self._registration.counter,
            packed[: (first + len(batch)) * KEY_BYTES],
            batch,
            namespace=self._registration.number,
            start=first,
            resident=resident,
            page_bytes=self._page_bytes,
            incarnation=terms.stamp.incarnation,
            revision=terms.stamp.revision,
            ttl_s=-1 if terms.ttl_s is None else terms.ttl_s,
            deadline_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(left_s * _SECOND_NS),
            terms=encode_message(told, _UNANSWERED),
        )
        if kind == _LATE:
            return [(Refused(RefuseReason.DEADLINE), UNKNOWN_INSTANCE)] * len(batch)
        return [(STORED, stored_instance(reservation)) for reservation in ids] or None

    def _store_batch(
        self,
        packed: bytes,
        batch: Sequence[PageSource],
        first: int,
        terms: PutTerms,
        rests_on: int,
    ) -> list[_Put]:
        """Reserve, fill and commit one batch: two round trips. What was not confirmed is refused with the reason."""
        keys = packed[first * KEY_BYTES : (first + len(batch)) * KEY_BYTES]
        parent = PageKey(packed[(first - 1) * KEY_BYTES : first * KEY_BYTES]) if first else None
        try:
            places = self._attached.reserve(
                self._registration, parent, keys, ttl_s=terms.ttl_s, deadline_s=terms.deadline.remaining_s()
            )
        except (ClosedError, ProtocolError):  # withdrawn by another thread, or cut off for talking nonsense
            return [(Refused(RefuseReason.UNREACHABLE), UNKNOWN_INSTANCE)] * len(batch)
        reserved = [(at, place) for at, place in enumerate(places) if isinstance(place, Reserved)]
        puts: list[_Put] = [
            (Refused(RefuseReason.UNREACHABLE) if isinstance(place, Reserved) else place, UNKNOWN_INSTANCE)
            for place in places
        ]
        if reserved:
            committed = self._fill_and_commit(reserved, batch, terms, rests_on)
            for (at, place), outcome in zip(reserved, committed, strict=True):
                is_stored = isinstance(outcome, Stored)
                puts[at] = (outcome, stored_instance(place.id) if is_stored else UNKNOWN_INSTANCE)
        return puts

    def _fill_and_commit(
        self,
        reserved: Sequence[tuple[int, Reserved]],
        batch: Sequence[PageSource],
        terms: PutTerms,
        rests_on: int,
    ) -> list[PutOutcome]:
        ids = [place.id for _, place in reserved]
        settled = False
        try:
            self._reader.fill(
                [place.offset for _, place in reserved],
                [batch[at] for at, _ in reserved],
                page_bytes=self._page_bytes,
                counter=self._registration.counter,
            )
            if terms.deadline.passed:
                return [Refused(RefuseReason.DEADLINE)] * len(ids)
            outcomes = self._attached.commit(
                ids,
                stamp=terms.stamp,
                producer=terms.producer,
                tags=terms.tags,
                computed_from_ms=terms.computed_from_ms,
                computed_until_ms=terms.computed_until_ms,
                rests_on=rests_on,
                deadline_s=terms.deadline.remaining_s(),
            )
        except (ClosedError, ProtocolError):  # withdrawn by another thread, or cut off for talking nonsense
            return [Refused(RefuseReason.UNREACHABLE)] * len(ids)
        else:
            settled = True
            return outcomes
        finally:
            # Nothing was published: kept, the places would make these pages BUSY for everybody until they run out.
            if not settled:
                with contextlib.suppress(ClosedError):
                    self._attached.abort(ids, deadline_s=_ABORT_DEADLINE_S)
