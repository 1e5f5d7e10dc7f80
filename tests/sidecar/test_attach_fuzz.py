"""Whatever comes over the attach socket, in whatever order: nothing raises in the server, nothing leaks, a neighbour is served.

Hypothesis prints how to take a failing run up again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import (
    Abort,
    CancelLoad,
    ChainToLoad,
    ClientMessage,
    Commit,
    Detach,
    Hello,
    Load,
    Ping,
    Register,
    Reserve,
    ReservedPages,
    Role,
    Unregister,
    Welcome,
)
from cache_l2.attach_registrations import Registration
from cache_l2.attach_socket import DatagramReceiver, send_datagram
from cache_l2.reader import AttachedArena
from kv_types.limits import ATTACH_MESSAGE_BYTES_MAX, ATTACHMENTS_GONE_MAX, BATCH_PAGES_MAX
from kv_types.validity import EngineMode
from tests.support.attach_raw import descriptors_of, dial, expect_closed, greet, hear, hello, rows_in_use
from tests.support.attach_site import AttachSite, register
from tests.support.attach_strategies import CLIENT_MESSAGES, U64
from tests.support.attach_worker import check, put
from tests.support.descriptors import Descriptors
from tests.support.pages import chain, namespace_of, packed
from tests.support.polling import wait_until

EXAMPLES = 250
CONNECTIONS = 2
KEYS = chain(8, root=bytes(32))
OWN, NEIGHBOUR = 1, 1
DESCRIPTORS_MAX = 253
"""The kernel takes no more in one datagram."""


@dataclass(slots=True)
class Fuzzer:
    """What a hostile process has: a few connections, and what it has heard on them."""

    site: AttachSite
    ended: int
    """A pidfd of a process that has ended."""
    connections: list[socket.socket | None] = field(default_factory=lambda: [None] * CONNECTIONS)
    attachments: list[int] = field(default_factory=list)
    reservations: list[int] = field(default_factory=list)

    def connection(self, number: int) -> socket.socket:
        found = self.connections[number]
        if found is None:
            found = self.connections[number] = dial(self.site)
            found.setblocking(False)
        return found

    def send(self, number: int, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        try:
            send_datagram(self.connection(number), data, descriptors)
        except BrokenPipeError:
            self.close(number)
        except OSError:
            pass  # there is no room, or the message is too long

    def hear(self, number: int) -> None:
        """Take what has been answered, without waiting for anything."""
        connection, receiver = self.connection(number), DatagramReceiver()
        with contextlib.suppress(OSError):
            while (
                datagram := receiver.receive(connection, descriptors=wire.WELCOME_DESCRIPTORS)
            ) is not None:
                for descriptor in datagram.descriptors:
                    os.close(descriptor)
                match wire.decode_sidecar_message(datagram.data)[1]:
                    case Welcome(attachment=attachment):
                        self.attachments.append(attachment)
                    case ReservedPages(reservations=reservations):
                        self.reservations += reservations

    def close(self, number: int) -> None:
        """After everything was heard: a row that nobody knows of can't be given back while this process lives."""
        connection = self.connections[number]
        if connection is not None:
            self._hear_to_the_end(connection, number)
            connection.close()
            self.connections[number] = None

    def end(self) -> None:
        """Close all, and give back what this process had."""
        for number in range(CONNECTIONS):
            self.close(number)
        while self.attachments:
            gone, self.attachments = (
                tuple(self.attachments[:ATTACHMENTS_GONE_MAX]), self.attachments[ATTACHMENTS_GONE_MAX:],
            )  # fmt: skip
            with dial(self.site) as connection:
                greet(connection, hello(gone=gone))
                assert isinstance(hear(connection, descriptors=wire.WELCOME_DESCRIPTORS), Welcome)
                send_datagram(connection, wire.encode_message(Detach(), 1))
                while hear(connection) is not None:
                    pass

    def _hear_to_the_end(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: self._is_over(connection, number), what="the server to close what was closed here")

    def _is_over(self, connection: socket.socket, number: int) -> bool:
        self.hear(number)
        try:
            return not connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True


Step: TypeAlias = Callable[[Fuzzer], object]

numbers = st.integers(0, CONNECTIONS - 1)
requests = st.integers(0, 5)


