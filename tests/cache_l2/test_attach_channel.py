"""The channel with many threads against a peer that answers as the test says: in any order, late, or not at all."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_l2.attach_calls import CallTable
from cache_l2.attach_channel import AttachChannel, ConnectionBroken, DeadlinePassed
from cache_l2.attach_messages import (
    Abort,
    CancelLoad,
    ChainToLoad,
    ClientMessage,
    Done,
    Load,
    LoadedPages,
    LoadedRow,
    Ping,
    Pong,
    Reserve,
    ReservedPages,
    SidecarMessage,
)
from cache_l2.attach_wire import decode_client_message, encode_message
from kv_types.limits import ATTACH_MESSAGE_BYTES_MAX
from kv_types.outcomes import PutStatus
from tests.support.polling import wait_until

LONG_S = 20.0
RESERVE = Reserve(namespace_number=1, parent=None, keys=bytes(32), ttl_s=None)
LOAD = Load((ChainToLoad(namespace_number=1, parent=None, keys=bytes(64)),), 10_000)


class Peer:
    """The sidecar's end: hears one request at a time, and answers what it is told to."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.socket.settimeout(LONG_S)

    def hear(self) -> tuple[int, ClientMessage]:
        return decode_client_message(self.socket.recv(ATTACH_MESSAGE_BYTES_MAX))

    def say(self, request: int, message: SidecarMessage) -> None:
        self.socket.send(encode_message(message, request))

    def pong(self, request: int) -> None:
        """An answer that tells to which request it belongs."""
        self.say(request, Pong(request))


@pytest.fixture
def ends() -> Iterator[tuple[AttachChannel, Peer]]:
    with connected() as made:
        yield made


