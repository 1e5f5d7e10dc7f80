"""What clients tell of their look-ups: never answered, never waited for, and of namespaces alone that they have registered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2 import attach_wire as wire
from cache_l2.attach_channel import AttachChannel
from cache_l2.attach_messages import Looked, Ping, Pong, Register, Registered
from cache_l2.attach_socket import send_datagram
from kv_types.limits import ATTACH_MESSAGE_BYTES_MAX
from kv_types.trace_limits import LOOKED_PAGES_MAX
from tests.support.attach_raw import attach_raw, hear, still_serves
from tests.support.attach_site import AttachSite
from tests.support.pages import namespace_of, page_bytes_of

SPACE = namespace_of()
DIGESTS = bytes(range(24))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def test_it_is_heard_once_registered_and_never_answered(site: AttachSite) -> None:
    with attach_raw(site) as connection:
        _say(connection, Looked(0, DIGESTS))  # nothing is registered: nobody is told
        _say(connection, Register(SPACE.canonical, page_bytes_of(SPACE)))
        answer = hear(connection)
        assert isinstance(answer, Registered)
        told = [Looked(answer.number, DIGESTS, 2), Looked(answer.number, b"")]
        for message in (*told, Looked(answer.number + 1, DIGESTS), Looked(2**32 - 1, DIGESTS)):
            _say(connection, message)
        _say(connection, Ping())
        assert isinstance(hear(connection), Pong), "the answer to what was asked is the first that comes"
    assert site.looked == told
    still_serves(site)


def _say(connection: socket.socket, message: Looked | Register | Ping) -> None:
    send_datagram(connection, wire.encode_message(message, 1))


def test_a_channel_tells_what_goes_at_once_and_nothing_else() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    channel = AttachChannel(near)
    longest = Looked(1, bytes(8 * LOOKED_PAGES_MAX))
    with far:
        told = 0
        while channel.tell(longest):
            told += 1
            assert told < 1000, "the socket took everything"
        heard = [wire.decode_client_message(far.recv(ATTACH_MESSAGE_BYTES_MAX))[1] for _ in range(told)]
        assert heard == [longest] * told
        assert told > 0
        assert channel.tell(Looked(1, DIGESTS)), "there is room again"
        assert not channel.is_broken
    assert not channel.tell(Looked(1, DIGESTS))
    channel.close()
    assert not channel.tell(Looked(1, DIGESTS))
    assert channel.calls_under_way == 0


def test_threads_may_tell_while_it_is_closed() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    channel = AttachChannel(near)
    raised: list[BaseException] = []
    begun = threading.Barrier(5)

    def tell() -> None:
        try:
            begun.wait(20)
            for _ in range(500):
                channel.tell(Looked(1, DIGESTS))
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(20)
    channel.close()
    for thread in threads:
        thread.join(20)
    far.close()
    assert not raised
    assert near.fileno() == -1, "the last one to leave has closed it"