def _message(number: int, message: ClientMessage, request: int) -> Step:
    return lambda fuzzer: fuzzer.send(number, wire.encode_message(message, request))


def _hello(number: int, message: Hello, kind: str, count: int) -> Step:
    """A handshake with descriptors that belong there, or don't."""

    def send(fuzzer: Fuzzer) -> None:
        owned = [_descriptor(kind, fuzzer) for _ in range(count)]
        fuzzer.send(number, wire.encode_message(message, 0), tuple(owned))
        for one in owned:
            os.close(one)

    return send


def _descriptor(kind: str, fuzzer: Fuzzer) -> int:
    if kind == "own":
        return os.pidfd_open(os.getpid())
    if kind == "parent":
        return os.pidfd_open(os.getppid())
    if kind == "ended":
        return os.dup(fuzzer.ended)
    return os.open("/dev/null", os.O_RDONLY) if kind == "file" else fuzzer.connection(0).dup().detach()


def _damaged(number: int, message: ClientMessage, changes: list[tuple[int, int]], cut: int) -> Step:
    data = bytearray(wire.encode_message(message, 1))
    for at, value in changes:
        data[at % len(data)] = value
    return lambda fuzzer: fuzzer.send(number, bytes(data[:cut] if cut else data) or b"x")


def _with_control(number: int, level: int, kind: int, data: bytes) -> Step:
    """Control data that no client sends, whole or cut off."""

    def send(fuzzer: Fuzzer) -> None:
        with contextlib.suppress(OSError):
            fuzzer.connection(number).sendmsg([wire.encode_message(Ping(), 1)], [(level, kind, data)])

    return send


def _about_reservations(
    number: int, reserve: Reserve | None, kind: str, picks: list[int], others: list[int]
) -> Step:
    """Commit or give back what was reserved, by whomever, once or several times, and what never was."""

    def send(fuzzer: Fuzzer) -> None:
        if fuzzer.connections[number] is None:
            _introduced(number)(fuzzer)
        if reserve is not None:
            fuzzer.send(number, wire.encode_message(reserve, 2))
        for _ in range(2):  # turns of the server's, in which it sees and answers what came before
            fuzzer.site.statistic("view")
        fuzzer.hear(number)
        known = fuzzer.reservations
        ids = [known[pick % len(known)] for pick in picks if known] + others + (known if not picks else [])
        ids = ids[:BATCH_PAGES_MAX]
        message: ClientMessage = Abort(tuple(ids))
        if kind == "commit":
            message = Commit(
                reservations=tuple(ids), stamp=fuzzer.site.call(lambda store: store.stamp()), producer=b"fuzz"
            )
        fuzzer.send(number, wire.encode_message(message, 3))

    return send


def _introduced(number: int) -> Step:
    """A connection as it should be: attached and with a namespace."""

    def send(fuzzer: Fuzzer) -> None:
        fuzzer.close(number)
        _hello(number, hello(), "own", 1)(fuzzer)
        fuzzer.send(number, wire.encode_message(REGISTER, 1))

    return send


def _reserve(root: int, begin: int, end: int, is_rightly_placed: bool, ttl_s: int | None) -> Reserve:
    keys = chain(8, root=bytes([root]) * 32)
    parent = keys[begin - 1] if begin and is_rightly_placed else None
    return Reserve(namespace_number=1, parent=parent, keys=packed(keys[begin:end]), ttl_s=ttl_s)


