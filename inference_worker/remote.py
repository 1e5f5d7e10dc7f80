"""Pages over gRPC: one channel a process, registrations that follow the sidecar's lives, and calls with deadlines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TypeVar

import grpc

from inference_worker.buffers import Buffers, gathered, page_sources, page_views
from inference_worker.chains import packed_chain
from inference_worker.deadlines import Deadline
from inference_worker.forking import GATE
from inference_worker.lease import ANYWHERE, OwnedPages, PageLease, empty_lease
from inference_worker.namespaces import Begun, PutTerms, RegisteredNamespace, pages_maybe_stored
from inference_worker.prefetch import Prefetches, RemotePrefetch
from inference_worker.prefill_speed import PrefillSpeed
from inference_worker.remote_registration import RegistrationsUnderWay, RemoteRegistration
from inference_worker.reused import ReusedPages, Run
from inference_worker.settings import ClientSettings
from inference_worker.streams import PageReceiver, put_messages
from inference_worker.weights import Versions
from kv_types.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LayoutConflictError,
    SidecarUnreachableError,
    StrataError,
)
from kv_types.ids import KEY_BYTES, NO_INCARNATION, LifeId, Stamp
from kv_types.limits import REMOTE_LEASE_BYTES_MAX
from kv_types.outcomes import (
    KNOWN,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Tier,
)
from kv_types.page_keys import Keys
from kv_types.validity import UNKNOWN_INSTANCE
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.conversions import (
    cost_to_wire,
    put_from_wire,
    row_from_wire,
    stamp_from_wire,
    stamp_to_wire,
    ttl_to_wire,
)
from kv_wire.gen import cache_pb2
from kv_wire.status import from_rpc_error, miss_reason, refuse_reason

_Result = TypeVar("_Result")


class RemoteSidecar:
    """The gRPC side of one sidecar endpoint; opened at the first call. Thread-safe, of one process."""

    def __init__(self, target: str, settings: ClientSettings, *, prefill: PrefillSpeed | None = None) -> None:
        prefill = PrefillSpeed(settings.prefill_tokens_per_s) if prefill is None else prefill
        self._target = target
        self._lock = threading.RLock()  # a close may come from a finaliser on the thread that holds it
        self._channel: grpc.Channel | None = None
        self._calls: CacheCalls | None = None
        self._closed = False
        self._pages: dict[RegisteredNamespace, RemotePages] = {}
        self._lease_deadline_s = settings.deadline_s
        self.registrations = RegistrationsUnderWay()
        self.register_s = settings.deadline_s
        self.life: bytes | None = None
        self.reconnects = 0
        self.last_error = ""
        self.prefill = prefill
        self.prefetches = Prefetches(in_flight_max=settings.prefetches_in_flight_max)

    @contextlib.contextmanager
    def calling(self, deadline: Deadline) -> Iterator[CacheCalls]:
        """Pass the fork gate and yield the calls; what they raise comes out as StrataError."""
        if not GATE.enter(deadline):
            raise DeadlineExceededError("a fork of this process held the call back until its deadline")
        try:
            yield self._open()
        except grpc.RpcError as error:
            meant = from_rpc_error(error)
            self.last_error = str(meant)
            raise meant from error
        except ValueError as error:  # what gRPC raises when another thread closed the channel
            if not self._closed:
                raise
            raise SidecarUnreachableError(f"the client's channel was closed: {error}") from error
        finally:
            GATE.leave()

    def pages(self, namespace: RegisteredNamespace) -> RemotePages:
        """Return the pages of a namespace over this channel."""
        with self._lock:
            pages = self._pages.get(namespace)
            if pages is None:
                pages = RemotePages(self, namespace, lease_deadline_s=self._lease_deadline_s)
                self._pages[namespace] = pages
            return pages

    def forget(self, namespace: RegisteredNamespace) -> None:
        """Keep nothing of a namespace any more."""
        with self._lock:
            self._pages.pop(namespace, None)

    def note_life(self, life: bytes) -> None:
        """Take note of the life that answered; another one than before is a reconnect."""
        with self._lock:
            if self.life is not None and life != self.life:
                self.reconnects += 1
            self.life = life

    def prefetch(
        self, namespace: RegisteredNamespace, packed: bytes, deadline_s: float
    ) -> RemotePrefetch | None:
        """Ask the sidecar to load what it has only in a slower tier, without waiting; None when dropped."""
        try:
            calls = self._open()
        except StrataError:
            return None
        register = cache_pb2.RegisterNamespaceRequest(
            canonical=namespace.identified.canonical, page_bytes=namespace.page_bytes
        )
        look_up = cache_pb2.LookUpRequest(
            namespace_id=namespace.id,
            rows=[cache_pb2.Chain(keys=packed)],
            prefetch=True,
            compute=cost_to_wire(self.prefill.cost(namespace.identified.page_tokens, 0)),
        )
        return self.prefetches.send(calls, register, look_up, deadline_s=deadline_s)

    def stamp(self, deadline: Deadline) -> Stamp | None:
        """Ask for the present log position; None when the sidecar does not tell in time, or has joined no log."""
        status = self._status(deadline)
        return None if status is None else _position(status)

    def versions(self, deadline: Deadline) -> Versions | None:
        """Ask which versions of weights were announced last; None when it can't be told in time."""
        status = self._status(deadline)
        if status is None or _position(status) is None:
            return None
        return Versions(LifeId(status.life), status.view, dict(status.weights_versions))

    def _status(self, deadline: Deadline) -> cache_pb2.StatusResponse | None:
        try:
            with self.calling(deadline) as calls:
                status: cache_pb2.StatusResponse = calls.status(
                    cache_pb2.StatusRequest(), timeout=deadline.remaining_s()
                )
                return status
        except StrataError:
            return None

    def close(self) -> None:
        """Shut the channel down; calls in flight end as unreachable."""
        with self._lock:
            self._closed = True
            channel, self._channel, self._calls = self._channel, None, None
        if channel is not None:
            channel.close()

    def _open(self) -> CacheCalls:
        with self._lock:
            if self._closed:
                raise SidecarUnreachableError("the client's channel was closed")
            if self._calls is None:
                self._channel = open_channel(self._target)
                self._calls = CacheCalls(self._channel)
            return self._calls


