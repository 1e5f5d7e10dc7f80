"""Pages in shared memory: the thin layer between the client and the native reader of one sidecar's life."""

from __future__ import annotations

import contextlib
import time
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from cache_l2._native import Lease
from cache_l2.attach_registrations import Registration
from inference_worker.buffers import Buffers, page_sources, page_views
from inference_worker.chains import packed_chain
from inference_worker.deadlines import Deadline
from inference_worker.lease import PageLease
from inference_worker.loading import Staged
from inference_worker.local_puts import LocalPuts
from inference_worker.namespaces import Begun, Pages, PutTerms, RegisteredNamespace
from inference_worker.reused import ReusedPages, Run
from inference_worker.settings import ClientSettings
from kv_types.errors import InvalidArgumentError
from kv_types.ids import KEY_BYTES, LogIncarnation, Stamp
from kv_types.limits import OUTCOMES_SHARED_MAX
from kv_types.loading import LoadDecision
from kv_types.outcomes import (
    KNOWN,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    Pending,
    PutOutcome,
    RefuseReason,
    Tier,
)
from kv_types.page_keys import Keys
from kv_types.validity import NO_INSTANCE

if TYPE_CHECKING:
    from inference_worker.local import LocalArena

_REASONS = tuple(MissReason)
_OUTCOMES: dict[tuple[int, int], LookUpOutcome] = {}


class _Got(NamedTuple):
    """What a first copying look-up gave; `words` tells the instances of a request's pages."""

    pages: int
    reason: int
    last: int
    words: array[int] | None


def outcome_of(found: tuple[int, int]) -> LookUpOutcome:
    """Turn the native (pages, reason) into an outcome. Outcomes are frozen, so the common ones are shared."""
    known = _OUTCOMES.get(found)
    if known is not None:
        return known
    pages, reason = found
    outcome: LookUpOutcome = (
        Hit(pages, Tier.L2, _REASONS[reason]) if pages or not reason else Miss(_REASONS[reason])
    )
    if len(_OUTCOMES) < OUTCOMES_SHARED_MAX:
        _OUTCOMES[found] = outcome
    return outcome


def _outcome_with_l3(pages: int, reason: int, pages_l3: int) -> Hit:
    return Hit(pages, Tier.L3, _REASONS[reason], pages_l3)


def _pages_from(l3_from: int | None, first: int, pages: int) -> int:
    """How many of `pages` pages of a chain, which begin at index `first`, lie at or behind `l3_from`."""
    return 0 if l3_from is None else max(0, first + pages - max(first, l3_from))


