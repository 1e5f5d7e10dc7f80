"""A client that writes garbage into the clients' file; run as `python -m tests.support.scribbler PATH WHERE SEED`.

WHERE is `own`, its own row and the access times, as far as a client is trusted; or `all`. It says its row, then goes on until a
line comes, or it is killed.
"""

from __future__ import annotations

import mmap
import os
import random
import select
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import Welcome
from cache_l2.attach_socket import DatagramReceiver
from tests.support.attach_raw import dial, greet, hello

PAUSE_S = 0.001
PIECE_BYTES = 64 * 1024
_WHERE = struct.Struct("<QQQ")
_WHERE_AT = 112
"""Where the header of the control file has row_offset, access_offset and row_bytes."""


def main(path: str, where: str, seed: str) -> None:
    """Attach, and scribble."""
    connection = dial(Path(path))
    greet(connection, hello(name="scribbler"))
    datagram = DatagramReceiver().receive(connection, descriptors=wire.WELCOME_DESCRIPTORS)
    assert datagram is not None
    welcome = wire.decode_sidecar_message(datagram.data)[1]
    assert isinstance(welcome, Welcome)
    control, clients, *_ = datagram.descriptors
    with mmap.mmap(control, 4096, prot=mmap.PROT_READ) as header:
        rows_at, access_at, row_bytes = _WHERE.unpack_from(header, _WHERE_AT)
    own = rows_at + welcome.row * row_bytes
    regions = [(own, own + row_bytes), (access_at, welcome.clients_bytes)]
    if where == "all":
        regions = [(0, welcome.clients_bytes)]
    draw = random.Random(int(seed))
    print(welcome.row, flush=True)
    with mmap.mmap(clients, welcome.clients_bytes) as file:
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            begin, end = draw.choice(regions)
            if draw.random() < 0.5:  # anywhere; else at the beginning, where a row says most
                begin = draw.randrange(begin, end) & ~7
            garbage = _garbage(draw)[: end - begin]
            file[begin : begin + len(garbage)] = garbage


def _garbage(draw: random.Random) -> bytes:
    """Noise, ones, zeros, or words that look like hazards, views and counters."""
    size = draw.choice([8, 64, 4096, PIECE_BYTES])
    kind = draw.randrange(5)
    if kind == 0:
        return draw.randbytes(size)
    if kind < 3:
        return (b"\xff" if kind == 1 else b"\0") * size
    words = (draw.randrange(3) << 32 | draw.randrange(5000) for _ in range(size // 8))
    if kind == 4:
        words = (draw.choice([0, 1, 2, 2**32, 2**63, 2**64 - 1]) for _ in range(size // 8))
    return struct.pack(f"<{size // 8}Q", *words)


class Scribbler:
    """The process, ended with the `with` block."""

    def __init__(self, path: Path, where: str, *, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scribbler", str(path), where, str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ},
        )  # fmt: skip
        assert self._process.stdout is not None
        self.row = int(self._process.stdout.readline())

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Scribbler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
