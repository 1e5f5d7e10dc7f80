"""The attach handshake: who is let in, who is refused and told why, and that nothing stays open of either."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import cache_l2.attach_handshake
import cache_l2.reader
import sidecar.attach.strangers
from cache_l2 import attach_wire as wire
from cache_l2._native import LAYOUT_VERSION
from cache_l2.attach_messages import (
    Pong,
    Refusal,
    Refused,
)
from cache_l2.attach_socket import time_namespace
from kv_types.clock import BoottimeClock
from kv_types.errors import (
    HandshakeError,
    InvalidArgumentError,
    LimitExceededError,
    SidecarUnreachableError,
)
from tests.support.attach_raw import (
    descriptors_of,
    dial,
    expect_closed,
    greet,
    hear,
    hello,
    rows_in_use,
    still_serves,
)
from tests.support.attach_site import AttachSite
from tests.support.descriptors import descriptors_since, open_descriptors
from tests.support.polling import wait_until


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version_min": 7, "version_max": 9}, Refusal.VERSION),
        ({"version_min": 0, "version_max": 0}, Refusal.VERSION),
        ({"layout_version": LAYOUT_VERSION + 1}, Refusal.LAYOUT),
        ({"time_namespace": time_namespace() + 1}, Refusal.FOREIGN_CLOCK),
        ({"boot_now_ns": 2**63}, Refusal.FOREIGN_CLOCK),
    ],
)
def test_who_does_not_match_is_refused_with_the_reason(
    site: AttachSite, changes: dict[str, int], code: Refusal
) -> None:
    with dial(site) as connection:
        greet(connection, hello(**changes))
        reply = hear(connection)
        assert isinstance(reply, Refused)
        assert reply.code == code
        assert hear(connection) is None, "the connection is closed"
    assert site.statistic("server.refused") == 1
    still_serves(site)


def test_a_handshake_needs_the_pidfd_of_the_process_that_connected(site: AttachSite) -> None:
    other = os.pidfd_open(os.getppid())
    no_pidfd = os.open("/dev/null", os.O_RDONLY)
    cases: list[tuple[tuple[int, ...], Refusal]] = [
        ((), Refusal.MALFORMED), ((no_pidfd,), Refusal.MALFORMED), ((other,), Refusal.FOREIGN_PROCESS),
    ]  # fmt: skip
    for descriptors, code in cases:
        with dial(site) as connection:
            greet(connection, hello(), descriptors)
            reply = hear(connection)
            assert isinstance(reply, Refused)
            assert reply.code == code
    os.close(other)
    os.close(no_pidfd)
    assert site.statistic("clients_attached") == 1, "only the sidecar's own row"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("PROTOCOL_VERSION", 0, "upgrade"), ("LAYOUT_VERSION", LAYOUT_VERSION + 1, "one memory layout")],
)
def test_the_worker_says_what_to_upgrade(
    site: AttachSite, monkeypatch: pytest.MonkeyPatch, name: str, value: int, expected: str
) -> None:
    monkeypatch.setattr(cache_l2.attach_handshake, name, value)
    if name == "PROTOCOL_VERSION":
        monkeypatch.setattr(cache_l2.attach_handshake, "PROTOCOL_VERSION_MIN", value)
    before = descriptors_of(site)
    with pytest.raises(HandshakeError, match=expected):
        site.attach()
    expect_closed(site, before)


def test_a_worker_in_another_time_namespace_refuses_by_itself(
    site: AttachSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_l2.attach_handshake, "_boot_now_ns", lambda: BoottimeClock().now_ns() - 10**12)
    before = descriptors_of(site)
    for _ in range(20):  # more often than there are rows: each is given back at once
        with pytest.raises(HandshakeError, match="boot clock"):
            site.attach()
        wait_until(lambda: rows_in_use(site) == 1, what="the row to be free again")
    expect_closed(site, before)
    monkeypatch.undo()
    still_serves(site)


def test_an_arena_that_cannot_be_mapped_gives_its_row_back(
    site: AttachSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: int) -> None:
        for name in ("control_fd", "clients_fd", "data_fd", "doorbell_fd"):
            os.close(options[name])
        raise MemoryError("no address space left")

    before = descriptors_of(site)
    monkeypatch.setattr(cache_l2.reader, "Reader", refuse)
    with pytest.raises(HandshakeError, match="can't be mapped here: no address space"):
        site.attach()
    wait_until(lambda: rows_in_use(site) == 1, what="the row to be free again")
    expect_closed(site, before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused_even_where_the_path_lets_him_in(site: AttachSite) -> None:
    connection = dial(site)  # the path is for its owner alone: give the stranger a connection to inherit
    connection.close()
    site.path.chmod(0o666)
    for folder in site.path.parents:
        if folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    child = os.fork()
    if child == 0:
        os._exit(_connect_as_nobody(site))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert site.statistic("server.refused") == 1
    still_serves(site)


def _connect_as_nobody(site: AttachSite) -> int:
    os.setgroups([])
    os.setuid(65_534)
    try:
        with dial(site) as connection:
            greet(connection, hello())
            reply = hear(connection)
    except OSError:
        return 2
    return 0 if isinstance(reply, Refused) and reply.code == Refusal.FOREIGN_USER else 3


def test_full_rows_refuse_the_next_and_come_back(tmp_path: Path) -> None:
    with AttachSite(tmp_path, client_rows=3) as site:
        first, second = site.attach(), site.attach()
        before = descriptors_of(site)
        with pytest.raises(HandshakeError, match="client_rows"):
            site.attach()
        expect_closed(site, before)
        first.close()
        wait_until(lambda: site.statistic("clients_attached") == 2, what="the row to come back")
        site.attach().close()
        second.close()


def test_a_draining_sidecar_takes_nobody_in(site: AttachSite) -> None:
    arena = site.attach()
    site.call(lambda store: store.drain())
    assert not arena.alive
    with pytest.raises(SidecarUnreachableError, match="ending"):
        site.attach()
    arena.close()


def test_nobody_there_is_unreachable_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = open_descriptors()
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.bind(str(tmp_path / "silent"))
    from cache_l2.reader import AttachedArena

    with pytest.raises(SidecarUnreachableError, match="no sidecar"):
        AttachedArena.connect(str(tmp_path / "missing"), deadline_s=0.2)
    with pytest.raises(SidecarUnreachableError, match="refused"):
        AttachedArena.connect(str(tmp_path / "silent"), deadline_s=0.2)
    silent.listen(1)
    for _ in range(4):  # the first ones wait for a handshake, then the backlog is full
        with pytest.raises(SidecarUnreachableError):
            AttachedArena.connect(str(tmp_path / "silent"), deadline_s=0.05)
    with pytest.raises(InvalidArgumentError, match="socket path"):
        AttachedArena.connect(str(tmp_path / ("x" * 200)), deadline_s=0.2)
    with pytest.raises(LimitExceededError, match="name"):
        AttachedArena.connect(str(tmp_path / "silent"), name="n" * 65, deadline_s=0.2)
    silent.close()
    assert not descriptors_since(before)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request",
        wire.encode_message(Pong(1), 0),
        wire.encode_message(Refused(99, "new"), 0),
    ],
)
def test_a_stranger_at_the_path_is_a_clear_error(tmp_path: Path, answer: bytes) -> None:
    from threading import Thread

    from cache_l2.reader import AttachedArena

    before = open_descriptors()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "stranger"))
    listener.listen(1)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            if answer:
                connection.send(answer)

    thread = Thread(target=serve)
    thread.start()
    with pytest.raises((HandshakeError, SidecarUnreachableError)):
        AttachedArena.connect(str(tmp_path / "stranger"), deadline_s=5.0)
    thread.join()
    listener.close()
    assert not descriptors_since(before)


def test_strangers_who_say_nothing_are_closed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar.attach.strangers, "ATTACH_DEADLINE_S_DEFAULT", 0.05)
    with AttachSite(tmp_path) as site, dial(site) as connection:
        assert hear(connection) is None
        assert site.statistic("server.handshakes_timed_out") == 1


def test_too_many_strangers_are_shed_and_clients_still_get_in(site: AttachSite) -> None:
    strangers = [dial(site) for _ in range(70)]
    wait_until(lambda: site.statistic("server.shed") > 0, what="strangers to be shed")
    for stranger in strangers:
        stranger.close()
    wait_until(lambda: site.statistic("server.connections") == 0, what="strangers to be gone")
    still_serves(site)