@contextlib.contextmanager
def connected() -> Iterator[tuple[AttachChannel, Peer]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    channel, peer = AttachChannel(near), Peer(far)
    try:
        yield channel, peer
    finally:
        channel.close()
        peer.socket.close()


def post_until_full(channel: AttachChannel, message: ClientMessage) -> int:
    """Post until there is no room to send more; returns how many were."""
    for posted in range(10_000):
        try:
            channel.post(message)
        except DeadlinePassed:
            return posted
    raise AssertionError("the socket took everything")


def ask(channel: AttachChannel, *, deadline_s: float = LONG_S) -> bool:
    """Ping under a request id of one's own; whether the answer was that to this very request."""
    request = channel.draw_request()
    return channel.call(Ping(), deadline_s=deadline_s, request=request) == Pong(request)


def test_replies_in_any_order_reach_their_own_callers(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    order = random.Random(7)
    with ThreadPoolExecutor(16) as pool:
        for _ in range(20):
            calls = [pool.submit(ask, channel) for _ in range(16)]
            heard = [peer.hear()[0] for _ in range(16)]
            order.shuffle(heard)
            for request in heard:
                peer.pong(request)
            assert all(call.result(LONG_S) for call in calls)
    assert channel.calls_under_way == 0
    assert channel.late_replies == 0


def test_a_load_that_takes_long_holds_back_neither_a_put_nor_another_load(
    ends: tuple[AttachChannel, Peer],
) -> None:
    channel, peer = ends
    answer = LoadedPages((LoadedRow(2, 0, 0),))
    with ThreadPoolExecutor(3) as pool:
        slow = pool.submit(channel.call, LOAD, deadline_s=LONG_S)
        slow_request, _ = peer.hear()
        put = pool.submit(channel.call, RESERVE, deadline_s=LONG_S)
        reserved = ReservedPages(bytes([PutStatus.STORED]), bytes(1), (5,), (0,))
        peer.say(peer.hear()[0], reserved)
        assert put.result(LONG_S) == reserved
        other = pool.submit(channel.call, LOAD, deadline_s=LONG_S)
        peer.say(peer.hear()[0], answer)
        assert other.result(LONG_S) == answer
        assert not slow.done()
        peer.say(slow_request, answer)
        assert slow.result(LONG_S) == answer


def test_when_the_receiver_gives_up_another_receives(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(channel.call, Ping(), deadline_s=0.3)
        first_request, _ = peer.hear()
        others = [pool.submit(ask, channel) for _ in range(4)]
        heard = [peer.hear()[0] for _ in range(4)]
        with pytest.raises(DeadlinePassed):
            first.result(LONG_S)
        for request in [first_request, *heard]:
            peer.pong(request)
        assert all(call.result(LONG_S) for call in others)
    assert channel.late_replies == 1


def test_a_late_reply_is_dropped_and_what_it_reserved_is_given_back(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    with pytest.raises(DeadlinePassed):
        channel.call(RESERVE, deadline_s=0.0)
    late, _ = peer.hear()
    statuses = bytes([PutStatus.STORED, PutStatus.KNOWN, PutStatus.STORED])
    peer.say(late, ReservedPages(statuses, bytes(3), (11, 0, 13), (0, 0, 0)))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, channel)
        assert peer.hear()[1] == Abort((11, 13))
        peer.pong(peer.hear()[0])
        assert call.result(LONG_S)
    assert channel.late_replies == 1


def test_too_many_replies_owed_refuse_more_requests_until_they_come(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    channel._calls = CallTable(late_max=3)
    for _ in range(3):
        with pytest.raises(DeadlinePassed, match="in time"):
            channel.call(Ping(), deadline_s=0.0)
    for _ in range(2):
        with pytest.raises(DeadlinePassed, match="owes 3"):
            channel.call(Ping(), deadline_s=LONG_S)
    with pytest.raises(DeadlinePassed, match="under way"):
        channel.post(Ping())
    for _ in range(3):
        peer.pong(peer.hear()[0])
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, channel)
        peer.pong(peer.hear()[0])
        assert call.result(LONG_S)


def test_more_calls_than_may_be_under_way_take_turns(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    channel._calls = CallTable(calls_max=2)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(ask, channel) for _ in range(8)]
        wait_until(lambda: channel.calls_under_way == 8, what="all calls to be under way")
        with pytest.raises(DeadlinePassed):
            channel.call(Ping(), deadline_s=0.0)
        first, second = peer.hear()[0], peer.hear()[0]
        peer.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.hear()
        peer.socket.settimeout(LONG_S)
        peer.pong(second)
        peer.pong(first)
        for _ in range(6):
            peer.pong(peer.hear()[0])
        assert all(call.result(LONG_S) for call in calls)


@pytest.mark.parametrize("how", ["closed by the peer", "closed here", "garbage"])
def test_a_broken_connection_wakes_everybody(ends: tuple[AttachChannel, Peer], how: str) -> None:
    channel, peer = ends
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(channel.call, Ping(), deadline_s=LONG_S) for _ in range(8)]
        for _ in range(8):
            peer.hear()
        if how == "closed here":
            channel.close()
        elif how == "garbage":
            peer.socket.send(b"no message")
        else:
            peer.socket.close()
        for call in calls:
            with pytest.raises(ConnectionBroken):
                call.result(5)
    assert channel.is_broken
    with pytest.raises(ConnectionBroken):
        channel.call(Ping(), deadline_s=LONG_S)
    with pytest.raises(ConnectionBroken):
        channel.post(Ping())
    channel.close()
    assert channel.fileno() == -1


def test_calls_that_queue_are_woken_by_a_broken_connection(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    channel._calls = CallTable(calls_max=1)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(channel.call, Ping(), deadline_s=LONG_S) for _ in range(4)]
        wait_until(lambda: channel.calls_under_way == 4, what="all calls to be under way")
        peer.socket.close()
        for call in calls:
            with pytest.raises(ConnectionBroken):
                call.result(5)


def test_what_is_posted_is_answered_while_others_wait_or_when_one_polls(
    ends: tuple[AttachChannel, Peer],
) -> None:
    channel, peer = ends
    answer = LoadedPages((LoadedRow(1, 1, 1),))
    first, second = channel.post(LOAD), channel.post(LOAD)
    assert [peer.hear()[0] for _ in range(2)] == [first.request, second.request]
    channel.poll()
    assert [first.reply, second.reply] == [None, None]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask, channel)
        request, _ = peer.hear()
        peer.say(first.request, answer)
        peer.pong(request)
        assert call.result(LONG_S)
    assert first.reply == answer
    channel.post(CancelLoad(second.request))
    assert peer.hear()[1] == CancelLoad(second.request)
    peer.say(second.request, answer)
    channel.poll()
    assert second.reply == answer
    assert channel.late_replies == 0


def test_nothing_is_posted_where_there_is_no_room_to_send_it(ends: tuple[AttachChannel, Peer]) -> None:
    channel, _ = ends
    big = Load((ChainToLoad(namespace_number=1, parent=None, keys=bytes(32 * 3000)),), 1)
    posted = post_until_full(channel, big)
    assert posted > 0
    assert channel.calls_under_way == posted


def test_a_call_that_can_not_be_sent_yet_lets_another_receive(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    big = Load((ChainToLoad(namespace_number=1, parent=None, keys=bytes(32 * 3000)),), 1)
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(ask, channel)
        request, _ = peer.hear()
        posted = post_until_full(channel, big)
        sends = pool.submit(channel.call, big, deadline_s=LONG_S)
        wait_until(lambda: channel.calls_under_way > posted + 1, what="the call to send")
        peer.pong(request)
        assert waits.result(LONG_S)
        assert not sends.done()
        for _ in range(posted + 1):
            peer.say(peer.hear()[0], Done())
        assert sends.result(LONG_S) == Done()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_comes_in_whatever_order_each_call_ends_as_it_must(data: st.DataObject) -> None:
    """Threads call, some with no time at all; the peer answers in any order, twice, or with what nobody asked."""
    patient = data.draw(st.lists(st.booleans(), min_size=1, max_size=8))
    with ThreadPoolExecutor(8) as pool, connected() as (channel, peer):
        calls: list[tuple[bool, Future[bool]]] = [
            (waits, pool.submit(ask, channel, deadline_s=LONG_S if waits else 0.0)) for waits in patient
        ]
        due = [peer.hear()[0] for _ in patient]
        while due:
            request = due.pop(data.draw(st.integers(0, len(due) - 1)))
            if data.draw(st.booleans()):
                peer.pong(2**31 + request)  # of no call
            peer.pong(request)
        for waits, call in calls:
            if waits:
                assert call.result(LONG_S)
            else:
                assert isinstance(call.exception(LONG_S), DeadlinePassed) or call.result()
        channel.poll()
        assert channel.calls_under_way == 0
        assert not channel._calls.late


def test_what_was_posted_can_be_waited_for_again_and_again(ends: tuple[AttachChannel, Peer]) -> None:
    channel, peer = ends
    posted = channel.post(Ping())
    heard, _ = peer.hear()
    for _ in range(3):
        with pytest.raises(DeadlinePassed):
            channel.wait(posted, deadline_s=0.0)
    assert channel.calls_under_way == 1
    with ThreadPoolExecutor(4) as pool:
        waiting = pool.submit(channel.wait, posted, deadline_s=LONG_S)
        others = [pool.submit(ask, channel) for _ in range(3)]
        for request in [peer.hear()[0] for _ in range(3)]:
            peer.pong(request)
        assert all(other.result(LONG_S) for other in others), "whoever receives does it for all"
        peer.pong(heard)
        assert waiting.result(LONG_S) == Pong(heard)
    assert channel.wait(posted, deadline_s=0.0) == Pong(heard), "it stands there"
    assert (channel.calls_under_way, channel.late_replies) == (0, 0)


def test_who_gives_up_waiting_for_what_was_posted_lets_another_receive(
    ends: tuple[AttachChannel, Peer],
) -> None:
    channel, peer = ends
    posted = channel.post(Ping())
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(channel.wait, posted, deadline_s=0.3)
        first, _ = peer.hear()
        other = pool.submit(ask, channel)
        request, _ = peer.hear()
        with pytest.raises(DeadlinePassed):
            waiting.result(LONG_S)
        peer.pong(first)
        peer.pong(request)
        assert other.result(LONG_S)
    assert channel.wait(posted, deadline_s=0.0) == Pong(first)


def test_what_was_posted_ends_with_the_connection_and_its_reply_is_late_once_forgotten(
    ends: tuple[AttachChannel, Peer],
) -> None:
    channel, peer = ends
    kept, forgotten = channel.post(Ping()), channel.post(Ping())
    peer.hear()
    request, _ = peer.hear()
    channel.forget(forgotten)
    peer.pong(request)
    channel.poll()
    assert channel.late_replies == 1
    peer.socket.close()
    with pytest.raises(ConnectionBroken):
        channel.wait(kept, deadline_s=LONG_S)
    channel.forget(kept)
    assert channel.calls_under_way == 0
