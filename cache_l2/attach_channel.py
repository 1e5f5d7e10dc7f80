"""Requests and their replies over the one attach connection, each within its deadline; the worker's side.

Calls of several threads are under way at once. The channel has no thread of its own: whoever waits receives, and hands
the others what is theirs (`attach_calls`). A call whose deadline passes leaves its reply on the way; whoever receives
next drops it by its request id, and the reservations that it brings are given back, since nobody will fill them.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from collections.abc import Iterable
from typing import NoReturn

from cache_l2.attach_calls import Call, CallTable
from cache_l2.attach_messages import Abort, ClientMessage, SidecarMessage
from cache_l2.attach_socket import DatagramReceiver, send_datagram
from cache_l2.attach_wire import decode_sidecar_message, encode_message
from kv_types.errors import ProtocolError, StrataError

_REQUEST_MASK = (1 << 32) - 1
_HANGUP = select.POLLHUP | select.POLLERR | select.POLLNVAL | select.POLLRDHUP


class DeadlinePassed(StrataError):
    """The reply did not come in time. The request may yet be carried out."""

    code = "deadline"


class ConnectionBroken(StrataError):
    """The sidecar closed the connection, died, or sent what is no message."""

    code = "unreachable"


class AttachChannel:
    """Owns a connected non-blocking SOCK_SEQPACKET socket. Thread-safe.

    `_state` guards the table of calls and the socket's end; it is never held over a wait.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._state = threading.Lock()
        self._calls = CallTable()
        self._users = 0
        self._receiver = DatagramReceiver()
        self._requests = itertools.count(1)
        self._broken: str | None = None
        self._is_closing = False
        self._hangup = _poll_of(connection, select.POLLRDHUP)
        self._readable = _poll_of(connection, select.POLLIN)

    @property
    def is_broken(self) -> bool:
        """Whether the connection is gone; asks the kernel, so that a death is seen without a call."""
        with self._state:
            if self._broken is not None:
                return True
            return any(flags & _HANGUP for _, flags in self._hangup.poll(0))

    @property
    def late_replies(self) -> int:
        """Replies that came when nobody waited for them any more."""
        return self._calls.late_replies

    @property
    def calls_under_way(self) -> int:
        """Requests that were sent, or wait for their turn, and whose replies somebody wants."""
        return self._calls.under_way

    def fileno(self) -> int:
        """Return the socket's descriptor, −1 once closed: poll it for POLLRDHUP to learn of the sidecar's end."""
        return self._socket.fileno()

    def draw_request(self) -> int:
        """Return a request id of this connection that was not used yet."""
        return next(self._requests) & _REQUEST_MASK

    def call(
        self, message: ClientMessage, *, deadline_s: float, request: int | None = None
    ) -> SidecarMessage:
        """Send `message` and return the reply to it. `request` is one that was drawn for it, None draws one.

        Raises DeadlinePassed after `deadline_s`, ConnectionBroken, and what encoding the message raises.
        """
        deadline = time.monotonic() + deadline_s
        call = Call(self.draw_request() if request is None else request)
        data = encode_message(message, call.request)
        self._enter(call)
        try:
            if not call.is_admitted:
                self._await_turn(call, deadline)
            if self._calls.expects_leftovers:
                self._tidy(call, deadline)
            self._send(data, deadline, call)
            call.is_sent = True
            reply = self._await_reply(call, deadline)
            call.is_taken = True
            return reply
        finally:  # also when a signal handler raised
            self._leave(call)

    def post(self, message: ClientMessage) -> Call:
        """Send `message` without waiting for anything; its reply stands in the returned call when it has come.

        Raises DeadlinePassed when it can't be sent at once, ConnectionBroken, and what encoding raises.
        """
        call = Call(self.draw_request())
        data = encode_message(message, call.request)
        with self._state:
            self._check_usable()
            if self._calls.is_full or self._calls.owes_too_much:
                raise DeadlinePassed("as many requests are under way as may be")
            self._calls.begin(call)
            self._users += 1
        try:
            self._send(data, 0.0, call)
            call.is_sent = True
        finally:
            with self._state:
                if not call.is_sent:
                    _wake(self._calls.leave(call))
                self._end_use()
        return call

    def wait(self, posted: Call, *, deadline_s: float) -> SidecarMessage:
        """Wait for the reply to what was posted, and receive for others meanwhile. One thread at a time for each.

        Raises DeadlinePassed, after which it is still under way, and ConnectionBroken.
        """
        deadline = time.monotonic() + deadline_s
        with self._state:
            if posted.reply is None:
                self._check_usable()
            self._users += 1
        try:
            reply = self._await_reply(posted, deadline)
            posted.is_taken = True
            return reply
        finally:
            with self._state:
                _wake(self._calls.step_down(posted))
                self._end_use()

    def forget(self, posted: Call) -> None:
        """Nobody waits for the reply to what was posted any more."""
        with self._state:
            _wake(self._calls.leave(posted))

    def tell(self, message: ClientMessage) -> bool:
        """Send `message`, to which no reply comes, if that can be done without waiting; whether it was. Never raises for I/O."""
        data = encode_message(message, self.draw_request())
        with self._state:
            if self._broken is not None:
                return False
            self._users += 1
        try:
            send_datagram(self._socket, data)
        except OSError:  # no room, or gone: whoever calls next learns which
            return False
        else:
            return True
        finally:
            with self._state:
                self._end_use()

    def poll(self) -> None:
        """Take the replies that are there, without waiting. Raises ConnectionBroken."""
        taker = Call(self.draw_request())
        self._enter(taker)
        try:
            self._drain(taker)
        finally:
            self._leave(taker)

    def close(self) -> None:
        """Close the socket; calls that wait in other threads end as ConnectionBroken."""
        with self._state:
            self._is_closing = True
            self._mark_broken("closed")
            if not self._users:
                self._socket.close()

    def abandon_in_child(self) -> None:
        """After a fork: close this process's copy of the socket without a word to the sidecar, and take new locks."""
        self._broken = "this process was forked after attaching"
        self._state = threading.Lock()
        self._calls = CallTable()
        self._users = 0
        self._socket.close()

    # --- one call's way ---

    def _enter(self, call: Call) -> None:
        with self._state:
            self._check_usable()
            self._calls.begin(call)
            self._calls.lead(call)
            self._users += 1

    def _leave(self, call: Call) -> None:
        with self._state:
            roused = self._calls.leave(call)
            if roused:
                _wake(roused)
            self._end_use()

    def _end_use(self) -> None:
        self._users -= 1
        if self._is_closing and not self._users:
            self._socket.close()  # no other call can be using the descriptor

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._gone()

    def _await_turn(self, call: Call, deadline: float) -> None:
        while True:
            with self._state:
                self._check_usable()
                if call.is_admitted:
                    return
                _fall_asleep(call)
            self._sleep(call, deadline)

    def _await_reply(self, call: Call, deadline: float) -> SidecarMessage:
        if self._calls.receiver is call:
            return self._receive_until_answered(call, deadline)
        while True:
            with self._state:
                if call.reply is not None:
                    return call.reply
                self._check_usable()
                receives = self._calls.lead(call)
                if not receives:
                    _fall_asleep(call)
            if receives:
                return self._receive_until_answered(call, deadline)
            self._sleep(call, deadline)

    def _receive_until_answered(self, call: Call, deadline: float) -> SidecarMessage:
        while call.reply is None:
            self._receive_one(deadline)
        return call.reply

    def _sleep(self, call: Call, deadline: float) -> None:
        """Sleep until woken. Raises DeadlinePassed."""
        assert call.wake is not None, "who sleeps has fallen asleep"
        left_s = deadline - time.monotonic()
        if call.wake.acquire(timeout=max(0.0, left_s)):
            return
        with self._state:
            if call.is_asleep:
                call.is_asleep = False
                raise DeadlinePassed("the sidecar did not answer in time")
            call.wake.acquire(blocking=False)  # woken at the last moment

    def _tidy(self, call: Call, deadline: float) -> None:
        """Take late replies that are there, and give back the reservations that came with such.

        The sidecar's own expiry of them is the last resort.
        """
        self._drain(call)
        while True:
            with self._state:
                if self._calls.owes_too_much:
                    raise DeadlinePassed(f"the sidecar owes {len(self._calls.late)} replies already")
                batch = self._calls.take_unwanted()
            if not batch:
                return
            self._abort(batch, deadline, call)

    def _drain(self, call: Call) -> None:
        """Take the replies that are there, unless somebody else receives."""
        try:
            while self._calls.receiver is call:
                self._receive_one(0.0)
        except DeadlinePassed:
            return

    def _abort(self, reservations: tuple[int, ...], deadline: float, call: Call) -> None:
        request = self.draw_request()
        with self._state:
            self._calls.late.add(request)
        try:
            self._send(encode_message(Abort(reservations), request), deadline, call)
        except BaseException:
            with self._state:
                self._calls.late.discard(request)
                self._calls.put_back_unwanted(reservations)
            raise

    # --- the socket ---

    def _send(self, data: bytes, deadline: float, call: Call) -> None:
        """Send for `call`, which does not receive while there is no room. Raises DeadlinePassed, ConnectionBroken."""
        while True:
            try:
                send_datagram(self._socket, data)
            except BlockingIOError:
                with self._state:
                    _wake(self._calls.step_down(call))
                _wait(_poll_of(self._socket, select.POLLOUT), deadline)
            except OSError as error:
                self._break(f"sending failed: {error}")
            else:
                return

    def _receive_one(self, deadline: float) -> None:
        """Receive one reply and hand it over; the receiver's alone. Raises DeadlinePassed, ConnectionBroken."""
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
            request, reply = decode_sidecar_message(datagram.data)
        except ProtocolError as error:
            self._break(str(error))
        with self._state:
            roused = self._calls.arrived(request, reply)
            if roused:
                _wake(roused)

    def _break(self, why: str) -> NoReturn:
        with self._state:
            self._mark_broken(why)
        raise self._gone()

    def _mark_broken(self, why: str) -> None:
        """Under `_state`. Shutting down wakes whoever polls the socket; the descriptor stays while it may be in use."""
        if self._broken is None:
            self._broken = why
            _shut_down(self._socket)
            _wake(self._calls.everybody())

    def _gone(self) -> ConnectionBroken:
        return ConnectionBroken(f"the attach connection is gone: {self._broken}")


def _fall_asleep(call: Call) -> None:
    """Under the channel's lock: from here on the call may be woken."""
    if call.wake is None:
        call.wake = threading.Lock()
        call.wake.acquire()
    call.is_asleep = True


def _wake(calls: Iterable[Call]) -> None:
    for call in calls:
        assert call.wake is not None, "who is asleep has something to be woken by"
        call.wake.release()


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