class LocalPages:
    """Pages of one namespace in one life. See namespaces.Pages."""

    __slots__ = (
        "_arena", "_copies", "_counter", "_deadline_s", "_lease_ns", "_loader", "_namespace", "_number", "_puts", "_reader",
        "_take", "registration",
    )  # fmt: skip

    def __init__(
        self,
        arena: LocalArena,
        namespace: RegisteredNamespace,
        registration: Registration,
        *,
        settings: ClientSettings,
    ) -> None:
        self._arena = arena
        self._namespace = namespace
        self._reader = arena.reader
        self._take = arena.reader.lease
        self._copies = arena.loads.copies
        self._loader = arena.loader
        self._puts = LocalPuts(
            arena.connection(), arena.reader, registration, life=arena.life, page_bytes=namespace.page_bytes
        )
        self._counter = registration.counter
        self._number = registration.number
        self._deadline_s = settings.deadline_s
        self._lease_ns = int(settings.copy_lease_s * 1e9)
        self.registration = registration

    def lease(
        self, keys: Keys, start: int, deadline: Deadline | None, reused: ReusedPages | None = None
    ) -> PageLease:
        """Pin the longest servable prefix of keys[start:]; nothing but a native call for packed keys that are all there."""
        try:
            may_load = self._loader is not None and (deadline is None or deadline.may_wait)
            if not may_load:
                held = self._take(self._counter, keys, namespace=self._number, start=start)  # type: ignore[arg-type]
            else:
                held = self._take(
                    self._counter,
                    keys,  # type: ignore[arg-type]
                    namespace=self._number,
                    start=start,
                    may_load=True,
                )
            if self._reader.recording:
                self._tell_look_up(keys)
            if may_load and held.reason == MissReason.ABSENT:
                deadline = Deadline(self._deadline_s) if deadline is None else deadline
                return self._load_and_lease(keys, start, held, deadline, reused)
        except (ValueError, TypeError) as error:
            packed, _ = packed_chain(keys, start)
            if packed is not keys:
                return self.lease(packed, start, deadline, reused)
            return self._elsewhere(error).lease(packed, start, deadline, reused)
        if reused is not None:
            self._note_leased(reused, keys, start, held)
        return PageLease(held, self._arena)

    def lease_left(self, keys: Keys, start: int, missed: MissReason) -> PageLease:
        """Pin what is here of keys[start:] and ask for nothing: the caller knows why the rest was not brought."""
        packed, _ = packed_chain(keys, start)
        try:
            held = self._take(self._counter, packed, namespace=self._number, start=start, may_load=True)
            if self._reader.recording:
                self._tell_look_up(packed)
            if held.reason != MissReason.ABSENT:
                return PageLease(held, self._arena)
            try:
                done = self._reader.complete_lease(
                    self._counter, packed, namespace=self._number, start=start, reason=missed, may_await=False
                )
            finally:
                held.release()
        except ValueError as error:
            return self._elsewhere(error).lease_left(packed, start, missed)
        return PageLease(done, self._arena)

    def lease_uncounted(self, keys: Keys, start: int, deadline: Deadline | None) -> PageLease:
        """Pin the longest servable prefix of keys[start:]; another process has counted its look-up."""
        try:
            held = self._reader.lease_uncounted(keys, namespace=self._number, start=start)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            packed, _ = packed_chain(keys, start)
            if packed is not keys:
                return self.lease_uncounted(packed, start, deadline)
            return self._elsewhere(error).lease_uncounted(packed, start, deadline)
        return PageLease(held, self._arena)

    def match(self, keys: Keys, start: int) -> LookUpOutcome:
        """Tell how many pages of keys[start:] could be served."""
        try:
            return outcome_of(self._reader.match(keys, namespace=self._number, start=start))  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            packed, _ = packed_chain(keys, start)
            if packed is not keys:
                return self.match(packed, start)
            return self._elsewhere(error).match(packed, start)

    def get(
        self,
        keys: Keys,
        destinations: Buffers,
        start: int,
        deadline: Deadline,
        reused: ReusedPages | None = None,
    ) -> LookUpOutcome:
        """Copy the longest servable prefix of keys[start:] out, without the GIL."""
        try:
            return self._copy_out(keys, destinations, start, deadline, reused)
        except (ValueError, TypeError) as error:
            packed, wanted = packed_chain(keys, start)
            views = self._views(destinations, wanted)
            if packed is not keys or views is not destinations:
                return self._get_views(packed, views, start, deadline, reused)
            return self._elsewhere(error).get(packed, views, start, deadline, reused)

    def put(self, keys: Keys, sources: Buffers, terms: PutTerms) -> list[PutOutcome]:
        """Store keys[terms.start:]: what is known already is not sent, the rest goes in batches, parents first."""
        writer = self._arena.writer(self._namespace)
        if writer is not None:
            return writer.put(keys, sources, terms)
        packed, offered = packed_chain(keys, terms.start)
        views = page_sources(sources, pages=offered, page_bytes=self._namespace.page_bytes)
        try:
            # What this client has posted itself is not waited for: pages may be stored on top of it.
            resident, _ = self._reader.match(packed, namespace=self._number, may_await=False)
            known = max(0, resident - terms.start)
            first = terms.start + known
            stored = self._puts.store(packed, views[known:], terms, first=first, resident=resident)
            return [KNOWN] * known + stored
        except ValueError as error:
            return self._elsewhere(error).put(packed, views, terms)

    def begin(self, deadline: Deadline) -> Begun:
        """Load freshness, then the view (R16), and publish that a request rests on it (R19)."""
        reader, request = self._reader, self._arena.request_begins()
        try:
            freshness_ns = reader.freshness_ns()
            slot, view, incarnation, revision = reader.begin_request()
        except BaseException as error:
            self._arena.request_ended(request)
            if not isinstance(error, ValueError):
                raise
            return self._elsewhere(error).begin(deadline)
        if slot < 0:
            self._arena.request_ended(request)
            # A request that holds no place could not hold back `drained`: nothing of it may be kept.
            return Begun(view=view, freshness_ns=freshness_ns, refused=RefuseReason.QUOTA)
        stamp = Stamp(LogIncarnation(incarnation), revision)
        return Begun(
            stamp=stamp,
            view=view,
            freshness_ns=freshness_ns,
            end=lambda: self._end_request(slot, request),
        )

    def _get_views(
        self,
        packed: bytes,
        views: list[memoryview],
        start: int,
        deadline: Deadline,
        reused: ReusedPages | None,
    ) -> LookUpOutcome:
        try:
            return self._copy_out(packed, views, start, deadline, reused)
        except ValueError as error:
            return self._elsewhere(error).get(packed, views, start, deadline, reused)

    def _copy_out(
        self, keys: Keys, destinations: Buffers, start: int, deadline: Deadline, reused: ReusedPages | None
    ) -> LookUpOutcome:
        """Ask the native reader; a request is told which pages came. Raises ValueError, TypeError as it does."""
        words = None if reused is None else array("Q", bytes(8 * (len(keys) // KEY_BYTES)))
        may_load = self._loader is not None and deadline.may_wait
        began_ns = self._copies.begin_ns()
        pages, reason, last = self._reader.get(
            self._counter,
            keys,  # type: ignore[arg-type]
            destinations,  # type: ignore[arg-type]
            namespace=self._number,
            page_bytes=self._namespace.page_bytes,
            start=start,
            lease_ns=self._lease_ns,
            instances=words,
            may_load=may_load,
        )
        self._copies.ended(began_ns, pages * self._namespace.page_bytes)
        if self._reader.recording:
            self._tell_look_up(keys)
        got, pages_l3, decision = _Got(pages, reason, last, words), 0, None
        if may_load and reason == MissReason.ABSENT:
            pages, reason, last, pages_l3, decision = self._load_and_get(
                keys, destinations, start, got, deadline, reused
            )
        if reused is not None and pages:
            packed, _ = packed_chain(keys, start)
            self._note_copied(reused, packed, start, got, pages=pages, last=last)
        found = outcome_of((pages, reason)) if not pages_l3 else _outcome_with_l3(pages, reason, pages_l3)
        return found if decision is None or isinstance(found, Pending) else replace(found, load=decision)

    def _tell_look_up(self, keys: Keys) -> None:
        """Tell of a counted look-up, which is being recorded; never waits."""
        self._arena.looked(self._number, packed_chain(keys, 0)[0])

    # --- what L2 lacks: the look-up was begun, and is counted when the load is over ---

    def _load_and_lease(
        self, keys: Keys, start: int, held: Lease, deadline: Deadline, reused: ReusedPages | None
    ) -> PageLease:
        """Have the rest brought while what is there stays pinned, then lease all. Raises ValueError as the reader does."""
        packed, _ = packed_chain(keys, start)
        try:
            staged = self._stage(packed, start, held.pages, deadline, reused)
            done = self._reader.complete_lease(
                self._counter,
                packed,
                namespace=self._number,
                start=start,
                l3_from=staged.l3_from,
                reason=staged.reason,
                # what was posted meanwhile is worth no more time than was given
                may_await=not deadline.passed,
            )
        finally:
            held.release()
        pages_l3 = _pages_from(staged.l3_from, start, done.pages)
        if reused is not None:
            reused.pages_l3 += pages_l3
            self._note_leased(reused, packed, start, done)
        return PageLease(done, self._arena, pages_l3, staged.decision)

    def _load_and_get(
        self,
        keys: Keys,
        destinations: Buffers,
        start: int,
        got: _Got,
        deadline: Deadline,
        reused: ReusedPages | None,
    ) -> tuple[int, int, int, int, LoadDecision | None]:
        """Have the rest brought and copy it behind what was copied: pages, reason, last instance, pages from L3, what was chosen.

        Raises ValueError as the reader does.
        """
        packed, wanted = packed_chain(keys, start)
        pinned = self._reader.pin(got.last) if got.pages else None  # so that its children find it
        try:
            staged = self._stage(packed, start, got.pages, deadline, reused)
            more, reason, last = self._reader.complete_get(
                self._counter,
                packed,
                self._views(destinations, wanted)[got.pages :],
                namespace=self._number,
                page_bytes=self._namespace.page_bytes,
                start=start + got.pages,
                lease_ns=self._lease_ns,
                instances=got.words,
                l1=start,
                l3_from=staged.l3_from,
                reason=staged.reason,
                may_await=not deadline.passed,
            )
        finally:
            if pinned is not None:
                pinned.release()
        pages = got.pages + more
        pages_l3 = _pages_from(staged.l3_from, start + got.pages, more)
        if reused is not None:
            reused.pages_l3 += pages_l3
        return pages, reason, last if more else got.last, pages_l3, staged.decision

    def _stage(
        self, packed: bytes, start: int, found: int, deadline: Deadline, reused: ReusedPages | None
    ) -> Staged:
        """Load what follows the `found` pages from `start` on; a look-up that is given up here is counted as aborted."""
        assert self._loader is not None, "nothing is begun without a loader"
        began_ns = time.monotonic_ns()
        try:
            first = start + found
            if start and not found:
                # what the caller's L1 has may be gone here, and a page can stand on its parent only
                first = self._reader.match(packed[: start * KEY_BYTES], namespace=self._number)[0]
            tokens = self._namespace.identified.page_tokens
            return self._loader.stage(self._number, packed, first, deadline, page_tokens=tokens)
        except BaseException:
            with contextlib.suppress(ValueError):
                self._reader.complete(
                    self._counter, requested=len(packed) // KEY_BYTES, l1=start, reason=MissReason.ABORTED
                )
            raise
        finally:
            if reused is not None:
                reused.waited_ns += time.monotonic_ns() - began_ns

    def _note_copied(
        self, reused: ReusedPages, packed: bytes, start: int, got: _Got, *, pages: int, last: int
    ) -> None:
        """Note what was copied: first what `got` tells, then, after a load, what followed.

        That may stand on another page than the one that was copied: hidden meanwhile, and computed anew. Then they are no one
        run, or what rests on the hidden page would count as resting on the new one.
        """
        words, life, end = got.words, self._arena.life, start + pages
        assert words is not None, "a request is told instances"
        stands_on = words[start - 1] if start else NO_INSTANCE
        middle = start + got.pages
        if start < middle < end and words[middle - 1] != got.last:
            beneath, words[middle - 1] = words[middle - 1], got.last
            reused.found(packed, Run(life, start, got.pages, got.last, words[start:middle], stands_on))
            reused.found(packed, Run(life, middle, end - middle, last, words[middle:end], beneath))
        else:
            reused.found(packed, Run(life, start, pages, last, words[start:end], stands_on))

    def _note_leased(self, reused: ReusedPages, keys: Keys, start: int, held: Lease) -> None:
        if held.pages:
            packed, _ = packed_chain(keys, start)
            run = Run(self._arena.life, start, held.pages, held.instance, held.instances(), held.stands_on)
            reused.found(packed, run)

    def _views(self, buffers: Buffers, pages: int) -> list[memoryview]:
        page_bytes = self._namespace.page_bytes
        return page_views(buffers, pages=pages, page_bytes=page_bytes, writable=True, what="destination")

    def _elsewhere(self, error: Exception) -> Pages:
        """Where to ask when the native reader refused arguments that are right: its mapping was closed meanwhile."""
        pages = self._namespace.pages
        if pages is self:
            raise InvalidArgumentError(str(error)) from error
        return pages

    def _end_request(self, slot: int, request: object) -> None:
        if not self._arena.inherited:
            # The mapping was closed, and all that rested on it has ended.
            with contextlib.suppress(ValueError):
                self._reader.end_request(slot)
            self._arena.request_ended(request)
