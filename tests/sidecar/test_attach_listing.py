"""Registrations on the attach socket that wait for the fleet's directory: they keep nobody else, and end with the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import Failed, Ping, Pong, Register, Registered
from cache_l2.attach_socket import send_datagram
from inference_worker.client import Client
from inference_worker.settings import ClientSettings
from kv_types.limits import LISTINGS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.outcomes import STORED, Miss, MissReason, Refused, RefuseReason
from tests.support.attach_raw import attach_raw, hear
from tests.support.attach_site import AttachSite
from tests.support.directory import SlowDirectory
from tests.support.pages import chain, namespace_of, page_bytes_of, page_of
from tests.support.polling import wait_until


@pytest.fixture
def directory() -> SlowDirectory:
    return SlowDirectory()


@pytest.fixture
def slow(tmp_path: Path, directory: SlowDirectory) -> Iterator[AttachSite]:
    with AttachSite(tmp_path, directory=directory) as site:
        yield site


def answer(site: AttachSite, directory: SlowDirectory) -> None:
    site.call(lambda _: directory.answers.set())


def register_message(name: str = "m") -> Register:
    space = namespace_of(name)
    return Register(space.canonical, page_bytes_of(space))


def test_a_registration_is_answered_once_the_namespace_is_listed_and_others_meanwhile(
    slow: AttachSite, directory: SlowDirectory
) -> None:
    connection = attach_raw(slow)
    send_datagram(connection, wire.encode_message(register_message(), 1), ())
    send_datagram(connection, wire.encode_message(Ping(), 2), ())
    assert isinstance(hear(connection), Pong), "the answer of the second"
    answer(slow, directory)
    assert isinstance(hear(connection), Registered)
    send_datagram(connection, wire.encode_message(register_message(), 3), ())
    assert isinstance(hear(connection), Registered), "at once, since it is listed now"
    assert directory.asked == 1
    connection.close()


def test_a_namespace_that_can_not_be_listed_is_not_registered(
    slow: AttachSite, directory: SlowDirectory
) -> None:
    directory.fails = True
    answer(slow, directory)
    connection = attach_raw(slow)
    send_datagram(connection, wire.encode_message(register_message(), 1), ())
    reply = hear(connection)
    assert isinstance(reply, Failed)
    assert (reply.code, reply.text) == ("log_unreachable", "the log does not answer")
    assert slow.statistic("server.failed_requests") == 1
    connection.close()


def test_a_client_that_leaves_while_it_waits_leaves_nothing(
    slow: AttachSite, directory: SlowDirectory
) -> None:
    connection = attach_raw(slow)
    send_datagram(connection, wire.encode_message(register_message(), 1), ())
    wait_until(lambda: directory.asked == 1, what="the registration to wait")
    connection.close()
    wait_until(lambda: slow.statistic("server.connections") == 0, what="the connection to end")
    answer(slow, directory)
    again = attach_raw(slow)
    send_datagram(again, wire.encode_message(Ping(), 1), ())
    assert isinstance(hear(again), Pong)
    assert slow.statistic("server.handler_errors") == 0
    again.close()


def test_one_client_can_not_pile_registrations_up(slow: AttachSite, directory: SlowDirectory) -> None:
    connection = attach_raw(slow)
    for number in range(LISTINGS_IN_FLIGHT_PER_CLIENT_MAX + 1):
        send_datagram(connection, wire.encode_message(register_message(f"m{number}"), number), ())
    reply = hear(connection)
    assert isinstance(reply, Failed)
    assert reply.code == "overloaded"
    answer(slow, directory)
    replies = [hear(connection) for _ in range(LISTINGS_IN_FLIGHT_PER_CLIENT_MAX)]
    assert all(isinstance(reply, Registered) for reply in replies)
    connection.close()


def test_a_server_that_stops_waits_for_none_of_them(tmp_path: Path) -> None:
    directory = SlowDirectory()
    with AttachSite(tmp_path, directory=directory) as site:
        connection = attach_raw(site)
        send_datagram(connection, wire.encode_message(register_message(), 1), ())
        wait_until(lambda: directory.asked == 1, what="the registration to wait")
    connection.close()


def test_a_worker_misses_and_is_refused_until_its_namespace_is_listed_and_then_no_more(
    slow: AttachSite, directory: SlowDirectory
) -> None:
    directory.fails = True
    answer(slow, directory)
    space = namespace_of()
    keys = chain(2)
    page = page_bytes_of(space)
    with Client.connect(str(slow.path.parent), settings=ClientSettings(prefault=False)) as client:
        assert client.wait_ready(deadline_s=10)
        registered = client.register(space)
        assert client.match(registered, keys) == Miss(MissReason.STALE)
        with client.begin(registered) as request:
            assert request.stamp is None
            assert request.refused is RefuseReason.UNLISTED
            refused = request.put(keys, [page_of(key, page) for key in keys])
            assert refused == [Refused(RefuseReason.UNLISTED)] * 2
        directory.fails = False
        with client.begin(registered) as request:
            assert request.put(keys, [page_of(key, page) for key in keys]) == [STORED] * 2
