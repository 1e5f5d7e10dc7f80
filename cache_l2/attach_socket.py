"""One datagram and its descriptors over the attach socket: none is ever leaked, inherited or taken unasked."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kv_types.limits import ATTACH_MESSAGE_BYTES_MAX

_INT_BYTES = array.array("i").itemsize
_DESCRIPTORS_SPACE = 8
"""Descriptors that a datagram has room for. The kernel drops what does not fit; what fits unasked is closed here."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS_SPACE * _INT_BYTES)
_CREDENTIALS = struct.Struct("3i")
# plain numbers: operators of the enums that `socket` gives cost more than the call that they are for
_TAKE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_SEND_FLAGS = int(socket.MSG_NOSIGNAL)
_DATA_CUT = int(socket.MSG_TRUNC)
_DESCRIPTORS_CUT = int(socket.MSG_CTRUNC)


class Datagram(NamedTuple):
    """`data` is a view into the receiver's buffer, valid until its next receive; `descriptors` belong to the caller.

    `problem` names what was wrong with it (too long, descriptors lost or unasked for); then there are no descriptors.
    """

    data: memoryview
    descriptors: tuple[int, ...]
    problem: str | None = None


class DatagramReceiver:
    """Receives datagrams of up to ATTACH_MESSAGE_BYTES_MAX bytes into one buffer that it reuses."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(ATTACH_MESSAGE_BYTES_MAX))
        self._into = [self._view]

    def receive(self, connection: socket.socket, *, descriptors: int = 0) -> Datagram | None:
        """Take one datagram that may carry exactly `descriptors` descriptors or none; None at the end of the stream.

        Raises BlockingIOError when none is there, OSError when the connection broke.
        """
        view = self._view
        size, ancillary, flags, _ = connection.recvmsg_into(self._into, _ANCILLARY_BYTES, _TAKE_FLAGS)
        if not ancillary and not flags & (_DATA_CUT | _DESCRIPTORS_CUT):
            return Datagram(view[:size], ()) if size else None
        received = _descriptors_of(ancillary)
        problem = _problem(flags, len(received), descriptors)
        if problem is not None:
            close_all(received)
            received = ()
        return Datagram(view[:size], received, problem)


def _problem(flags: int, received: int, wanted: int) -> str | None:
    if flags & _DATA_CUT:
        return f"a datagram longer than {ATTACH_MESSAGE_BYTES_MAX} bytes"
    if flags & _DESCRIPTORS_CUT:
        return "a datagram whose descriptors were cut off: too many of them, or this process may open no more"
    if received not in (0, wanted):
        return f"a datagram with {received} descriptors where {wanted} belong"
    return None


def _descriptors_of(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return tuple(found)


def send_datagram(connection: socket.socket, data: bytes, descriptors: Collection[int] = ()) -> None:
    """Send one datagram with descriptors, which stay the caller's. Raises BlockingIOError when there is no room."""
    if not descriptors:
        connection.send(data, _SEND_FLAGS)
        return
    rights = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights.tobytes())]
    connection.sendmsg([data], ancillary, _SEND_FLAGS)


def close_all(descriptors: Iterable[int]) -> None:
    """Close each of the descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who connected, as the kernel says it; `pid` is 0 when it lives in a pid namespace that can't be seen from here."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Read SO_PEERCRED."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def time_namespace() -> int:
    """Inode of this process's time namespace, 0 where the kernel has none: clocks are shared only within one."""
    try:
        return Path("/proc/self/ns/time").stat().st_ino
    except OSError:
        return 0


def pid_of_pidfd(descriptor: int) -> int | None:
    """Return the pid behind a pidfd: 0 when it can't be seen from here, −1 when it has exited, None if it is no pidfd."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    return None