class RemotePages:
    """Pages of one namespace over gRPC. See namespaces.Pages; every page that arrives is checked by its checksum."""

    def __init__(
        self, sidecar: RemoteSidecar, namespace: RegisteredNamespace, *, lease_deadline_s: float
    ) -> None:
        self._sidecar = sidecar
        self._namespace = namespace
        self._lease_deadline_s = lease_deadline_s
        self._registration = RemoteRegistration(sidecar, namespace)

    def match(self, keys: Keys, start: int) -> LookUpOutcome:
        """Ask how many pages of keys[start:] could be served."""
        packed, wanted = packed_chain(keys, start)
        return self._match(packed, start, wanted, Deadline(self._lease_deadline_s))

    def _match(self, packed: bytes, start: int, wanted: int, deadline: Deadline) -> LookUpOutcome:
        if not wanted:
            return Hit(0, Tier.L2)
        try:
            outcome = self._look_up(packed, deadline)
        except StrataError as error:
            return Miss(_missed(error))
        if not start or not isinstance(outcome, Hit):
            return outcome
        pages = outcome.pages - start
        return Hit(pages, outcome.tier, outcome.ended_by) if pages > 0 else Miss(_reason(outcome))

    def lease(
        self, keys: Keys, start: int, deadline: Deadline | None, reused: ReusedPages | None = None
    ) -> PageLease:
        """Fetch the longest servable prefix of keys[start:] into memory of our own."""
        packed, wanted = packed_chain(keys, start)
        if not wanted:
            self._count(wanted, start, 0, MissReason.NONE)
            return empty_lease(MissReason.NONE)
        deadline = Deadline(self._lease_deadline_s) if deadline is None else deadline
        receiver, pages, reason, pages_l3 = self._fetch(packed, start, wanted, deadline)
        self._count(wanted, start, pages, reason, pages_l3)
        self._note_found(reused, packed, start, pages, receiver, pages_l3)
        return _owned(receiver, pages, reason, pages_l3)

    def lease_left(self, keys: Keys, start: int, missed: MissReason) -> PageLease:
        """A call without time reaches nobody, whatever was missed before."""
        del missed
        return self.lease(keys, start, Deadline(0.0))

    def lease_uncounted(self, keys: Keys, start: int, deadline: Deadline | None) -> PageLease:
        """Fetch what the sidecar has at hand of keys[start:]: no more is asked for, or it would load the rest."""
        packed, wanted = packed_chain(keys, start)
        deadline = Deadline(self._lease_deadline_s) if deadline is None else deadline
        found = self._match(packed, start, wanted, deadline)
        at_hand = found.pages if isinstance(found, Hit) else 0
        if not at_hand:
            return empty_lease(_reason(found))
        receiver, pages, reason, pages_l3 = self._fetch(
            packed[: (start + at_hand) * KEY_BYTES], start, at_hand, deadline
        )
        return _owned(receiver, pages, _reason(found) if pages == at_hand else reason, pages_l3)

    def _fetch(
        self, packed: bytes, start: int, wanted: int, deadline: Deadline
    ) -> tuple[PageReceiver, int, MissReason, int]:
        """Receive as many pages behind `start` as may be held: pages, why no more, how many of them came from L3."""
        page_bytes = self._namespace.page_bytes
        affordable = max(1, REMOTE_LEASE_BYTES_MAX // page_bytes)
        asked = packed[: (start + min(wanted, affordable)) * KEY_BYTES]
        receiver = PageReceiver(page_bytes=page_bytes, first=start, pages_max=min(wanted, affordable))
        outcome = self._receive(asked, start, receiver, deadline)
        pages = outcome.pages if isinstance(outcome, Hit) else 0
        reason = _reason(outcome)
        if pages == affordable < wanted and reason is MissReason.NONE:
            reason = MissReason.LEASE_LIMIT
        return receiver, pages, reason, _pages_l3(outcome)

    def get(
        self,
        keys: Keys,
        destinations: Buffers,
        start: int,
        deadline: Deadline,
        reused: ReusedPages | None = None,
    ) -> LookUpOutcome:
        """Fetch the longest servable prefix of keys[start:] into the destinations."""
        packed, wanted = packed_chain(keys, start)
        page_bytes = self._namespace.page_bytes
        views = page_views(
            destinations, pages=wanted, page_bytes=page_bytes, writable=True, what="destination"
        )
        if not wanted:
            self._count(wanted, start, 0, MissReason.NONE)
            return Hit(0, Tier.L2)
        receiver = PageReceiver(page_bytes=page_bytes, first=start, pages_max=wanted, destinations=views)
        outcome = self._receive(packed, start, receiver, deadline)
        pages = outcome.pages if isinstance(outcome, Hit) else 0
        pages_l3 = _pages_l3(outcome)
        self._count(wanted, start, pages, _reason(outcome), pages_l3)
        self._note_found(reused, packed, start, pages, receiver, pages_l3)
        return outcome

    def put(self, keys: Keys, sources: Buffers, terms: PutTerms) -> list[PutOutcome]:
        """Send what the sidecar does not have; what it did not confirm is refused with the reason."""
        packed, offered = packed_chain(keys, terms.start)
        page_bytes = self._namespace.page_bytes
        given = page_sources(sources, pages=offered, page_bytes=page_bytes)
        known = 0
        try:
            found = self._look_up(packed, terms.deadline) if offered else Hit(0, Tier.L2)
            known = min(offered, max(0, found.pages - terms.start)) if isinstance(found, Hit) else 0
            if known == offered:
                return [KNOWN] * known
            views = [gathered(one) for one in given[known:]]
            sent = self._registration.with_registration(
                terms.deadline,
                lambda: self._send(packed, views, terms.start + known, terms, keep=(sources, views)),
            )
        except StrataError as error:
            sent = [Refused(_refused(error))] * (offered - known)
        self._note_sent(terms.reused, packed, terms.start + known, sent)
        self._namespace.counts.written(page_bytes * sum(not isinstance(one, Refused) for one in sent))
        return [KNOWN] * known + sent

    def begin(self, deadline: Deadline) -> Begun:
        """Load the sidecar's position by one call, before any reuse (R1)."""
        try:
            stamp = self._registration.renew(deadline)
        except StrataError as error:
            return Begun(refused=_refused(error))
        return Begun(stamp=stamp, refused=RefuseReason.NONE if stamp else RefuseReason.UNLISTED)

    # --- calls -----------------------------------------------------------------------------------------------------

    def _look_up(self, packed: bytes, deadline: Deadline) -> LookUpOutcome:
        request = cache_pb2.LookUpRequest(
            namespace_id=self._namespace.id, rows=[cache_pb2.Chain(keys=packed)]
        )

        def attempt() -> LookUpOutcome:
            with self._sidecar.calling(deadline) as calls:
                response = calls.look_up(request, timeout=deadline.remaining_s())
            if len(response.rows) != 1:
                raise SidecarUnreachableError(f"the sidecar answered {len(response.rows)} rows to one")
            return row_from_wire(response.rows[0])

        return self._registration.with_registration(deadline, attempt)

    def _receive(
        self, packed: bytes, start: int, receiver: PageReceiver, deadline: Deadline
    ) -> LookUpOutcome:
        request = cache_pb2.GetRequest(
            namespace_id=self._namespace.id,
            chain=cache_pb2.Chain(keys=packed),
            start=start,
            compute=cost_to_wire(self._sidecar.prefill.cost(self._namespace.identified.page_tokens, 0)),
        )

        def attempt() -> LookUpOutcome:
            receiver.restart()
            with self._sidecar.calling(deadline) as calls:
                parts = calls.get(
                    request, deadline_s=deadline.remaining_s(), page_bytes=self._namespace.page_bytes
                )
                for part in parts:
                    receiver.take(part)
            return receiver.outcome()

        try:
            return self._registration.with_registration(deadline, attempt)
        except StrataError as error:
            return Miss(_missed(error))

    def _send(
        self, packed: bytes, views: list[memoryview], first: int, terms: PutTerms, *, keep: object
    ) -> list[PutOutcome]:
        header = cache_pb2.PutHeader(
            namespace_id=self._namespace.id,
            chain=cache_pb2.Chain(keys=packed),
            start=first,
            stamp=stamp_to_wire(terms.stamp),
            ttl_s=ttl_to_wire(terms.ttl_s),
            producer=terms.producer,
            tags=terms.tags,
            computed_from_ms=terms.computed_from_ms,
            computed_until_ms=terms.computed_until_ms,
            rests_on=terms.rests_on(packed, first=first, life=self._registration.life),
        )
        messages = put_messages(header, views, first=first, page_bytes=self._namespace.page_bytes, keep=keep)
        with self._sidecar.calling(terms.deadline) as calls:
            response = calls.put_raw(messages, timeout=terms.deadline.remaining_s())
        return _closed_under_refusal([put_from_wire(one) for one in response.pages], len(views))

    def _note_found(
        self,
        reused: ReusedPages | None,
        packed: bytes,
        start: int,
        pages: int,
        receiver: PageReceiver,
        pages_l3: int,
    ) -> None:
        if reused is not None and pages:
            reused.pages_l3 += pages_l3
            reused.found(packed, Run(self._registration.life, start, pages, receiver.instance(pages)))

    def _note_sent(
        self, reused: ReusedPages | None, packed: bytes, first: int, outcomes: Sequence[PutOutcome]
    ) -> None:
        """What was stored has an instance that nobody told."""
        pages = pages_maybe_stored(outcomes)
        if reused is not None and pages:
            reused.stored(packed, Run(self._registration.life, first, pages, UNKNOWN_INSTANCE))

    def _count(self, wanted: int, start: int, served: int, reason: MissReason, pages_l3: int = 0) -> None:
        self._namespace.counts.look_up(
            requested=start + wanted,
            l1=start,
            served=served,
            of_l3=pages_l3,
            reason=reason,
            bytes_read=served * self._namespace.page_bytes,
        )


def _owned(receiver: PageReceiver, pages: int, reason: MissReason, pages_l3: int) -> PageLease:
    held = OwnedPages([view.toreadonly() for view in receiver.views[:pages]], reason)
    return PageLease(held, ANYWHERE, pages_l3)


def _closed_under_refusal(outcomes: list[PutOutcome], pages: int) -> list[PutOutcome]:
    """Exactly `pages` outcomes, where what stands on a refused page is refused for that page's reason.

    A page that the sidecar did not answer for is not confirmed.
    """
    for at, outcome in enumerate(outcomes[:pages]):
        if isinstance(outcome, Refused):
            return outcomes[:at] + [outcome] * (pages - at)
    return outcomes[:pages] + [Refused(RefuseReason.UNREACHABLE)] * (pages - len(outcomes))


def _position(status: cache_pb2.StatusResponse) -> Stamp | None:
    if not status.HasField("stamp") or status.stamp.incarnation == NO_INCARNATION:
        return None
    return stamp_from_wire(status.stamp)


_CALLERS_FAULT = (InvalidArgumentError, LayoutConflictError)


def _missed(error: StrataError) -> MissReason:
    """Why a look-up that ended in `error` is a miss; raises it when the caller is at fault.

    Whatever else goes wrong at the other end (a foreign service, a bug) is no reason to stop serving.
    """
    if isinstance(error, _CALLERS_FAULT):
        raise error
    return miss_reason(error) or MissReason.UNREACHABLE


def _refused(error: StrataError) -> RefuseReason:
    """Why a put that ended in `error` is refused; raises it when the caller is at fault."""
    if isinstance(error, _CALLERS_FAULT):
        raise error
    return refuse_reason(error) or RefuseReason.UNREACHABLE


def _pages_l3(outcome: LookUpOutcome) -> int:
    return outcome.pages_l3 if isinstance(outcome, Hit) else 0


def _reason(outcome: LookUpOutcome) -> MissReason:
    if isinstance(outcome, Hit):
        return outcome.ended_by
    return outcome.reason if isinstance(outcome, Miss) else MissReason.ABSENT
