"""Workers that get stuck in the midst of something, one function a way; `python -m tests.support.stuck_worker HOW RUNTIME`.

Each says a line when it has come as far as it goes, and then does nothing more.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import Ping
from cache_l2.attach_socket import DatagramReceiver
from kv_types.outcomes import STORED
from kv_wire.channel import CacheCalls, open_channel
from kv_wire.gen import cache_pb2
from tests.support.attach_raw import dial, greet, hello
from tests.support.attach_worker import dies_writing
from tests.support.processes import wait_until_stopped
from tests.support.remote_store import RemoteStore
from tests.support.spaces import fresh_chain, page_of, space_of

LARGE_BYTES = 2**20
LARGE_PAGES = 24
"""More than gRPC and the kernel buffer for somebody who doesn't read."""


def puts(runtime: Path) -> None:
    """Half of its pages' bytes are written, nothing is committed."""
    dies_writing(str(runtime / "attach.sock"), os.urandom(32).hex(), 16, "half")


def gets(runtime: Path) -> None:
    """A Get over gRPC, of which the first message was read."""
    with open_channel(f"unix:{runtime / 'grpc.sock'}") as channel:
        store, keys = RemoteStore(channel), fresh_chain(LARGE_PAGES)
        space = store.register(space_of(LARGE_BYTES))
        pages = [page_of(key, LARGE_BYTES) for key in keys]
        assert store.put(space, keys, pages, stamp=store.stamp()) == [STORED] * LARGE_PAGES
        request = cache_pb2.GetRequest(namespace_id=space, chain=cache_pb2.Chain(keys=b"".join(keys)))
        messages = iter(CacheCalls(channel).get_raw(request, timeout=60))
        next(messages)
        _stuck()
        list(messages)


def never_reads(runtime: Path) -> None:
    """Asks over the attach socket until nothing more goes in, and reads no reply."""
    connection = dial(runtime / "attach.sock")
    greet(connection, hello())
    datagram = DatagramReceiver().receive(connection, descriptors=wire.WELCOME_DESCRIPTORS)
    assert datagram is not None
    ping = wire.encode_message(Ping(), 1)
    connection.settimeout(0.2)
    try:
        while True:
            connection.send(ping)
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        _stuck()


def half_greets(runtime: Path) -> None:
    """A connection that never says hello."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(runtime / "attach.sock"))
        _stuck()


def _stuck() -> None:
    print("stuck", flush=True)
    sys.stdin.readline()


class StuckWorker:
    """The process; killed with the `with` block."""

    def __init__(self, how: str, runtime: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.stuck_worker", how, str(runtime)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._how = how

    def stop(self) -> None:
        """Let it get stuck, then stop it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self._how} ended with {self._process.wait(10)}"
        self._process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self._process.pid)

    def __enter__(self) -> StuckWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