REGISTER = Register(namespace_of("fuzz").canonical, 4096)
chains = st.builds(lambda begin, end: packed(KEYS[begin:end]), st.integers(0, 7), st.integers(0, 8))
reserves = st.builds(
    _reserve, st.integers(0, 50), st.sampled_from([0, 0, 0, 1, 3]), st.integers(1, 8), st.booleans(),
    st.sampled_from([None, 0, 3600]),
)  # fmt: skip
likely: st.SearchStrategy[ClientMessage] = st.one_of(
    st.just(REGISTER),
    reserves,
    st.builds(
        Reserve, namespace_number=st.integers(0, 2), parent=st.sampled_from([None, *KEYS]), keys=chains,
        ttl_s=st.none() | st.integers(0, 2),
    ),
    st.builds(
        Load, st.lists(st.builds(ChainToLoad, namespace_number=st.integers(0, 2), parent=st.none(), keys=chains),
                       max_size=3).map(tuple), st.integers(0, 2**32 - 1), st.booleans(),
    ),
    st.builds(CancelLoad, requests), st.builds(Unregister, st.integers(0, 2)), st.just(Ping()), st.just(Detach()),
    st.just(Reserve(namespace_number=0, parent=None, keys=bytes(32 * BATCH_PAGES_MAX), ttl_s=None)),
)  # fmt: skip
hellos = st.builds(
    lambda role, engine, gone, name: hello(role=role, engine=engine, gone=gone, name=name),
    role=st.sampled_from(Role), engine=st.sampled_from(EngineMode),
    gone=st.lists(U64, max_size=3).map(tuple), name=st.text(max_size=8),
)  # fmt: skip
introduced = st.builds(_introduced, numbers)
about_reservations = st.builds(
    _about_reservations, numbers, st.none() | reserves, st.sampled_from(["commit", "abort"]),
    st.lists(st.integers(0, 99), max_size=4),
    st.lists(U64, max_size=2),
)  # fmt: skip
steps: st.SearchStrategy[Step] = st.one_of(
    introduced,
    st.builds(_message, numbers, likely, requests),
    st.builds(_message, numbers, likely, requests),
    *[about_reservations] * 4,
    st.builds(
        _hello, numbers, hellos, st.sampled_from(["own", "parent", "ended", "file", "socket"]),
        st.sampled_from([0, 1, 1, 1, 2, 3, 8, 9, 40, DESCRIPTORS_MAX]),
    ),
    st.builds(_message, numbers, CLIENT_MESSAGES, requests),
    st.builds(
        _damaged, numbers, CLIENT_MESSAGES | likely,
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 40),
    ),
    st.builds(
        lambda number, data: lambda fuzzer: fuzzer.send(number, data), numbers,
        st.binary(min_size=1, max_size=300) | st.just(bytes(ATTACH_MESSAGE_BYTES_MAX)),
    ),
    st.builds(
        _with_control, numbers, st.sampled_from([socket.SOL_SOCKET, 0, 41]), st.integers(0, 4), st.binary(max_size=20),
    ),
    st.builds(lambda number: lambda fuzzer: fuzzer.hear(number), numbers),
    st.builds(lambda number: lambda fuzzer: fuzzer.connection(number).shutdown(socket.SHUT_RD), numbers),
    st.builds(lambda number: lambda fuzzer: fuzzer.connection(number).shutdown(socket.SHUT_WR), numbers),
    st.builds(lambda number: lambda fuzzer: fuzzer.close(number), numbers),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """A site, its honest client, and what is open when nobody else is there."""

    site: AttachSite
    neighbour: AttachedArena
    registration: Registration
    ended: int
    descriptors: Descriptors


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with AttachSite(tmp_path_factory.mktemp("fuzz"), client_rows=16) as site, site.attach() as neighbour:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ended = os.pidfd_open(child.pid)
        child.communicate()
        yield World(site, neighbour, register(neighbour, namespace_of()), ended, descriptors_of(site))
        os.close(ended)


@given(greeting=st.lists(introduced, max_size=3), drawn=st.lists(steps, min_size=8, max_size=40))
@settings(
    max_examples=EXAMPLES, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink what waits in vain for 10 s would take an hour
)  # fmt: skip
def test_whatever_is_sent_in_whatever_order_a_neighbour_is_served_and_nothing_is_left(
    world: World, greeting: list[Step], drawn: list[Step]
) -> None:
    site, neighbour, fuzzer = world.site, world.neighbour, Fuzzer(world.site, world.ended)
    errors = site.statistic("server.handler_errors")
    keys = chain(3)
    try:
        for step in (*greeting, *drawn):
            with contextlib.suppress(OSError):  # shutting down what the other side has closed
                step(fuzzer)
        put(neighbour, world.registration, keys)
        assert check(neighbour, world.registration, keys) == 3
        assert neighbour.ping(deadline_s=5.0)
    finally:
        fuzzer.end()
    assert site.statistic("server.handler_errors") == errors
    site.call(lambda store: store.check_invariants())
    wait_until(lambda: rows_in_use(site) == OWN + NEIGHBOUR, what="all rows to be given back")
    assert site.statistic("reservations") == site.statistic("entries_quarantined") == 0
    expect_closed(site, world.descriptors)
