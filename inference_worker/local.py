"""Pages in shared memory: the thin layer between the client and the native reader of one sidecar's life."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Sequence

from cache_l2.reader import AttachedArena, Registration, Reserved
from inference_worker.accounting import PageCounts, of_row
from inference_worker.buffers import Buffers, page_views
from inference_worker.chains import packed_chain
from inference_worker.deadlines import Deadline
from inference_worker.lease import Home, PageLease
from inference_worker.namespaces import Begun, Pages, PutTerms, RegisteredNamespace, pages_maybe_stored
from inference_worker.reused import ReusedPages, Run
from inference_worker.settings import ClientSettings
from kv_types.errors import ClosedError, InvalidArgumentError, ProtocolError
from kv_types.ids import KEY_BYTES, LifeId, LogIncarnation, PageKey, Stamp
from kv_types.limits import BATCH_PAGES_MAX, OUTCOMES_SHARED_MAX
from kv_types.outcomes import (
    KNOWN,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Stored,
    Tier,
)
from kv_types.page_keys import Keys
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE, stored_instance

_REASONS = tuple(MissReason)
_OUTCOMES: dict[tuple[int, int], LookUpOutcome] = {}
_ABORT_DEADLINE_S = 0.01
"""An abort is not waited for: a put must not outlast its deadline, and the sidecar takes reservations back anyway."""
_Put = tuple[PutOutcome, int]
"""What became of one page of a put, and its instance: unknown where it was not stored, or is not known to be."""


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


Writer = Callable[[RegisteredNamespace], Pages]
"""Gives the pages of a namespace that puts go to."""


class LocalArena(Home):
    """One attach: the arena of one life, and the namespaces bound to it."""

    __slots__ = ("_attached", "_bound", "_is_leaving", "_lease_ns", "_requests", "_writer", "reader")

    def __init__(self, attached: AttachedArena, settings: ClientSettings, writer: Writer | None) -> None:
        super().__init__()
        self._attached = attached
        self._writer = writer
        self._bound: dict[RegisteredNamespace, LocalPages] = {}
        self._requests: set[object] = set()
        self._is_leaving = False
        self._lease_ns = int(settings.copy_lease_s * 1e9)
        self.reader = attached.reader

    @classmethod
    def attach(cls, path: str, settings: ClientSettings, *, writer: Writer | None) -> LocalArena:
        """Attach within settings.attach_deadline_s. Raises SidecarUnreachableError, HandshakeError.

        `writer` takes the puts of a client that attaches read-only; None: they go into shared memory.
        """
        attached = AttachedArena.connect(
            path,
            name=settings.name,
            writable=settings.writable,
            prefault=settings.prefault,
            engine=settings.engine,
            deadline_s=settings.attach_deadline_s,
        )
        return cls(attached, settings, writer)

    @property
    def life(self) -> LifeId:
        """The sidecar's life."""
        return self._attached.life

    def fileno(self) -> int:
        """Return the descriptor that hangs up when the sidecar ends."""
        return self._attached.fileno()

    def is_ending(self) -> bool:
        """Whether the sidecar has closed its header, or the connection broke."""
        return not self._attached.alive

    def bind(self, namespace: RegisteredNamespace, deadline: Deadline) -> LocalPages:
        """Register a namespace in this life. Raises StrataError."""
        identity = namespace.identified
        registration = self._attached.register(
            identity.canonical, namespace.page_bytes, deadline_s=deadline.remaining_s()
        )
        pages = LocalPages(self, namespace, registration, lease_ns=self._lease_ns)
        self._bound[namespace] = pages
        return pages

    def counts(self) -> dict[RegisteredNamespace, PageCounts]:
        """Pages that this client's row has counted up to now."""
        return {
            namespace: of_row(self.reader.counts(pages.registration.counter))
            for namespace, pages in list(self._bound.items())
        }

    def unbind(self, namespace: RegisteredNamespace) -> tuple[Registration | None, PageCounts]:
        """Forget a namespace that nothing uses any more: what to unregister, and what was counted under it."""
        pages = self._bound.pop(namespace, None)
        if pages is None:
            return None, PageCounts()
        try:
            return pages.registration, of_row(self.reader.counts(pages.registration.counter))
        except ValueError:  # the mapping was closed meanwhile, and its counts with it
            return None, PageCounts()

    def unregister(self, registration: Registration, deadline: Deadline) -> None:
        """Give a counter back; not confirmed in time, it may stay taken until this client leaves."""
        with contextlib.suppress(ClosedError, ProtocolError):  # gone meanwhile, and the row with it
            self._attached.unregister(registration, deadline_s=deadline.remaining_s())

    def resident(self, packed: bytes) -> int:
        """Pages of a chain that could be served now; 0 when the mapping was closed meanwhile."""
        try:
            return self.reader.match(packed)[0]
        except ValueError:
            return 0

    def stamp(self) -> Stamp | None:
        """The present log position; None when the mapping was closed meanwhile."""
        try:
            _, incarnation, revision = self.reader.stamp()
        except ValueError:
            return None
        return Stamp(LogIncarnation(incarnation), revision)

    def view(self) -> int:
        """Events published in this life; 0 once the header or this mapping is closed."""
        try:
            return 0 if self.reader.closed else self.reader.view
        except ValueError:
            return 0

    def freshness_ns(self) -> int:
        """Until when the sidecar vouches for its view; 0 once the header or this mapping is closed.

        A sidecar that closed its header has left the fleet (rule R13): no fence waits for what L1 would serve after that.
        """
        try:
            return 0 if self.reader.closed else self.reader.freshness_ns()
        except ValueError:
            return 0

    def events_since(self, view: int) -> list[tuple[int, bytes, int, int, bytes]] | None:
        """Events after `view`; None when they are not all there any more, or this mapping is closed."""
        try:
            return self.reader.events_since(view)
        except ValueError:
            return None

    def set_applied_view(self, view: int) -> None:
        """Publish what this worker's L1 has applied; says nothing once this mapping is closed."""
        with contextlib.suppress(ValueError):
            self.reader.set_applied_view(view)

    def claim_freshness(self, freshness_ns: int | None) -> tuple[int, int]:
        """See Client.validity.claim_freshness; nothing is claimed once the header or this mapping is closed."""
        with contextlib.suppress(ValueError):
            claimed = self.reader.claim_freshness(freshness_ns)
            # Looked at behind the claim: a sidecar that closes its header looks at claims before it leaves the fleet.
            if not self.reader.closed:
                return claimed
            self.reader.claim_freshness(0)
        return 0, 0

    def held(self) -> int:
        """Leases held now."""
        return self.reader.held()

    def close(self) -> None:
        """Detach, once no request is open any more: until then the row holds back `drained` for what they compute.

        Leases that are held stay readable.
        """
        self._is_leaving = True
        self._leave_if_unused()

    def request_begins(self) -> object:
        """Keep the row from now on, until `request_ended` is told of what this returns. Never waits for another thread."""
        request = object()
        self._requests.add(
            request
        )  # before the mapping is looked at, as a close marks its end before it looks here
        return request

    def request_ended(self, request: object) -> None:
        """A request ended, or could not begin."""
        self._requests.discard(request)
        self._leave_if_unused()

    def _leave_if_unused(self) -> None:
        if self._is_leaving and not self._requests:
            self._attached.close()

    def connection(self) -> AttachedArena:
        """Return the attach connection, for puts."""
        return self._attached

    def writer(self, namespace: RegisteredNamespace) -> Pages | None:
        """Who takes puts instead of shared memory; None when nobody does."""
        return None if self._writer is None else self._writer(namespace)


