"""Loads on the attach socket: answered when they are over, bounded, and ended with whoever asked."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import (
    CancelLoad,
    ChainToLoad,
    ClientMessage,
    Detach,
    Done,
    Failed,
    Load,
    LoadedPages,
    LoadedRow,
    Ping,
    Pong,
    Register,
    Registered,
    SidecarMessage,
    Welcome,
)
from cache_l2.attach_socket import DatagramReceiver, send_datagram
from kv_types.clock import BoottimeClock
from kv_types.errors import OverloadedError
from kv_types.ids import PageKey
from kv_types.limits import (
    ATTACH_QUEUE_MESSAGES_MAX,
    CALL_S_MAX,
    LOAD_KEYS_MAX,
    LOAD_PAGES_IN_FLIGHT_PER_CLIENT_MAX,
    LOADS_IN_FLIGHT_PER_CLIENT_MAX,
)
from kv_types.outcomes import MissReason
from sidecar.l3.loads import RowLoaded
from tests.support.attach_raw import attach_raw, dial, greet, hear, hello, rows_in_use, still_serves
from tests.support.attach_site import AttachSite
from tests.support.attach_worker import Worker
from tests.support.pages import chain, namespace_of, packed, page_bytes_of
from tests.support.polling import wait_until
from tests.support.scripted_loads import ScriptedLoad, ScriptedLoads

SPACE = namespace_of()
KEYS = packed(chain(4))
STAGED = RowLoaded(3, 1, MissReason.ABSENT)


@pytest.fixture
def loads() -> ScriptedLoads:
    return ScriptedLoads()


@pytest.fixture
def site(tmp_path: Path, loads: ScriptedLoads) -> Iterator[AttachSite]:
    with AttachSite(tmp_path, loads=lambda _: loads) as started:
        yield started


def say(connection: socket.socket, message: ClientMessage, request: int) -> None:
    send_datagram(connection, wire.encode_message(message, request))


def hear_of(connection: socket.socket) -> tuple[int, SidecarMessage]:
    datagram = DatagramReceiver().receive(connection)
    assert datagram is not None, "the server closed the connection"
    return wire.decode_sidecar_message(datagram.data)


def registered(site: AttachSite) -> tuple[socket.socket, int]:
    """A client with a namespace, and its number."""
    connection = attach_raw(site)
    say(connection, Register(SPACE.canonical, page_bytes_of(SPACE)), 1)
    _, answer = hear_of(connection)
    assert isinstance(answer, Registered)
    return connection, answer.number


def load_of(number: int, *, rows: int = 1, keys: bytes = KEYS, deadline_ms: int = 10_000) -> Load:
    return Load(
        tuple(ChainToLoad(namespace_number=number, parent=None, keys=keys) for _ in range(rows)), deadline_ms
    )


def begun(site: AttachSite, loads: ScriptedLoads, count: int = 1) -> list[ScriptedLoad]:
    wait_until(lambda: len(loads.begun) == count, what=f"{count} loads to have begun")
    return loads.begun


def test_a_load_is_answered_when_it_is_over_and_holds_back_nobody(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    connection, number = registered(site)
    before_ns = BoottimeClock().now_ns()
    parent = PageKey(bytes(range(32)))
    row = ChainToLoad(namespace_number=number, parent=parent, keys=KEYS)
    say(connection, Load((row, row), 250, True), 5)
    say(connection, Ping(), 6)
    assert isinstance(hear_of(connection)[1], Pong)
    still_serves(site)
    (load,) = begun(site, loads)
    assert [(one.namespace, one.parent, one.keys) for one in load.rows] == [(SPACE.id, parent, KEYS)] * 2
    assert load.group
    assert 0 < load.deadline_ns - before_ns - 250_000_000 < 10_000_000_000
    site.call(lambda _: load.finish(STAGED, RowLoaded(0, 0, MissReason.NO_ROOM)))
    told = LoadedPages((LoadedRow(3, 1, MissReason.ABSENT), LoadedRow(0, 0, MissReason.NO_ROOM)))
    assert hear_of(connection) == (5, told)
    assert not load.is_cancelled
    connection.close()


def test_the_welcome_says_whether_there_is_an_l3(site: AttachSite, loads: ScriptedLoads) -> None:
    for has_l3 in (True, False):
        loads.is_available = has_l3
        connection = dial(site)
        greet(connection, hello())
        welcome = hear(connection, descriptors=3)
        assert isinstance(welcome, Welcome)
        assert welcome.has_l3 is has_l3
        connection.close()


def test_a_cancelled_load_is_answered_with_what_there_is(site: AttachSite, loads: ScriptedLoads) -> None:
    connection, number = registered(site)
    say(connection, load_of(number), 5)
    say(connection, load_of(number), 6)
    first, second = begun(site, loads, 2)
    first.staged = 2
    say(connection, CancelLoad(5), 7)
    assert hear_of(connection) == (5, LoadedPages((LoadedRow(2, 0, MissReason.ABORTED),)))
    assert hear_of(connection) == (7, Done())
    assert first.is_cancelled
    assert not second.is_cancelled
    for unknown in (5, 7, 99):
        say(connection, CancelLoad(unknown), 8)
        assert hear_of(connection) == (8, Done())
    site.call(lambda _: second.finish(STAGED))
    assert hear_of(connection)[0] == 6
    connection.close()


@pytest.mark.parametrize("how", ["closes", "detaches"])
def test_loads_end_with_their_connection(site: AttachSite, loads: ScriptedLoads, how: str) -> None:
    connection, number = registered(site)
    for request in range(3):
        say(connection, load_of(number), request)
    asked = begun(site, loads, 3)
    if how == "detaches":
        say(connection, Detach(), 9)
    connection.close()
    wait_until(lambda: all(load.is_cancelled for load in asked), what="the loads to be cancelled")
    still_serves(site)
    assert site.statistic("server.handler_errors") == 0


def test_loads_end_with_their_process_though_a_child_holds_the_socket(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    with Worker("loads", site.path, "00" * 32) as worker:
        heard = worker.hear()
        try:
            asked = begun(site, loads, heard["asked"])
            worker.kill()
            wait_until(lambda: all(load.is_cancelled for load in asked), what="the loads to be cancelled")
        finally:
            os.kill(heard["child"], signal.SIGKILL)
    wait_until(lambda: rows_in_use(site) == 1, what="the row to be freed")


def test_more_loads_than_a_client_may_have_are_answered_at_once(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    connection, number = registered(site)
    most = LOADS_IN_FLIGHT_PER_CLIENT_MAX
    for request in range(most + 1):
        say(connection, load_of(number, rows=2), 100 + request)
    refused = LoadedPages((LoadedRow(0, 0, MissReason.OVERLOADED),) * 2)
    assert hear_of(connection) == (100 + most, refused)
    site.call(lambda _: loads.begun[3].finish(STAGED, STAGED))
    assert hear_of(connection)[0] == 103
    say(connection, load_of(number), 900)
    assert len(begun(site, loads, most + 1)) == most + 1
    other, its_number = registered(site)
    say(other, load_of(its_number), 1)
    begun(site, loads, most + 2)
    for one in (connection, other):
        one.close()


def test_loads_of_one_client_leave_room_for_those_of_others(site: AttachSite, loads: ScriptedLoads) -> None:
    connection, number = registered(site)
    row = ChainToLoad(namespace_number=number, parent=None, keys=bytes(32 * LOAD_KEYS_MAX))
    most = LOAD_PAGES_IN_FLIGHT_PER_CLIENT_MAX // LOAD_KEYS_MAX
    for request in range(most + 1):
        say(connection, Load((row,), 1000), 100 + request)
    assert hear_of(connection) == (100 + most, LoadedPages((LoadedRow(0, 0, MissReason.OVERLOADED),)))
    begun(site, loads, most)
    say(connection, load_of(number), 900)
    begun(site, loads, most + 1)
    site.call(lambda _: loads.begun[0].finish(STAGED))
    assert hear_of(connection)[0] == 100
    say(connection, Load((row,), 1000), 901)
    begun(site, loads, most + 2)
    connection.close()


def test_nothing_is_loaded_for_a_namespace_that_the_client_has_not_registered(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    connection, number = registered(site)
    known = ChainToLoad(namespace_number=number, parent=None, keys=KEYS)
    other = ChainToLoad(namespace_number=number + 7, parent=None, keys=KEYS)
    say(connection, Load((known, other), 1000), 5)
    assert hear_of(connection)[1] == LoadedPages((LoadedRow(0, 0, MissReason.UNKNOWN_NAMESPACE),) * 2)
    assert not loads.begun
    connection.close()


@pytest.mark.parametrize(
    "message",
    [Load((), 10), load_of(0, keys=b""), load_of(0, deadline_ms=int(CALL_S_MAX * 1000) + 1)],
    ids=["no row", "no key", "too long"],
)
def test_a_load_that_makes_no_sense_fails(site: AttachSite, loads: ScriptedLoads, message: Load) -> None:
    connection, number = registered(site)
    assert number == 0
    say(connection, message, 5)
    answer = hear_of(connection)[1]
    assert isinstance(answer, Failed)
    assert answer.code == "invalid_argument"
    assert not loads.begun
    connection.close()


def test_a_request_that_is_a_load_under_way_is_not_taken_for_another(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    connection, number = registered(site)
    say(connection, load_of(number), 5)
    say(connection, load_of(number), 5)
    assert isinstance(hear_of(connection)[1], Failed)
    site.call(lambda _: begun(site, loads)[0].finish(STAGED))
    assert hear_of(connection)[0] == 5
    say(connection, load_of(number), 5)
    begun(site, loads, 2)
    connection.close()


def test_what_a_load_raises_is_told_and_what_it_must_not_ends_that_client_alone(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    connection, number = registered(site)
    say(connection, load_of(number), 5)
    say(connection, load_of(number), 6)
    first, second = begun(site, loads, 2)
    site.call(lambda _: first.fail(OverloadedError("too much")))
    answer = hear_of(connection)[1]
    assert isinstance(answer, Failed)
    assert answer.code == "overloaded"
    site.call(lambda _: second.fail(RuntimeError("a bug")))
    assert hear(connection) is None
    assert site.statistic("server.handler_errors") == 1
    still_serves(site)
    connection.close()


def test_a_sidecar_that_drains_answers_all_loads(tmp_path: Path, loads: ScriptedLoads) -> None:
    with AttachSite(tmp_path, loads=lambda _: loads) as site:
        connection, number = registered(site)
        say(connection, load_of(number), 5)
        (load,) = begun(site, loads)
        load.staged = 1
        site.call(lambda store: store.drain())
        say(connection, load_of(number), 6)
        assert hear_of(connection) == (6, LoadedPages((LoadedRow(0, 0, MissReason.CLOSED),)))
        stopping = asyncio.run_coroutine_threadsafe(site.server.stop(10.0), site.loop)
        assert hear_of(connection) == (5, LoadedPages((LoadedRow(1, 0, MissReason.CLOSED),)))
        assert load.is_cancelled
        connection.close()
        stopping.result(10)


def test_a_client_that_does_not_read_is_dropped_by_the_answer_to_a_load(
    site: AttachSite, loads: ScriptedLoads
) -> None:
    connection, number = registered(site)
    say(connection, load_of(number), 5)
    (load,) = begun(site, loads)

    def leave_replies_waiting(_: object) -> None:
        (process,) = site.server.processes()
        assert process.connection is not None
        process.connection._waiting.extend([b"a reply"] * ATTACH_QUEUE_MESSAGES_MAX)
        load.finish(STAGED)

    site.call(leave_replies_waiting)
    wait_until(lambda: site.statistic("server.dropped_slow") == 1, what="the client to be dropped")
    assert hear(connection) is None
    still_serves(site)
    connection.close()
