"""A relay between a Unix socket and another that counts what the server sends."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class CountingRelay:
    """Listens on `path`, hands every connection on to `target`; `sent_back` counts the server's bytes."""

    def __init__(self, path: Path, target: Path) -> None:
        self.sent_back = 0
        self._target = str(target)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(4)
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._sockets += (client, server)
                threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                if counted:
                    self.sent_back += len(data)
                sink.sendall(data)
