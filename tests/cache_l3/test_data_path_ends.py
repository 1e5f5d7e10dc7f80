"""How requests end otherwise: late, cancelled, lost with another's connection, with the shard, the path, or the process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import select
import signal
import socket
import time
import weakref
from typing import Any

import pytest

from cache_l3 import tls_path
from cache_l3.data_path import ABSENT, Cancelled, Got, Late, Lost, TransferError
from kv_types.errors import ClosedError
from kv_types.limits import L3_PASSED_OVER_MAX, L3_WINDOW_DEFAULT
from tests.support import data_paths
from tests.support.data_paths import (
    MAKERS,
    PATIENCE_S,
    Site,
    bulk,
    header,
    outcome,
    payload_of,
    record,
    sealed,
    site,
    until,
    within,
)
from tests.support.fault_relay import TO_CLIENT, FaultRelay
from tests.support.redis_servers import RedisServer
from tests.support.timing import within as at_most

kinds = pytest.mark.parametrize("kind", list(MAKERS))
GET = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
PING = b"*1\r\n$4\r\nPING\r\n"


def get(at: Site, place: bytearray, *, seconds: float = PATIENCE_S) -> asyncio.Future[object]:
    return at.path.get(at.shard, b"k", memoryview(place), deadline_ns=within(seconds))  # type: ignore[return-value]


def ping(at: Site, *, seconds: float = PATIENCE_S) -> asyncio.Future[object]:
    return at.path.ask(at.shard, [[b"PING"]], deadline_ns=within(seconds))  # type: ignore[return-value]


async def took(future: asyncio.Future[object]) -> tuple[object, float]:
    began = time.monotonic()
    ended = await outcome(future)
    return ended, time.monotonic() - began


@kinds
@pytest.mark.asyncio
async def test_a_request_that_waits_is_late_by_its_deadline_and_harms_nobody(kind: str) -> None:
    with site(kind) as at:
        late, seconds = await took(ping(at, seconds=0.05))
        assert isinstance(late, Late)
        assert not late.was_sent
        assert 0.04 < seconds < at_most(0.05) + 1.0
        past = await outcome(ping(at, seconds=-1.0))
        assert isinstance(past, Late)
        assert not past.was_sent
        assert at.path.statistics()["late"] == 2


@kinds
@pytest.mark.asyncio
async def test_a_late_request_takes_its_connection_with_it_and_its_place_is_never_written_again(
    kind: str,
) -> None:
    place = bytearray(b"u" * 5000)
    reply = bulk(record(1, 5000))
    with site(kind) as at:
        peer = at.peer()
        future = get(at, place, seconds=0.1)
        await peer.hears(len(GET))
        peer.says(reply[:2000])
        late = await outcome(future)
        assert isinstance(late, Late)
        assert late.was_sent
        ours = bytes(len(place))
        place[:] = ours
        with contextlib.suppress(OSError):
            peer.says(reply[2000:])
        await at.until_lost()
        assert peer.socket.recv(1) == b""
        assert place == ours


@pytest.mark.asyncio
async def test_others_of_the_window_are_lost_and_those_not_sent_go_over_another_connection() -> None:
    places = [bytearray(100) for _ in range(L3_WINDOW_DEFAULT + 2)]
    with site("native") as at:
        peer = at.peer()
        late = get(at, places[0], seconds=0.3)
        others = [get(at, place) for place in places[1:]]
        await peer.hears(len(GET) * L3_WINDOW_DEFAULT)
        await at.until_lost()
        ended = [await outcome(future) for future in (late, *others[: L3_WINDOW_DEFAULT - 1])]
        assert [type(each) for each in ended] == [Late] + [Lost] * (L3_WINDOW_DEFAULT - 1)
        assert all(isinstance(each, TransferError) and each.was_sent for each in ended)
        peer = at.peer()
        await peer.hears(len(GET) * 2)
        peer.says(bulk(record(1, 100)), b"$-1\r\n")
        assert isinstance(await others[-2], Got)
        assert await others[-1] is ABSENT


@kinds
@pytest.mark.asyncio
async def test_cancelling_what_waits_takes_it_out_and_what_is_under_way_ends_with_its_connection(
    kind: str,
) -> None:
    place = bytearray(100)
    with site(kind) as at:
        waiting = ping(at)
        at.path.cancel(waiting)
        ended = await outcome(waiting)
        assert isinstance(ended, Cancelled)
        assert not ended.was_sent
        peer = at.peer()
        under_way = get(at, place)
        await peer.hears(len(GET))
        at.path.cancel(under_way)
        at.path.cancel(under_way)
        ended = await outcome(under_way)
        assert isinstance(ended, Cancelled)
        assert ended.was_sent
        await at.until_lost()
        at.path.cancel(under_way)
        assert at.path.statistics()["cancelled"] == 2


@kinds
@pytest.mark.asyncio
async def test_a_cancelled_task_ends_only_when_its_bytes_have_stopped(kind: str) -> None:
    place = bytearray(b"u" * 100)
    with site(kind) as at:
        peer = at.peer()
        future = get(at, place)

        async def load() -> None:
            await future

        task = asyncio.create_task(load())
        await peer.hears(len(GET))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.done()
        assert future.cancelled()
        assert not future.cancel()
        ours = bytes(place)
        with contextlib.suppress(OSError):
            peer.says(bulk(record(1, 100)))
        await at.until_lost()
        assert place == ours


@kinds
@pytest.mark.asyncio
async def test_a_future_is_not_done_before_its_bytes_have_stopped(kind: str) -> None:
    with site(kind) as at:
        peer = at.peer()
        future = get(at, bytearray(100))
        await peer.hears(len(GET))
        assert future.cancel()
        assert not future.done()
        await until(future.done, "the end of what was cancelled")
        assert future.cancelled()


@kinds
@pytest.mark.asyncio
async def test_closing_a_shard_ends_what_is_its_own_and_nothing_else(kind: str) -> None:
    with site(kind) as at:
        peer, other = at.peer(), at.path.open_shard()
        ours, theirs = socket.socketpair()
        at.path.add_connection(other, ours, on_lost=at.lost.append)
        elsewhere = at.path.ask(other, [[b"PING"]], deadline_ns=within())
        under_way = get(at, bytearray(100))
        more = [ping(at) for _ in range(10)]
        await peer.hears(len(GET))
        at.path.close_shard(at.shard)
        at.path.close_shard(at.shard)
        for future in (under_way, *more, ping(at)):
            assert isinstance(await outcome(future), Cancelled)
        assert not elsewhere.done()
        theirs.sendall(b"+PONG\r\n")
        assert await elsewhere == [b"PONG"]
        assert not at.lost
        late_comer = socket.socketpair()
        at.add(late_comer[0])
        assert late_comer[1].recv(1) == b""
        for end in (theirs, late_comer[1]):
            end.close()


@kinds
@pytest.mark.asyncio
async def test_closing_ends_everything_at_once(kind: str) -> None:
    with site(kind) as at:
        peer = at.peer()
        futures = [get(at, bytearray(100)), *(ping(at) for _ in range(20))]
        await peer.hears(len(GET))
        at.path.close()
        at.path.close()
        assert all(isinstance(future.exception(), Cancelled) for future in futures)
        assert not at.lost
        assert set(bytes(peer.socket.recv(1 << 16))) <= set(PING)


@kinds
@pytest.mark.asyncio
async def test_places_are_held_until_the_end_and_not_longer(kind: str) -> None:
    class Memory(bytearray):
        pass

    with site(kind) as at:
        peer = at.peer()
        place = Memory(100)
        kept = weakref.ref(place)
        future = get(at, place)
        await peer.hears(len(GET))
        del place
        gc.collect()
        memory = kept()
        assert memory is not None
        with pytest.raises(BufferError):
            memory.extend(b"moved")
        del memory
        peer.says(bulk(record(1, 100)))
        await future
        del future
        await until(lambda: gc.collect() >= 0 and kept() is None, "the place to be let go")


@pytest.mark.asyncio
async def test_urgent_requests_go_first_but_nobody_waits_for_ever() -> None:
    gets, asks, sets = 40, 10, 3
    with site("native") as at:
        futures: list[asyncio.Future[Any]] = [
            at.path.set(at.shard, b"k", header(), b"x" * 10, ttl_s=5, deadline_ns=within())
            for _ in range(sets)
        ]
        futures += [ping(at) for _ in range(asks)]
        futures += [get(at, bytearray(100)) for _ in range(gets)]
        peer = at.peer()
        set_bytes = len(
            b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n" + bulk(header() + b"x" * 10) + b"$2\r\nEX\r\n$1\r\n5\r\n"
        )
        order = ""
        for _ in futures:
            start = await peer.hears(14)
            order += {b"GE": "g", b"PI": "p", b"SE": "s"}.get(start[8:10], "p")
            await peer.hears({"g": len(GET), "p": 14, "s": set_bytes}[order[-1]] - 14)
            peer.says({"g": b"$-1\r\n", "p": b"+PONG\r\n", "s": b"+OK\r\n"}[order[-1]])
        await asyncio.gather(*futures)
    assert order.startswith("g" * L3_PASSED_OVER_MAX)
    assert sorted(order) == sorted("g" * gets + "p" * asks + "s" * sets)
    assert order.index("s") <= 2 * L3_PASSED_OVER_MAX + 2
    assert max(len(run) for run in order[: order.rindex("p")].split("p")) <= L3_PASSED_OVER_MAX + 1


@kinds
@pytest.mark.asyncio
async def test_stores_leave_one_of_several_connections_to_loads(kind: str) -> None:
    with site(kind) as at:
        peers = [at.peer() for _ in range(3)]
        for _ in range(10):
            at.path.set(
                at.shard, b"k", header(), bytes(1 << 20), ttl_s=5, deadline_ns=within()
            ).add_done_callback(lambda ended: ended.exception())
        loads = [get(at, bytearray(100)) for _ in range(2)]
        starts = sorted([await peer.hears(14) for peer in (await _spoken_to(peers, 3))])
        assert [start[8:11] for start in starts] == [b"GET", b"SET", b"SET"]
        assert not any(load.done() for load in loads)


async def _spoken_to(peers: list[data_paths.Peer], count: int) -> list[data_paths.Peer]:
    def found() -> list[data_paths.Peer]:
        return [peer for peer in peers if select.select([peer.socket], [], [], 0)[0]]

    await until(lambda: len(found()) == count, f"requests on {count} connections")
    return found()


@kinds
@pytest.mark.asyncio
async def test_requests_go_where_least_is_under_way(kind: str) -> None:
    with site(kind) as at:
        peers = [at.peer() for _ in range(3)]
        futures = [get(at, bytearray(100)) for _ in range(3)]
        for peer in peers:
            await peer.hears(len(GET))
            peer.says(b"$-1\r\n")
        assert await asyncio.gather(*futures) == [ABSENT] * 3


@kinds
@pytest.mark.asyncio
async def test_c17_late_replies_never_reach_another_request(kind: str, shared_redis: RedisServer) -> None:
    """1,000 requests with deadlines of 1 ms through a relay that delays by 100 ms; and some that can be in time."""
    size, keys = 2000, 20
    for number in range(keys):
        shared_redis.client.set(f"k{number}", record(number, size))
    random_source = random.Random(17)
    in_time = connected = 0
    with contextlib.ExitStack() as relayed, site(kind) as at:
        relay = relayed.enter_context(FaultRelay(shared_redis.socket_path))
        relay.set(TO_CLIENT, delay_s=0.1)

        def connect(why: str = "") -> None:
            nonlocal connected
            del why
            connected += 1
            at.path.add_connection(at.shard, data_paths.tcp(relay.port), on_lost=connect)

        for _ in range(4):
            connect()
        for _ in range(100):
            numbers = [random_source.randrange(keys) for _ in range(10)]
            places = [bytearray(size) for _ in numbers]
            patience = (
                [0.001] * 10
                if random_source.random() < 0.9
                else [random_source.choice([0.09, 0.11, 5.0]) for _ in numbers]
            )
            futures = [
                at.path.get(at.shard, b"k%d" % number, memoryview(place), deadline_ns=within(seconds))
                for number, place, seconds in zip(numbers, places, patience, strict=True)
            ]
            for number, place, future in zip(numbers, places, futures, strict=True):
                ended = await outcome(future)
                if isinstance(ended, Got):
                    in_time += 1
                    assert ended.header == sealed(header(), payload_of(number, size))
                    assert place == payload_of(number, size)
                else:
                    assert isinstance(ended, Late | Lost)
        counts = at.path.statistics()
        at.path.close()
        await until(lambda: relay.accepted == connected and not relay.connections, "the relay to be through")
    assert counts["gets"] == 1000
    assert counts["late"] + counts["lost"] > 800
    assert counts["late"] > 200, "a late request takes no more than its window with it"
    assert in_time == 1000 - counts["late"] - counts["lost"]


@kinds
@pytest.mark.asyncio
async def test_c34_a_stopped_server_keeps_nobody_waiting_beyond_its_deadline(
    kind: str, shared_redis: RedisServer
) -> None:
    with site(kind) as at:
        for _ in range(2):
            at.add(data_paths.unix(shared_redis.socket_path))
        shared_redis.freeze()
        try:
            futures = [get(at, bytearray(100), seconds=0.2) for _ in range(30)]
            began = time.monotonic()
            ended = [await outcome(future) for future in futures]
            assert time.monotonic() - began < at_most(0.2) + 1.0
        finally:
            shared_redis.thaw()
        assert {type(each) for each in ended} <= {Late, Lost}
        assert isinstance(ended[-1], Late)


@kinds
@pytest.mark.asyncio
async def test_a_forked_child_touches_nothing(kind: str) -> None:
    with site(kind) as at:
        peer = at.peer()
        future = ping(at)
        await peer.hears(len(PING))
        child = os.fork()
        if child == 0:
            _in_the_child(at)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        peer.says(b"+PONG\r\n")
        assert await future == [b"PONG"]


def _in_the_child(at: Site) -> None:
    """Ends the process: 0 when the path refuses to work, and is let go without harm."""
    signal.alarm(20)
    code = 1
    try:
        with contextlib.suppress(ClosedError):
            ping(at)
            code = 2
        at.path.close()
        del at.path
        gc.collect()
        code = 0 if code == 1 else code
    finally:
        os._exit(code)


@pytest.mark.asyncio
async def test_a_request_ends_whatever_goes_wrong_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of this code")

    monkeypatch.setattr(tls_path, "read_record", broken)
    with site("blocking") as at:
        peer = at.peer()
        place = bytearray(64)
        wanted = get(at, place)
        await peer.hears(len(GET))
        assert isinstance(await asyncio.wait_for(outcome(wanted), PATIENCE_S), Lost)
        await at.until_lost()
        assert at.path.statistics()["in_flight"] == 0


@pytest.mark.asyncio
async def test_a_path_that_nobody_closed_ends_with_its_last_reference() -> None:
    made = MAKERS["native"]()
    shard = made.open_shard()
    ours, theirs = socket.socketpair()
    made.add_connection(shard, ours, on_lost=lambda _: None)
    place = bytearray(100)
    future = made.get(shard, b"k", memoryview(place), deadline_ns=within())
    loop = asyncio.get_running_loop()
    engine = made._engine  # type: ignore[attr-defined]
    loop.remove_reader(engine.fileno())
    del made, future, engine
    theirs.setblocking(False)
    heard = b""
    while piece := await asyncio.wait_for(loop.sock_recv(theirs, 100), PATIENCE_S / 4):
        heard += piece
        gc.collect()
    assert heard in {b"", GET}
    theirs.close()
