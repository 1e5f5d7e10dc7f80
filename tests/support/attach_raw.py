"""A raw client of the attach socket, for tests that say what no worker would."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from cache_l2 import attach_wire as wire
from cache_l2._native import LAYOUT_VERSION
from cache_l2.attach_messages import (
    Hello,
    Role,
    SidecarMessage,
    Welcome,
)
from cache_l2.attach_socket import DatagramReceiver, send_datagram, time_namespace
from kv_types.clock import BoottimeClock
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import check, put
from tests.support.descriptors import Descriptors, open_descriptors, wait_until_closed
from tests.support.pages import chain, namespace_of


def dial(at: AttachSite | Path) -> socket.socket:
    """Connect to a site, or to the socket at a path."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    connection.connect(str(at if isinstance(at, Path) else at.path))
    return connection


def hello(**changes: object) -> Hello:
    fields: dict[str, object] = {
        "version_min": wire.PROTOCOL_VERSION_MIN, "version_max": wire.PROTOCOL_VERSION,
        "layout_version": LAYOUT_VERSION, "role": Role.WRITER,
        "time_namespace": time_namespace(), "boot_now_ns": BoottimeClock().now_ns(), "name": "raw",
    }  # fmt: skip
    return Hello(**{**fields, **changes})  # type: ignore[arg-type]


def greet(connection: socket.socket, message: Hello, descriptors: tuple[int, ...] | None = None) -> None:
    pidfd = os.pidfd_open(os.getpid())
    send_datagram(
        connection, wire.encode_message(message, 0), (pidfd,) if descriptors is None else descriptors
    )
    os.close(pidfd)


def hear(connection: socket.socket, descriptors: int = 0) -> SidecarMessage | None:
    try:
        datagram = DatagramReceiver().receive(connection, descriptors=descriptors)
    except ConnectionResetError:
        return None
    if datagram is None:
        return None
    for descriptor in datagram.descriptors:
        os.close(descriptor)
    return wire.decode_sidecar_message(datagram.data)[1]


def attach_raw(site: AttachSite) -> socket.socket:
    connection = dial(site)
    greet(connection, hello())
    assert isinstance(hear(connection, descriptors=3), Welcome)
    return connection


def descriptors_of(site: AttachSite) -> Descriptors:
    """What is open in the process of a site, once its loop has done what it was doing."""
    site.statistic("view")
    return open_descriptors()


def expect_closed(site: AttachSite, before: Descriptors, *, kept: int = 0) -> None:
    """Wait until all but `kept` are closed that were not open `before`, in the process of a site."""
    wait_until_closed(before, kept=kept, settle=lambda: site.statistic("view"))


def rows_in_use(site: AttachSite) -> int:
    return site.statistic("clients_attached") + site.statistic("clients_orphaned")


def still_serves(site: AttachSite) -> None:
    with site.attach() as arena:
        registration = register(arena, namespace_of())
        keys = chain(2)
        put(arena, registration, keys)
        assert check(arena, registration, keys) == 2
