"""One request and its reply over the attach connection, each within its deadline; the worker's side.

Calls of several threads take turns. A call whose deadline passes leaves its reply on the way; whoever receives next
drops it by its request id, and gives back the reservations that it brings, since nobody will fill them.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from typing import NoReturn

from cache_l2.attach_messages import Abort, ClientMessage, ReservedPages, SidecarMessage
from cache_l2.attach_socket import DatagramReceiver, send_datagram
from cache_l2.attach_wire import decode_sidecar_message, encode_message
from kv_types.errors import ProtocolError, StrataError
from kv_types.limits import BATCH_PAGES_MAX, REQUESTS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.outcomes import PutStatus

_REQUEST_MASK = (1 << 32) - 1
_HANGUP = select.POLLHUP | select.POLLERR | select.POLLNVAL | select.POLLRDHUP


class DeadlinePassed(StrataError):
    """The reply did not come in time. The request may yet be carried out."""

    code = "deadline"


class ConnectionBroken(StrataError):
    """The sidecar closed the connection, died, or sent what is no message."""

    code = "unreachable"


class AttachChannel:
    """Owns a connected non-blocking SOCK_SEQPACKET socket. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._receiver = DatagramReceiver()
        self._requests = itertools.count(1)
        self._late: set[int] = set()
        self._unwanted: list[int] = []
        self._broken: str | None = None
        self._hangup = _poll_of(connection, select.POLLRDHUP)
        self._readable = _poll_of(connection, select.POLLIN)
        self._writable = _poll_of(connection, select.POLLOUT)
        self.late_replies = 0

    @property
    def is_broken(self) -> bool:
        """Whether the connection is gone; asks the kernel, so that a death is seen without a call."""
        if self._broken is not None:
            return True
        return any(flags & _HANGUP for _, flags in self._hangup.poll(0))

    def fileno(self) -> int:
        """Return the socket's descriptor, −1 once closed: poll it for POLLRDHUP to learn of the sidecar's end."""
        return self._socket.fileno()

    def call(self, message: ClientMessage, *, deadline_s: float) -> SidecarMessage:
        """Send `message` and return the reply to it.

        Raises DeadlinePassed after `deadline_s`, ConnectionBroken, and what encoding the message raises.
        """
        deadline = time.monotonic() + deadline_s
        request = self._draw_request()
        data = encode_message(message, request)
        if not self._lock.acquire(timeout=max(0.0, deadline_s)):
            raise DeadlinePassed(f"no turn on the attach connection within {deadline_s} s")
        try:
            self._check_usable()
            self._give_back(deadline)
            self._send(data, deadline)
            return self._await_reply(request, deadline)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the socket; a call that waits in another thread ends as ConnectionBroken."""
        if self._broken is None:
            self._broken = "closed"
            # shutdown wakes a thread that polls; the descriptor is closed only when no call can be using it
            _shut_down(self._socket)
        with self._lock:
            self._socket.close()

    def abandon_in_child(self) -> None:
        """After a fork: close this process's copy of the socket without a word to the sidecar, and take new locks."""
        self._broken = "this process was forked after attaching"
        self._lock = threading.Lock()
        self._socket.close()

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise ConnectionBroken(f"the attach connection is gone: {self._broken}")
        if len(self._late) >= REQUESTS_IN_FLIGHT_PER_CLIENT_MAX:
            self._drain_late()
        if len(self._late) >= REQUESTS_IN_FLIGHT_PER_CLIENT_MAX:
            raise DeadlinePassed(f"the sidecar owes {len(self._late)} replies already")

    def _draw_request(self) -> int:
        return next(self._requests) & _REQUEST_MASK

    def _await_reply(self, request: int, deadline: float) -> SidecarMessage:
        is_answered = False
        try:
            while True:
                received, reply = self._receive(deadline)
                if received == request:
                    is_answered = True
                    return reply
                self._take_late(received, reply)
        finally:  # also when a signal handler raised
            if not is_answered:
                self._late.add(request)

    def _take_late(self, request: int, reply: SidecarMessage) -> None:
        self._late.discard(request)
        self.late_replies += 1
        if isinstance(reply, ReservedPages):
            self._unwanted += [
                reservation
                for status, reservation in zip(reply.statuses, reply.reservations, strict=True)
                if status == PutStatus.STORED
            ]

    def _drain_late(self) -> None:
        """Take late replies that are there already, without waiting."""
        while self._late:
            try:
                self._take_late(*self._receive(0.0))
            except DeadlinePassed:
                return

    def _give_back(self, deadline: float) -> None:
        """Abort reservations that came with late replies; the sidecar's own expiry is the last resort."""
        self._drain_late()
        while self._unwanted and len(self._late) < REQUESTS_IN_FLIGHT_PER_CLIENT_MAX:
            batch = tuple(self._unwanted[:BATCH_PAGES_MAX])
            request = self._draw_request()
            self._send(encode_message(Abort(batch), request), deadline)
            del self._unwanted[: len(batch)]
            self._late.add(request)

    def _send(self, data: bytes, deadline: float) -> None:
        while True:
            try:
                send_datagram(self._socket, data)
            except BlockingIOError:
                _wait(self._writable, deadline)
            except OSError as error:
                self._break(f"sending failed: {error}")
            else:
                return

    def _receive(self, deadline: float) -> tuple[int, SidecarMessage]:
        _wait(self._readable, deadline)
        try:
            datagram = self._receiver.receive(self._socket)
        except OSError as error:
            self._break(f"receiving failed: {error}")
        if datagram is None:
            self._break("the sidecar closed the connection")
        if datagram.problem is not None:
            self._break(datagram.problem)
        try:
            return decode_sidecar_message(datagram.data)
        except ProtocolError as error:
            self._break(str(error))

    def _break(self, why: str) -> NoReturn:
        self._broken = self._broken or why
        _shut_down(self._socket)
        raise ConnectionBroken(f"the attach connection is gone: {self._broken}")


def _poll_of(connection: socket.socket, flags: int) -> select.poll:
    poll = select.poll()
    poll.register(connection, flags)
    return poll


def _wait(poll: select.poll, deadline: float) -> None:
    """Wait for the socket, not at all once the deadline has passed. Raises DeadlinePassed."""
    left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
    if not poll.poll(left_ms):
        raise DeadlinePassed("the sidecar did not answer in time")


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster
