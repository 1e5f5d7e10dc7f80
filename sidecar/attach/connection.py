"""One attach connection on the sidecar's side: its socket, who is behind it, and replies that wait to be taken."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cache_l2.attach_messages import SidecarMessage, Speeds
from cache_l2.attach_socket import Peer, send_datagram
from cache_l2.attach_wire import encode_message
from cache_l2.namespaces import NamespaceRecord
from kv_types.limits import ATTACH_QUEUE_MESSAGES_MAX
from kv_types.validity import EngineMode

if TYPE_CHECKING:
    from sidecar.attach.loads import LoadUnderWay


class ReceiverTooSlowError(Exception):
    """More replies wait for this client than it may leave waiting."""


@dataclass(slots=True, eq=False)
class AttachedProcess:
    """A client's life: it lasts until `pidfd` says that the process ended, whatever its connection does (rule R17).

    Its process may end it earlier, by detaching or by naming `attachment` as gone when it attaches again.
    """

    row: int
    pid: int
    pidfd: int
    name: str
    writable: bool
    connection: Connection | None
    attachment: int
    doorbell: int = -1
    """An eventfd that the client rings when it has posted something; -1: none yet."""
    engine: EngineMode = EngineMode.NONE
    registered: set[int] = field(default_factory=set)
    reserved_in: NamespaceRecord | None = None
    """Namespace of the pages that it reserved last."""
    listing: int = 0
    """Registrations that wait for the fleet's directory."""
    loads: dict[int, LoadUnderWay] = field(default_factory=dict)
    """Loads that are not answered yet, by request."""
    speeds: Speeds = field(default_factory=Speeds)
    """What it has told last of how fast it is."""


class Connection:
    """Non-blocking; sends in order, keeps at most ATTACH_QUEUE_MESSAGES_MAX replies, never waits."""

    def __init__(
        self,
        accepted: socket.socket,
        peer: Peer,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.socket = accepted
        self.peer = peer
        self.process: AttachedProcess | None = None
        self.is_closed = False
        self.is_deaf = False
        self.was_reset = False
        self._loop = loop
        self._waiting: deque[bytes] = deque()

    @property
    def pid(self) -> int:
        """Process behind the connection as the kernel told at connect, 0 when it can't be seen from here."""
        return self.peer.pid

    def send(
        self, message: SidecarMessage, request: int, *, descriptors: tuple[int, ...] = (), version: int
    ) -> None:
        """Send or queue a reply. Raises ReceiverTooSlowError, and OSError when descriptors can't be handed over.

        A reply that can't be delivered any more is dropped: its client has left, but what it had sent before it did,
        a Detach above all, is still to be read.
        """
        if self.is_deaf:
            return
        data = encode_message(message, request, version=version)
        if not self._waiting:
            try:
                send_datagram(self.socket, data, descriptors)
            except BlockingIOError:
                if descriptors:
                    raise ReceiverTooSlowError from None
                self._loop.add_writer(self.socket, self._flush)
            except OSError:
                if descriptors:
                    raise
                self.is_deaf = True
                return
            else:
                return
        if len(self._waiting) >= ATTACH_QUEUE_MESSAGES_MAX:
            raise ReceiverTooSlowError
        self._waiting.append(data)

    def close(self) -> None:
        """Close the socket and forget what waits. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self.socket)
        self._loop.remove_writer(self.socket)
        self._waiting.clear()
        self.socket.close()

    def _flush(self) -> None:
        while self._waiting:
            try:
                send_datagram(self.socket, self._waiting[0])
            except BlockingIOError:
                return
            except OSError:
                self.is_deaf = True
                self._waiting.clear()
                break
            self._waiting.popleft()
        self._loop.remove_writer(self.socket)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a client: whose it is, what it is called, and since when (`time.perf_counter`) it is carried out."""

    connection: Connection
    process: AttachedProcess
    request: int
    kind: str
    began: float


def take_rings(doorbell: int) -> None:
    """Take what a doorbell has counted; does nothing when its client took it, too.

    Never waits: the descriptor's flags are shared with the client, which may have made it wait for readers.
    """
    try:
        os.preadv(doorbell, [bytearray(8)], -1, os.RWF_NOWAIT)
    except BlockingIOError:
        return
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.set_blocking(doorbell, False)  # a kernel before 5.8: as good as can be
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(doorbell)


def stop_watching(process: AttachedProcess, loop: asyncio.AbstractEventLoop) -> None:
    """Close a process's pidfd and its doorbell."""
    for descriptor in (process.pidfd, process.doorbell):
        if descriptor < 0:
            continue
        loop.remove_reader(descriptor)
        os.close(descriptor)
