"""A worker's attachment to its sidecar's arena: handshake, reservations and commits; look-ups go to `reader` directly.

This is the half of the tier that workers import: shared memory for reading and filling, and the attach connection for
what only the sidecar may do. Nothing here raises because a sidecar is slow, gone or full: that is an outcome.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from cache_l2._native import Reader
from cache_l2.attach_channel import AttachChannel, ConnectionBroken, DeadlinePassed
from cache_l2.attach_handshake import decline, shake_hands
from cache_l2.attach_loads import LoadTicket, Wanted, cancel_load, load_message, loaded_pages, with_grace
from cache_l2.attach_messages import (
    Abort,
    ClientMessage,
    Commit,
    CommittedPages,
    Detach,
    Failed,
    Load,
    LoadedPages,
    Looked,
    Ping,
    Pong,
    Register,
    Registered,
    Reserve,
    ReservedPages,
    SidecarMessage,
    Speeds,
    Unregister,
    Welcome,
)
from cache_l2.attach_peer import AttachPeer
from cache_l2.attach_registrations import Registration, RegistrationTicket, error_of, registration_of
from cache_l2.departures import Departures
from kv_types.errors import (
    ClosedError,
    DeadlineExceededError,
    HandshakeError,
    InvalidArgumentError,
    LimitExceededError,
    ProtocolError,
    SidecarUnreachableError,
    StrataError,
)
from kv_types.ids import KEY_BYTES, LifeId, PageKey, Stamp
from kv_types.limits import ATTACH_DEADLINE_S_DEFAULT, BATCH_PAGES_MAX
from kv_types.loading import ComputeCost
from kv_types.outcomes import (
    STORED,
    Known,
    MissReason,
    PutOutcome,
    PutStatus,
    Refused,
    RefuseReason,
    put_outcome,
)
from kv_types.validity import UNKNOWN_INSTANCE, EngineMode

_DETACH_DEADLINE_S = 0.2


class Reserved(NamedTuple):
    """A place to fill: page_bytes at `offset` of the data file, then commit `id`."""

    id: int
    offset: int


Reservation = Reserved | Known | Refused


class AttachedArena:
    """One attachment in one sidecar's life. Thread-safe; not usable in a forked child, which must attach itself."""

    def __init__(
        self,
        path: str,
        channel: AttachChannel,
        welcome: Welcome,
        reader: Reader,
        *,
        writable: bool,
        peer: AttachPeer | None = None,
    ) -> None:
        """Use `connect`."""
        self._peer = peer
        self._path = path
        self._channel = channel
        self._reader: Reader | None = reader
        self._welcome = welcome
        self._writable = writable
        self._closed = False
        self._forked = False
        _attachments.add(self)

    @classmethod
    def connect(
        cls,
        path: str,
        *,
        name: str = "",
        writable: bool = True,
        prefault: bool = True,
        engine: EngineMode = EngineMode.NONE,
        deadline_s: float = ATTACH_DEADLINE_S_DEFAULT,
    ) -> AttachedArena:
        """Attach to the sidecar that listens at the socket `path`.

        `name` is shown to people (at most 64 bytes). Without `writable` the pages can't be written and nothing can be
        reserved. `engine` says whether an index of this client's own holds back what the sidecar acknowledges.
        Raises SidecarUnreachableError (nobody answers within `deadline_s`), HandshakeError (another version, layout,
        user, pid or time namespace; no free row), LimitExceededError (`name`).
        """
        gone = _departures.gone(path)
        connection, welcome, descriptors = shake_hands(
            path, name=name, writable=writable, gone=gone, engine=engine, deadline_s=deadline_s
        )
        _departures.forget(gone)
        control, clients, data, doorbell = descriptors
        try:
            reader = Reader(
                control_fd=control, clients_fd=clients, data_fd=data, row=welcome.row, life=welcome.life,
                writable=writable, prefault=prefault, doorbell_fd=doorbell,
            )  # fmt: skip
        except (ValueError, OSError, MemoryError) as error:
            decline(connection)
            raise HandshakeError(f"the sidecar's arena can't be mapped here: {error}") from error
        peer = AttachPeer(connection) if engine is EngineMode.KEEP else None
        return cls(path, AttachChannel(connection), welcome, reader, writable=writable, peer=peer)

    @property
    def reader(self) -> Reader:
        """The mapping; stays readable after the sidecar has died. Raises ClosedError after close and in a forked child."""
        if self._reader is None or self._forked:
            raise self._closed_error()
        return self._reader

    @property
    def life(self) -> LifeId:
        """The sidecar's life that this attachment belongs to."""
        return self._welcome.life

    @property
    def row(self) -> int:
        """This client's row, as the sidecar's status shows it."""
        return self._welcome.row

    @property
    def attachment(self) -> int:
        """What the sidecar calls this attachment."""
        return self._welcome.attachment

    @property
    def reservation_s(self) -> float:
        """How long a reservation may stay unfilled before the sidecar takes it back."""
        return self._welcome.reservation_ms / 1000

    @property
    def has_l3(self) -> bool:
        """Whether the sidecar has a slower tier to load pages from."""
        return self._welcome.has_l3

    @property
    def alive(self) -> bool:
        """False once this was closed or forked, the connection broke, or the sidecar closed its header."""
        reader = self._reader
        if reader is None or self._forked or self._channel.is_broken:
            return False
        try:
            return not reader.closed
        except ValueError:  # closed by another thread meanwhile
            return False

    def has_outlived(self, *, within_s: float) -> bool:
        """Whether the sidecar's process is seen to end in that time; only an engine of mode KEEP can tell."""
        return self._peer is not None and not self._forked and self._peer.has_ended(within_s=within_s)

    def fileno(self) -> int:
        """Return the attach connection's descriptor: poll it for POLLRDHUP to learn of the sidecar's end."""
        return self._channel.fileno()

    def register(self, canonical: bytes, page_bytes: int, *, deadline_s: float) -> Registration:
        """Make a namespace known to the sidecar and count it in this client's row.

        Raises ProtocolError, LayoutConflictError, LimitExceededError as the sidecar does, DeadlineExceededError when it
        does not answer within `deadline_s`, SidecarUnreachableError when it is gone, LogUnreachableError when the fleet's
        directory does not take it in, ClosedError.
        """
        reply = self._call(Register(bytes(canonical), page_bytes), deadline_s)
        if reply is RefuseReason.DEADLINE:
            raise DeadlineExceededError(f"the sidecar did not register the namespace within {deadline_s} s")
        if isinstance(reply, RefuseReason):
            raise SidecarUnreachableError(f"the sidecar did not register the namespace: {reply.name.lower()}")
        if not isinstance(reply, Registered):
            raise self._unexpected(reply)
        return registration_of(reply)

    def begin_register(self, canonical: bytes, page_bytes: int) -> RegistrationTicket | None:
        """Ask as `register` does and wait for nothing; None where that can't be asked at once. Raises SidecarUnreachableError.

        Raises LimitExceededError and ClosedError too.
        """
        if self._closed or self._forked:
            raise self._closed_error()
        try:
            call = self._channel.post(Register(bytes(canonical), page_bytes))
        except DeadlinePassed:
            return None
        except ConnectionBroken as error:
            raise SidecarUnreachableError(f"the sidecar did not register the namespace: {error}") from error
        return RegistrationTicket(self._channel, call)

    def tell(self, message: Looked | Speeds) -> bool:
        """Tell of a look-up while look-ups are recorded, or of speeds, if that needs no waiting; whether it was told."""
        return not self._closed and not self._forked and self._channel.tell(message)

    def unregister(self, registration: Registration, *, deadline_s: float) -> bool:
        """Say that nothing of this process uses a namespace any more, so that its counter is free for another one.

        Returns whether the sidecar has confirmed it. Raises ClosedError.
        """
        return not isinstance(self._call(Unregister(registration.number), deadline_s), RefuseReason)

    def reserve(
        self,
        registration: Registration,
        parent: PageKey | None,
        keys: bytes,
        *,
        ttl_s: int | None = None,
        deadline_s: float,
    ) -> list[Reservation]:
        """Ask for a place for each page of `keys` (n × 32 bytes, n ≤ BATCH_PAGES_MAX), a run of one chain after `parent`.

        `ttl_s` None: the sidecar's default, 0: never expires. One answer a key: Reserved, Known, or Refused with its
        reason, UNREACHABLE and DEADLINE included. Raises InvalidArgumentError, LimitExceededError, ClosedError.
        """
        if not self._writable:
            raise InvalidArgumentError("this attachment is read-only: connect with writable=True to reserve")
        pages = _pages_of(keys)
        if not pages:
            return []
        message = Reserve(namespace_number=registration.number, parent=parent, keys=bytes(keys), ttl_s=ttl_s)
        reply = self._call(message, deadline_s)
        if isinstance(reply, RefuseReason):
            return [Refused(reply)] * pages
        if not isinstance(reply, ReservedPages) or len(reply.statuses) != pages:
            raise self._unexpected(reply)
        columns = zip(reply.statuses, reply.reasons, reply.reservations, reply.offsets, strict=True)
        return [
            Reserved(reservation, offset) if status == PutStatus.STORED else _not_stored(status, reason)
            for status, reason, reservation, offset in columns
        ]

    def commit(
        self,
        ids: Sequence[int],
        *,
        stamp: Stamp,
        producer: bytes = b"",
        tags: tuple[bytes, ...] = (),
        computed_from_ms: int = 0,
        computed_until_ms: int = 0,
        rests_on: int = UNKNOWN_INSTANCE,
        deadline_s: float,
    ) -> list[PutOutcome]:
        """Publish filled reservations, parents first; one outcome each.

        `stamp` is the position loaded before the first reuse (rule R1). Times are Unix ms of the producer's wall
        clock. `rests_on` is the instance of the deepest page of the chain that was reused, NO_INSTANCE where none was:
        pages that don't stand on it here are taken for computed on anything. After Refused(DEADLINE) the pages may be
        published all the same. Raises InvalidArgumentError, LimitExceededError, ClosedError.
        """
        if not ids:
            return []
        message = Commit(
            reservations=tuple(ids), stamp=stamp, producer=producer, tags=tags,
            computed_from_ms=computed_from_ms, computed_until_ms=computed_until_ms, rests_on=rests_on,
        )  # fmt: skip
        reply = self._call(message, deadline_s)
        if isinstance(reply, RefuseReason):
            return [Refused(reply)] * len(ids)
        if not isinstance(reply, CommittedPages) or len(reply.statuses) != len(ids):
            raise self._unexpected(reply)
        return [
            _outcome(status, reason) for status, reason in zip(reply.statuses, reply.reasons, strict=True)
        ]

    def abort(self, ids: Sequence[int], *, deadline_s: float = _DETACH_DEADLINE_S) -> None:
        """Give reservations back unfilled. Not answered in time, the sidecar's expiry does it. Raises ClosedError."""
        for begin in range(0, len(ids), BATCH_PAGES_MAX):
            self._call(Abort(tuple(ids[begin : begin + BATCH_PAGES_MAX])), deadline_s)

    def load(
        self,
        rows: Sequence[Wanted],
        *,
        deadline_s: float,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> LoadedPages | MissReason:
        """Have the sidecar bring what L2 lacks of these rows, and wait for it; one answer a row, or why there is none.

        They have LOAD_ROWS_MAX rows and LOAD_KEYS_MAX pages in all at most. `group`: they are shards of one tensor-parallel
        group, and no more is brought for one than for all. `compute`: what their pages take to compute, or all is brought. The
        sidecar stops at `deadline_s` and tells what came; a tenth more, 10 ms at least, is waited for its answer. Raises
        LimitExceededError, OverloadedError, ClosedError.
        """
        message = load_message(rows, deadline_s=deadline_s, group=group, compute=compute)
        request = self._channel.draw_request()
        try:
            reply = self._call(message, with_grace(deadline_s), request=request)
        except StrataError:
            raise
        except BaseException:  # a signal handler raised: nobody waits any more
            cancel_load(self._channel, request)
            raise
        if isinstance(reply, RefuseReason):
            return MissReason.DEADLINE if reply is RefuseReason.DEADLINE else MissReason.UNREACHABLE
        return self._checked_rows(reply, message)

    def begin_load(
        self,
        rows: Sequence[Wanted],
        *,
        deadline_s: float,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> LoadTicket | MissReason:
        """Ask as `load` does and wait for nothing; or say why that can't be asked now. Raises LimitExceededError, ClosedError."""
        if self._closed or self._forked:
            raise self._closed_error()
        message = load_message(rows, deadline_s=deadline_s, group=group, compute=compute)
        try:
            return LoadTicket(self._channel, self._channel.post(message), message)
        except DeadlinePassed:
            return MissReason.OVERLOADED
        except ConnectionBroken:
            return MissReason.UNREACHABLE

    def ping(self, *, deadline_s: float) -> bool:
        """Whether the sidecar answers within `deadline_s`. Raises ClosedError."""
        return isinstance(self._call(Ping(), deadline_s), Pong)

    def close(self) -> None:
        """Detach. Leases still held stay readable until they are released. Idempotent, and safe in a forked child.

        With leases held, calls under way in other threads, or a broken connection, the row stays this process's until it
        ends, or attaches again after the last of them.
        """
        if self._closed:
            return
        self._closed = True
        _attachments.discard(self)
        if self._forked:
            return
        reader, self._reader = self._reader, None
        if reader is None:
            return  # another thread closes
        if self._peer is not None:
            self._peer.close()
        # a row is given back only when no thread can touch it any more
        is_given_back = False
        try:
            if reader.close():
                self._channel.call(Detach(), deadline_s=_DETACH_DEADLINE_S)
                is_given_back = True
        except (DeadlinePassed, ConnectionBroken):
            pass  # said at the next handshake
        finally:
            self._channel.close()
            if not is_given_back:
                _departures.add(self._path, self.attachment, reader)

    def __enter__(self) -> AttachedArena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked_rows(self, reply: SidecarMessage, message: Load) -> LoadedPages:
        try:
            return loaded_pages(reply, message)
        except ProtocolError:
            self._channel.close()
            raise

    def _call(
        self, message: ClientMessage, deadline_s: float, *, request: int | None = None
    ) -> SidecarMessage | RefuseReason:
        """Return the reply, or the reason why there is none; raises what a Failed reply stands for."""
        if self._closed or self._forked:
            raise self._closed_error()
        try:
            reply = self._channel.call(message, deadline_s=deadline_s, request=request)
        except DeadlinePassed:
            return RefuseReason.DEADLINE
        except ConnectionBroken:
            return RefuseReason.UNREACHABLE
        if isinstance(reply, Failed):
            raise error_of(reply)
        return reply

    def _unexpected(self, reply: SidecarMessage | RefuseReason) -> ProtocolError:
        self._channel.close()
        return ProtocolError(f"the sidecar answered with {type(reply).__name__}; the connection was closed")

    def _closed_error(self) -> ClosedError:
        if self._forked:
            return ClosedError("this process was forked after attaching: attach again in the child")
        return ClosedError("the attachment was closed: attach again")

    def _abandon_in_child(self) -> None:
        self._forked = True
        self._channel.abandon_in_child()
        if self._peer is not None:
            self._peer.close()
        if self._reader is not None:
            self._reader.abandon_in_child()


def _pages_of(keys: bytes) -> int:
    pages, rest = divmod(len(keys), KEY_BYTES)
    if rest:
        raise InvalidArgumentError(f"packed keys are n × {KEY_BYTES} bytes; got {len(keys)}")
    if pages > BATCH_PAGES_MAX:
        raise LimitExceededError(f"a batch of {pages} pages exceeds {BATCH_PAGES_MAX}: split it")
    return pages


def _not_stored(status: int, reason: int) -> Known | Refused:
    outcome = _outcome(status, reason)
    assert isinstance(outcome, Known | Refused), "a stored page is told apart before"
    return outcome


def _outcome(status: int, reason: int) -> PutOutcome:
    if status == PutStatus.STORED:
        return STORED
    try:
        return put_outcome(status, reason)
    except ValueError as error:
        raise ProtocolError(f"the sidecar answered status {status}, reason {reason}: {error}") from error


_departures = Departures()
_attachments: weakref.WeakSet[AttachedArena] = weakref.WeakSet()


def _abandon_all_in_child() -> None:
    global _departures  # noqa: PLW0603  (they are the parent's to tell)
    _departures = Departures()
    for attachment in list(_attachments):
        attachment._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all_in_child)
