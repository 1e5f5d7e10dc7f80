"""A plain process at the other end of a socket: it sends and accepts the bytes of pages, and knows no protocol to speak of.

It has one thread for all its connections, as the servers have whose place it takes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sidecar.log import die_with_parent

LOAD, STORE = b"L", b"S"
REQUEST = struct.Struct("<cII")
"""What to do, the first page, how many."""
DONE = b"."


@dataclass(frozen=True)
class RawPeer:
    """A running one."""

    socket_path: Path
    port: int


@contextlib.contextmanager
def raw_peer(directory: Path, *, name: str, pages: int, page_bytes: int) -> Iterator[RawPeer]:
    """Run one on a free port of 127.0.0.1 and a Unix socket in the directory."""
    path = directory / name
    command = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), sys.executable]
    command += ["-m", "benchmarks.raw_peer", str(path), str(pages), str(page_bytes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    try:
        if process.stdout is None or not (port := process.stdout.readline()):
            raise RuntimeError("a plain peer did not come up")
        yield RawPeer(path, int(port))
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def receive(connection: socket.socket, place: memoryview) -> None:
    """Fill a place in as few calls as can be. Raises OSError when the connection ends before."""
    done = 0
    while done < len(place):
        count = connection.recv_into(place[done:], 0, socket.MSG_WAITALL)
        if count == 0:
            raise OSError("the connection ended")
        done += count


class _Connection:
    """What is under way on one connection; it does not block."""

    def __init__(self, connection: socket.socket, memory: memoryview, page_bytes: int) -> None:
        connection.setblocking(False)
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._memory = memory
        self._page_bytes = page_bytes
        self._sending = memory[:0]
        self._receiving = memory[:0]

    @property
    def wants(self) -> int:
        """What to wait for."""
        return selectors.EVENT_WRITE if len(self._sending) else selectors.EVENT_READ

    def step(self) -> None:
        """Move what can be moved in one call. Raises OSError at the end, BlockingIOError when nothing can."""
        if len(self._sending):
            self._sending = self._sending[self.socket.send(self._sending) :]
        elif len(self._receiving):
            self._receiving = self._receiving[self.socket.recv_into(self._receiving) :]
            if not len(self._receiving):
                self.socket.sendall(DONE)
        else:
            self._take_request()

    def _take_request(self) -> None:
        request = self.socket.recv(REQUEST.size)
        if len(request) < REQUEST.size:
            raise OSError("the connection ended")
        verb, first, count = REQUEST.unpack(request)
        place = self._memory[first * self._page_bytes : (first + count) * self._page_bytes]
        if verb == LOAD:
            self._sending = place
        else:
            self._receiving = place


def main(path: str, pages: int, page_bytes: int) -> None:
    """Serve until ended, all connections in one thread."""
    memory = memoryview(mmap.mmap(-1, pages * page_bytes))
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = at >> 12 & 0xFF
    listeners = [socket.socket(socket.AF_UNIX), socket.socket()]
    listeners[0].bind(path)
    listeners[1].bind(("127.0.0.1", 0))
    waiting = selectors.DefaultSelector()
    for listener in listeners:
        listener.listen(64)
        waiting.register(listener, selectors.EVENT_READ)
    sys.stdout.write(f"{listeners[1].getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        for key, _ in waiting.select():
            if key.data is None:
                accepted, _ = key.fileobj.accept()  # type: ignore[union-attr]
                waiting.register(accepted, selectors.EVENT_READ, _Connection(accepted, memory, page_bytes))
            else:
                _serve(waiting, key.data)


def _serve(waiting: selectors.BaseSelector, connection: _Connection) -> None:
    wanted = connection.wants
    try:
        connection.step()
    except BlockingIOError:
        return
    except OSError:
        waiting.unregister(connection.socket)
        connection.socket.close()
        return
    if connection.wants != wanted:
        waiting.modify(connection.socket, connection.wants, connection)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
