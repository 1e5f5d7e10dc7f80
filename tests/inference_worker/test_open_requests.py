"""Requests that outlive their client's connection: what they compute goes on, so they hold back `drained` until they end."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.client import Client, Request
from kv_types.errors import ClosedError
from kv_types.selectors import EVERYTHING
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def undrained(site: AttachSite) -> int:
    """Views that are published and not drained."""
    return site.call(lambda store: store.view - store.drained_view())


def rows(site: AttachSite) -> int:
    """Rows that clients have."""
    return site.call(lambda store: len(store.clients()) - 1)


def begun(site: AttachSite, connect: MakeClient) -> tuple[Client, Request]:
    client = connect(site.path.parent, prefault=False)
    return client, client.begin(client.register(namespace("open requests")))


def test_a_request_holds_back_drained_past_its_clients_close_until_it_ends(
    site: AttachSite, connect: MakeClient
) -> None:
    client, request = begun(site, connect)
    client.close()
    site.call(lambda store: store.hide(EVERYTHING))
    assert (undrained(site), rows(site)) == (1, 1)
    keys = chain(namespace("open requests"), 1)
    with pytest.raises(ClosedError):
        request.put(keys, pages_under(keys, request.namespace.page_bytes))
    request.end()
    wait_until(lambda: (undrained(site), rows(site)) == (0, 0), what="the row's end")


def test_the_last_of_several_requests_gives_the_row_back(site: AttachSite, connect: MakeClient) -> None:
    client, first = begun(site, connect)
    second = client.begin(first.namespace)
    client.close()
    site.call(lambda store: store.hide(EVERYTHING))
    first.end()
    assert (undrained(site), rows(site)) == (1, 1)
    del second  # forgotten is ended
    wait_until(lambda: (undrained(site), rows(site)) == (0, 0), what="the row's end")


def test_a_close_without_open_requests_gives_the_row_back_at_once(
    site: AttachSite, connect: MakeClient
) -> None:
    client, request = begun(site, connect)
    request.end()
    client.close()
    wait_until(lambda: rows(site) == 0, what="the row's end")


def test_a_request_holds_back_drained_past_a_broken_connection(site: AttachSite, connect: MakeClient) -> None:
    client, request = begun(site, connect)
    old = site.call(lambda store: [one.row for one in store.clients() if one.row != store.own_row])
    arena = client._link.arena
    assert arena is not None
    with socket.socket(fileno=os.dup(arena.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: client.statistics()["reconnects"] == 1, what="another attach")
    site.call(lambda store: store.hide(EVERYTHING))
    assert undrained(site) == 1
    held = site.call(lambda store: store.draining_held_by())
    assert [one.row for one in held] == old
    assert "it is orphaned" in held[0].why
    request.end()
    assert undrained(site) == 0