class LocalPages:
    """Pages of one namespace in one life. See namespaces.Pages."""

    __slots__ = ("_arena", "_counter", "_lease_ns", "_namespace", "_reader", "_take", "registration")

    def __init__(
        self, arena: LocalArena, namespace: RegisteredNamespace, registration: Registration, *, lease_ns: int
    ) -> None:
        self._arena = arena
        self._namespace = namespace
        self._reader = arena.reader
        self._take = arena.reader.lease
        self._counter = registration.counter
        self._lease_ns = lease_ns
        self.registration = registration

    def lease(self, keys: Keys, start: int, reused: ReusedPages | None = None) -> PageLease:
        """Pin the longest servable prefix of keys[start:]; nothing but a native call for packed keys."""
        try:
            held = self._take(self._counter, keys, start=start)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            packed, _ = packed_chain(keys, start)
            if packed is not keys:
                return self.lease(packed, start, reused)
            return self._elsewhere(error).lease(packed, start, reused)
        if reused is not None and held.pages:
            packed, _ = packed_chain(keys, start)
            run = Run(self._arena.life, start, held.pages, held.instance, held.instances(), held.stands_on)
            reused.found(packed, run)
        return PageLease(held, self._arena)

    def match(self, keys: Keys, start: int) -> LookUpOutcome:
        """Tell how many pages of keys[start:] could be served."""
        try:
            return outcome_of(self._reader.match(keys, start=start))  # type: ignore[arg-type]
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
            return self._copy_out(keys, destinations, start, reused)
        except (ValueError, TypeError) as error:
            packed, wanted = packed_chain(keys, start)
            views = self._views(destinations, wanted, writable=True)
            if packed is not keys or views is not destinations:
                return self._get_views(packed, views, start, deadline, reused)
            return self._elsewhere(error).get(packed, views, start, deadline, reused)

    def put(self, keys: Keys, sources: Buffers, terms: PutTerms) -> list[PutOutcome]:
        """Store keys[terms.start:]: what is known already is not sent, the rest goes in batches, parents first."""
        writer = self._arena.writer(self._namespace)
        if writer is not None:
            return writer.put(keys, sources, terms)
        packed, offered = packed_chain(keys, terms.start)
        views = self._views(sources, offered, writable=False)
        try:
            known = max(0, self._reader.match(packed)[0] - terms.start)
            stored = self._store(packed, views[known:], terms.start + known, terms)
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

    def _store(
        self, packed: bytes, views: Sequence[memoryview], first: int, terms: PutTerms
    ) -> list[PutOutcome]:
        rests_on = terms.rests_on(packed, first=first, life=self._arena.life)
        puts: list[_Put] = []
        for begin in range(0, len(views), BATCH_PAGES_MAX):
            batch = views[begin : begin + BATCH_PAGES_MAX]
            puts += self._store_batch(packed, batch, first + begin, terms, rests_on)
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
            reused.stored(packed, Run(self._arena.life, first, pages, numbers[-1], numbers))

    def _store_batch(
        self,
        packed: bytes,
        batch: Sequence[memoryview],
        first: int,
        terms: PutTerms,
        rests_on: int,
    ) -> list[_Put]:
        """Reserve, fill and commit one batch: two round trips. What was not confirmed is refused with the reason."""
        attached = self._arena.connection()
        keys = packed[first * KEY_BYTES : (first + len(batch)) * KEY_BYTES]
        parent = PageKey(packed[(first - 1) * KEY_BYTES : first * KEY_BYTES]) if first else None
        try:
            places = attached.reserve(
                self.registration, parent, keys, ttl_s=terms.ttl_s, deadline_s=terms.deadline.remaining_s()
            )
        except (ClosedError, ProtocolError):  # withdrawn by another thread, or cut off for talking nonsense
            return [(Refused(RefuseReason.UNREACHABLE), UNKNOWN_INSTANCE)] * len(batch)
        reserved = [(at, place) for at, place in enumerate(places) if isinstance(place, Reserved)]
        puts: list[_Put] = [
            (Refused(RefuseReason.UNREACHABLE) if isinstance(place, Reserved) else place, UNKNOWN_INSTANCE)
            for place in places
        ]
        if reserved:
            committed = self._fill_and_commit(attached, reserved, batch, terms, rests_on)
            for (at, place), outcome in zip(reserved, committed, strict=True):
                is_stored = isinstance(outcome, Stored)
                puts[at] = (outcome, stored_instance(place.id) if is_stored else UNKNOWN_INSTANCE)
        return puts

    def _fill_and_commit(
        self,
        attached: AttachedArena,
        reserved: Sequence[tuple[int, Reserved]],
        batch: Sequence[memoryview],
        terms: PutTerms,
        rests_on: int,
    ) -> list[PutOutcome]:
        ids = [place.id for _, place in reserved]
        settled = False
        try:
            self._reader.fill(
                [place.offset for _, place in reserved],
                [batch[at] for at, _ in reserved],
                page_bytes=self._namespace.page_bytes,
                counter=self._counter,
            )
            if terms.deadline.passed:
                return [Refused(RefuseReason.DEADLINE)] * len(ids)
            outcomes = attached.commit(
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
                    attached.abort(ids, deadline_s=_ABORT_DEADLINE_S)

    def _get_views(
        self,
        packed: bytes,
        views: list[memoryview],
        start: int,
        deadline: Deadline,
        reused: ReusedPages | None,
    ) -> LookUpOutcome:
        try:
            return self._copy_out(packed, views, start, reused)
        except ValueError as error:
            return self._elsewhere(error).get(packed, views, start, deadline, reused)

    def _copy_out(
        self, keys: Keys, destinations: Buffers, start: int, reused: ReusedPages | None
    ) -> LookUpOutcome:
        """Ask the native reader; a request is told which pages came. Raises ValueError, TypeError as it does."""
        words = None if reused is None else array("Q", bytes(8 * (len(keys) // KEY_BYTES)))
        pages, reason, last = self._reader.get(
            self._counter,
            keys,  # type: ignore[arg-type]
            destinations,  # type: ignore[arg-type]
            page_bytes=self._namespace.page_bytes,
            start=start,
            lease_ns=self._lease_ns,
            instances=words,
        )
        if reused is not None and words is not None and pages:
            packed, _ = packed_chain(keys, start)
            stands_on = words[start - 1] if start else NO_INSTANCE
            run = Run(self._arena.life, start, pages, last, words[start : start + pages], stands_on)
            reused.found(packed, run)
        return outcome_of((pages, reason))

    def _views(self, buffers: Buffers, pages: int, *, writable: bool) -> list[memoryview]:
        what = "destination" if writable else "source"
        return page_views(
            buffers, pages=pages, page_bytes=self._namespace.page_bytes, writable=writable, what=what
        )

    def _elsewhere(self, error: Exception) -> Pages:
        """Where to ask when the native reader refused arguments that are right: its mapping was closed meanwhile."""
        pages = self._namespace.pages
        if pages is self:
            raise InvalidArgumentError(str(error)) from error
        return pages

    def _end_request(self, slot: int, request: object) -> None:
        if not self._arena.inherited:
            with contextlib.suppress(
                ValueError
            ):  # the mapping was closed, and with it ended all that rested on it
                self._reader.end_request(slot)
            self._arena.request_ended(request)
