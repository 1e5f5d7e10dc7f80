"""A plain process at the other end of a socket: it sends and accepts the bytes of pages, and knows no protocol to speak of."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
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


def _serve(connection: socket.socket, memory: memoryview, page_bytes: int) -> None:
    with contextlib.suppress(OSError):
        while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            verb, first, count = REQUEST.unpack(request)
            place = memory[first * page_bytes : (first + count) * page_bytes]
            if verb == LOAD:
                connection.sendall(place)
            else:
                receive(connection, place)
                connection.sendall(DONE)


def receive(connection: socket.socket, place: memoryview) -> None:
    """Fill a place in as few calls as can be. Raises OSError when the connection ends before."""
    done = 0
    while done < len(place):
        count = connection.recv_into(place[done:], 0, socket.MSG_WAITALL)
        if count == 0:
            raise OSError("the connection ended")
        done += count


def _accept(listener: socket.socket, memory: memoryview, page_bytes: int) -> None:
    while True:
        connection, _ = listener.accept()
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connection, memory, page_bytes), daemon=True).start()


def main(path: str, pages: int, page_bytes: int) -> None:
    """Serve until ended."""
    memory = memoryview(mmap.mmap(-1, pages * page_bytes))
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = at >> 12 & 0xFF
    listeners = [socket.socket(socket.AF_UNIX), socket.socket()]
    listeners[0].bind(path)
    listeners[1].bind(("127.0.0.1", 0))
    for listener in listeners:
        listener.listen(64)
    threading.Thread(target=_accept, args=(listeners[0], memory, page_bytes), daemon=True).start()
    sys.stdout.write(f"{listeners[1].getsockname()[1]}\n")
    sys.stdout.flush()
    _accept(listeners[1], memory, page_bytes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
