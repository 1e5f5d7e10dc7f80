"""The worker's half of the attach handshake: connect, introduce, check clocks and versions, take the descriptors."""

from __future__ import annotations

import errno
import os
import select
import socket
import time

from cache_l2._native import LAYOUT_VERSION
from cache_l2.attach_messages import Detach, Hello, Refusal, Refused, Role, SidecarMessage, Welcome
from cache_l2.attach_socket import DatagramReceiver, close_all, send_datagram, time_namespace
from cache_l2.attach_wire import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    WELCOME_DESCRIPTORS,
    decode_sidecar_message,
    encode_message,
)
from cache_l2.memory_probe import HUGE_PAGE_BYTES
from kv_types.errors import HandshakeError, InvalidArgumentError, ProtocolError, SidecarUnreachableError
from kv_types.validity import EngineMode

_HELLO_REQUEST = 0
_RETRY_S = 0.01
_ADVICE = {
    Refusal.VERSION: "upgrade stratakv on the older side",
    Refusal.LAYOUT: "upgrade stratakv on the older side, so that both use one memory layout",
    Refusal.FOREIGN_USER: "run worker and sidecar as one user",
    Refusal.FOREIGN_CLOCK: "run worker and sidecar in one time namespace",
    Refusal.FOREIGN_PROCESS: "attach from the process that opened the connection",
    Refusal.ROWS_FULL: "raise the sidecar's client_rows, or end clients that are not needed",
    Refusal.CLOSING: "wait for the next sidecar",
    Refusal.MALFORMED: "use the same stratakv on both sides",
}


def shake_hands(
    path: str,
    *,
    name: str,
    writable: bool,
    gone: tuple[int, ...] = (),
    engine: EngineMode = EngineMode.NONE,
    deadline_s: float,
) -> tuple[socket.socket, Welcome, tuple[int, ...]]:
    """Return the connected non-blocking socket, the sidecar's welcome, and its four descriptors, all the caller's.

    `gone` names earlier attachments of this process that it has unmapped: their rows end before the new one is given.
    Raises SidecarUnreachableError, HandshakeError, LimitExceededError, InvalidArgumentError. Leaves nothing open then.
    """
    deadline = time.monotonic() + deadline_s
    before_ns = _boot_now_ns()
    hello = encode_message(
        Hello(
            version_min=PROTOCOL_VERSION_MIN, version_max=PROTOCOL_VERSION, layout_version=LAYOUT_VERSION,
            role=Role.WRITER if writable else Role.READER, time_namespace=time_namespace(),
            boot_now_ns=before_ns, name=name, gone=gone, engine=engine,
        ),
        _HELLO_REQUEST,
    )  # fmt: skip
    connection = _connect(path, deadline)
    descriptors: tuple[int, ...] = ()
    try:
        _introduce(connection, hello)
        reply, descriptors = _await_reply(connection, path, deadline)
        welcome = _accepted(reply, descriptors, before_ns)
    except BaseException:
        close_all(descriptors)
        decline(connection)
        raise
    return connection, welcome, descriptors


def decline(connection: socket.socket) -> None:
    """Leave without having used anything, so that the sidecar frees the row now and not at this process's end."""
    try:
        send_datagram(connection, encode_message(Detach(), _HELLO_REQUEST))
    except OSError:
        pass  # the sidecar was gone or had refused: it holds no row for us
    finally:
        connection.close()


