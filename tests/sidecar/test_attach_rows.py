"""Rows come back: from clients that never heard their welcome, that left places unfilled, or whose connection broke."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache_l2 import attach_wire as wire
from cache_l2.attach_messages import Detach, Register, Reserve, Welcome
from cache_l2.attach_socket import send_datagram
from cache_l2.reader import Reserved
from tests.support.attach_raw import (
    attach_raw,
    descriptors_of,
    dial,
    expect_closed,
    greet,
    hear,
    hello,
    rows_in_use,
)
from tests.support.attach_site import AttachSite, register
from tests.support.attach_worker import check, put
from tests.support.pages import chain, namespace_of, packed
from tests.support.polling import wait_until

OWN = 1


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@contextmanager
def held_loop(site: AttachSite) -> Iterator[None]:
    """The sidecar's loop does nothing within the block, as when its process is stopped."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        leave.wait(20)

    site.loop.call_soon_threadsafe(hold)
    assert inside.wait(20)
    try:
        yield
    finally:
        leave.set()


def test_c34_a_client_that_gave_up_before_its_welcome_leaves_no_row(site: AttachSite) -> None:
    before = descriptors_of(site)
    for _ in range(20):  # more than there are rows
        with held_loop(site):
            connection = dial(site)
            greet(connection, hello())
            send_datagram(connection, wire.encode_message(Detach(), 0))
            connection.close()
        wait_until(lambda: site.statistic("server.connections") == 0, what="the connection to be seen broken")
    assert rows_in_use(site) == OWN
    expect_closed(site, before)
    with site.attach() as arena:
        assert arena.ping(deadline_s=5.0)


def test_a_client_that_leaves_with_a_late_reservation_under_way_leaves_nothing(site: AttachSite) -> None:
    with attach_raw(site) as connection:
        send_datagram(connection, wire.encode_message(Register(namespace_of().canonical, 4096), 1))
        assert hear(connection) is not None
        message = Reserve(namespace_number=0, parent=None, keys=packed(chain(5)), ttl_s=None)
        send_datagram(connection, wire.encode_message(message, 2))
        send_datagram(connection, wire.encode_message(Detach(), 3))
    wait_until(lambda: site.statistic("server.processes") == 0, what="the row to be given back")
    assert site.statistic("reservations") == 0
    assert site.statistic("entries_quarantined") == 0
    assert rows_in_use(site) == OWN


def test_a_process_that_attaches_again_gives_back_the_rows_of_its_broken_connections(
    site: AttachSite,
) -> None:
    keys = chain(3)
    before = descriptors_of(site)
    for _ in range(20):  # more than there are rows
        arena = site.attach()
        registration = register(arena, namespace_of())
        put(arena, registration, chain(1))
        arena.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
        arena._channel.close()
        wait_until(lambda: site.statistic("server.connections") == 0, what="the connection to be seen broken")
        arena.close()
    arena = site.attach()
    put(arena, register(arena, namespace_of()), keys)
    assert check(arena, register(arena, namespace_of()), keys) == 3
    assert rows_in_use(site) == OWN + 1
    assert site.statistic("entries_quarantined") == 0
    arena.close()
    wait_until(lambda: rows_in_use(site) == OWN, what="the last row to be given back")
    expect_closed(site, before)


def test_a_row_is_not_given_back_while_anything_of_it_is_in_use(site: AttachSite) -> None:
    arena = site.attach()
    registration = register(arena, namespace_of())
    keys = chain(2)
    put(arena, registration, keys)
    lease = arena.reader.lease(registration.counter, packed(keys), namespace=registration.number)
    (place,) = arena.reserve(registration, None, packed(chain(1)), deadline_s=5.0)
    assert isinstance(place, Reserved)
    slot = arena.reader.slot(place.offset, 4096)
    arena._channel.close()
    arena.close()
    with site.attach():
        assert rows_in_use(site) == OWN + 2
        assert site.statistic("leases") == 2
    lease.release()
    with site.attach():
        assert rows_in_use(site) == OWN + 2
        assert site.statistic("entries_quarantined") == 1, "somebody may still write there"
    del slot
    del lease
    with site.attach():
        assert rows_in_use(site) == OWN + 1
        assert site.statistic("entries_quarantined") == 0


def test_only_its_own_process_gives_an_attachment_back(site: AttachSite) -> None:
    with site.attach() as bystander, attach_raw(site):
        claims = tuple(range(60))
        with dial(site) as stranger:
            greet(stranger, hello(gone=claims))
            assert isinstance(hear(stranger, descriptors=3), Welcome)
            assert rows_in_use(site) == OWN + 3
        assert bystander.ping(deadline_s=5.0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with dial(site) as connection:
                    greet(connection, hello(gone=(bystander.attachment,)))
                    status = 0 if isinstance(hear(connection, descriptors=3), Welcome) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert bystander.ping(deadline_s=5.0)
