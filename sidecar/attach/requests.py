"""Carrying out what an attached client asks: one message in, one reply out, never half."""

from __future__ import annotations

from typing import overload

from cache_l2.attach_messages import (
    Abort,
    Commit,
    CommittedPages,
    Done,
    Ping,
    Pong,
    Register,
    Registered,
    Reserve,
    ReservedPages,
    SidecarMessage,
    Speeds,
    Unregister,
)
from cache_l2.store import ArenaStore
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError
from kv_types.ids import KEY_BYTES
from kv_types.outcomes import PutStatus, RefuseReason
from sidecar.attach.connection import AttachedProcess

Request = Register | Unregister | Reserve | Commit | Abort | Speeds | Ping


@overload
def carry_out(store: ArenaStore, clock: Clock, process: AttachedProcess, message: Register) -> Registered: ...


@overload
def carry_out(
    store: ArenaStore, clock: Clock, process: AttachedProcess, message: Request
) -> SidecarMessage | None: ...


def carry_out(  # noqa: PLR0911  (one a request)
    store: ArenaStore, clock: Clock, process: AttachedProcess, message: Request
) -> SidecarMessage | None:
    """Return the reply to a request, None where there is none.

    Raises StrataError for what the client did wrong; nothing has changed then.
    """
    match message:
        case Register(canonical, page_bytes):
            return _register(store, process, canonical, page_bytes)
        case Unregister(number):
            return _unregister(store, process, number)
        case Reserve():
            return _reserve(store, process, message)
        case Commit():
            return _commit(store, process, message)
        case Abort(reservations):
            store.abort(process.row, reservations)
            return Done()
        case Speeds():
            process.speeds = message
            return None
        case Ping():
            return Pong(clock.now_ns())


def _register(store: ArenaStore, process: AttachedProcess, canonical: bytes, page_bytes: int) -> Registered:
    record = store.register(canonical, page_bytes)
    counter = store.bind_namespace(process.row, record)
    process.registered.add(record.number)
    return Registered(
        namespace=record.id, number=record.number, counter=counter, page_bytes=record.page_bytes
    )


def _unregister(store: ArenaStore, process: AttachedProcess, number: int) -> Done:
    if number in process.registered:
        process.registered.discard(number)
        store.unbind_namespace(process.row, store.namespace_of_number(number))
    return Done()


def _reserve(store: ArenaStore, process: AttachedProcess, message: Reserve) -> ReservedPages:
    if not process.writable:
        raise InvalidArgumentError("this client attached read-only: it can't reserve")
    if message.namespace_number not in process.registered:
        return _all_refused(len(message.keys) // KEY_BYTES, RefuseReason.UNKNOWN_NAMESPACE)
    record = store.namespace_of_number(message.namespace_number)
    process.reserved_in = record
    rows = store.reserve(process.row, record, message.parent, message.keys, message.ttl_s)
    if not rows:
        return ReservedPages(b"", b"", (), ())
    statuses, reasons, reservations, offsets = zip(*rows, strict=True)
    return ReservedPages(bytes(statuses), bytes(reasons), reservations, offsets)


def _commit(store: ArenaStore, process: AttachedProcess, message: Commit) -> CommittedPages:
    outcomes = store.commit(
        process.row, message.reservations, stamp=message.stamp, producer=message.producer, tags=message.tags,
        computed_from_ms=message.computed_from_ms, computed_until_ms=message.computed_until_ms,
        rests_on=message.rests_on,
    )  # fmt: skip
    if process.reserved_in is not None:
        store.offer_slots(process.row, process.reserved_in, outcomes)
    return CommittedPages(bytes(status for status, _ in outcomes), bytes(reason for _, reason in outcomes))


def _all_refused(pages: int, reason: RefuseReason) -> ReservedPages:
    zeros = (0,) * pages
    return ReservedPages(bytes([PutStatus.REFUSED]) * pages, bytes([reason]) * pages, zeros, zeros)