def _connect(path: str, deadline: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    try:
        status = connection.connect_ex(path)
        # a full backlog answers EAGAIN and can't be polled for
        while status == errno.EAGAIN and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
            status = connection.connect_ex(path)
    except (OSError, ValueError) as error:
        connection.close()
        raise InvalidArgumentError(f"{path!r} can't be a socket path: {error}") from error
    if status:
        connection.close()
        raise SidecarUnreachableError(f"no sidecar answers at {path}: {os.strerror(status)}")
    return connection


def _introduce(connection: socket.socket, hello: bytes) -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        send_datagram(connection, hello, (pidfd,))
    except OSError as error:
        raise SidecarUnreachableError(f"the sidecar closed the connection at once: {error}") from error
    finally:
        os.close(pidfd)


def _await_reply(
    connection: socket.socket, path: str, deadline: float
) -> tuple[SidecarMessage, tuple[int, ...]]:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
    if not poll.poll(left_ms):
        raise SidecarUnreachableError(f"the sidecar at {path} did not answer the handshake in time")
    try:
        datagram = DatagramReceiver().receive(connection, descriptors=WELCOME_DESCRIPTORS)
    except OSError as error:
        raise SidecarUnreachableError(f"the connection to {path} broke in the handshake: {error}") from error
    if datagram is None:
        raise SidecarUnreachableError(f"the sidecar at {path} closed the connection in the handshake")
    if datagram.problem is not None:
        raise HandshakeError(f"the sidecar's welcome can't be used: {datagram.problem}")
    try:
        _, message = decode_sidecar_message(datagram.data)
    except ProtocolError as error:
        close_all(datagram.descriptors)
        raise HandshakeError(f"whoever listens at {path} does not speak this protocol: {error}") from error
    return message, datagram.descriptors


def _accepted(reply: SidecarMessage, descriptors: tuple[int, ...], before_ns: int) -> Welcome:
    if isinstance(reply, Refused) and reply.code == Refusal.CLOSING:
        raise SidecarUnreachableError(f"the sidecar is ending: {reply.text}")
    if isinstance(reply, Refused):
        advice = _ADVICE.get(reply.code)  # type: ignore[call-overload]  # codes of newer sidecars are plain numbers
        raise HandshakeError(f"the sidecar refused: {reply.text}" + (f" ({advice})" if advice else ""))
    if not isinstance(reply, Welcome) or len(descriptors) != WELCOME_DESCRIPTORS:
        raise HandshakeError(
            f"the sidecar answered the handshake with {type(reply).__name__} and {len(descriptors)} descriptors"
        )
    if (
        reply.layout_version != LAYOUT_VERSION
        or not PROTOCOL_VERSION_MIN <= reply.version <= PROTOCOL_VERSION
    ):
        raise HandshakeError(
            f"the sidecar chose protocol {reply.version} and memory layout {reply.layout_version}; this worker "
            f"speaks {PROTOCOL_VERSION_MIN}–{PROTOCOL_VERSION} and {LAYOUT_VERSION}: {_ADVICE[Refusal.VERSION]}"
        )
    _check_clock(reply, before_ns)
    sizes = (reply.control_bytes, reply.clients_bytes, reply.data_bytes)
    for what, descriptor, size in zip(("control", "clients", "data"), descriptors[:3], sizes, strict=True):
        actual = os.fstat(descriptor).st_size
        if not size <= actual < size + HUGE_PAGE_BYTES:  # files of huge pages end with a whole one
            raise HandshakeError(f"the {what} file has {actual} bytes where the sidecar announced {size}")
    return reply


def _check_clock(welcome: Welcome, before_ns: int) -> None:
    """Freshness is compared across the two processes, so that their CLOCK_BOOTTIME must be one (rule R16)."""
    own = time_namespace()
    if own and welcome.time_namespace and own != welcome.time_namespace:
        raise HandshakeError(
            f"the sidecar lives in time namespace {welcome.time_namespace}, this process in {own}: "
            f"{_ADVICE[Refusal.FOREIGN_CLOCK]}"
        )
    after_ns = _boot_now_ns()
    if not before_ns <= welcome.boot_now_ns <= after_ns:
        raise HandshakeError(
            f"the sidecar's boot clock reads {welcome.boot_now_ns} ns, which is not between this process's "
            f"{before_ns} and {after_ns}: {_ADVICE[Refusal.FOREIGN_CLOCK]}"
        )


def _boot_now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
