"""The relay does to bytes what it is told to, and nothing else."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_relay import TO_CLIENT, TO_SERVER, FaultRelay
from tests.support.polling import wait_until

pytestmark = pytest.mark.timeout(30)


class _Echo(socketserver.BaseRequestHandler):
    """Sends back what it gets."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture
def relay() -> Iterator[FaultRelay]:
    with _Server(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        with FaultRelay(("127.0.0.1", server.server_address[1])) as relay:
            yield relay
        server.shutdown()
        thread.join()


def connect(relay: FaultRelay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), timeout=5)


def receive(client: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer at the end, however it comes."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while len(got) < count and (data := client.recv(count - len(got))):
            got += data
    return got


def test_without_rules_everything_passes_both_ways(relay: FaultRelay) -> None:
    sent = bytes(range(256)) * 20_000
    with connect(relay) as client:
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        assert receive(client, len(sent)) == sent
        writer.join()
        (one,) = relay.connections
        assert (one.passed(TO_SERVER), one.passed(TO_CLIENT)) == (len(sent), len(sent))
    wait_until(lambda: not relay.connections)
    assert relay.accepted == 1


def test_bytes_are_held_by_count_and_let_go(relay: FaultRelay) -> None:
    relay.set(TO_CLIENT, hold_after=3)
    with connect(relay) as client:
        client.sendall(b"abcdef")
        assert receive(client, 3) == b"abc"
        (one,) = relay.connections
        wait_until(lambda: one.arrived(TO_CLIENT) == 6)
        assert one.passed(TO_CLIENT) == 3
        one.set(TO_CLIENT, hold_after=4)
        assert receive(client, 1) == b"d"
        relay.set(TO_CLIENT, hold_after=None)
        assert receive(client, 2) == b"ef"
        with relay.stalled(TO_SERVER):
            client.sendall(b"x")
            wait_until(lambda: one.arrived(TO_SERVER) == 7)
            assert one.passed(TO_SERVER) == 6
        assert receive(client, 1) == b"x"


def test_one_bit_is_flipped_and_a_connection_ends_after_so_many_bytes(relay: FaultRelay) -> None:
    relay.set(TO_CLIENT, flip_at=2, cut_after=5)
    for _ in range(2):
        with connect(relay) as client:
            client.sendall(b"aaaaaaaa")
            assert receive(client, 8) == b"aa`aa"
    relay.set(TO_CLIENT, flip_at=None, cut_after=None)
    with connect(relay) as client, connect(relay) as other:
        for each in (client, other):
            each.sendall(b"b")
            assert receive(each, 1) == b"b"
        relay.connections[0].cut()
        assert receive(client, 1) == b""
        other.sendall(b"c")
        assert receive(other, 1) == b"c"
        relay.cut_all()
    relay.refuse()
    # the reset may be faster than the handshake
    with contextlib.suppress(ConnectionResetError), connect(relay) as client:
        assert receive(client, 1) == b""


def test_bytes_come_late_and_slowly(relay: FaultRelay) -> None:
    relay.set(TO_CLIENT, delay_s=0.1)
    with connect(relay) as client:
        began_s = time.monotonic()
        client.sendall(b"a")
        assert receive(client, 1) == b"a"
        assert time.monotonic() - began_s >= 0.1
        relay.set(TO_CLIENT, delay_s=0.0, bytes_per_s=1e6)
        began_s = time.monotonic()
        client.sendall(bytes(200_000))
        assert len(receive(client, 200_000)) == 200_000
        assert time.monotonic() - began_s >= 0.18


def test_over_unix_sockets(tmp_path: Path) -> None:
    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True

    with Server(str(tmp_path / "t"), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        with (
            FaultRelay(tmp_path / "t", path=tmp_path / "r"),
            socket.socket(socket.AF_UNIX) as client,
        ):
            client.connect(str(tmp_path / "r"))
            client.sendall(b"over")
            assert receive(client, 4) == b"over"
        server.shutdown()
        thread.join()
