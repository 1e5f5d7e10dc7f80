"""Doorbells of attached clients: whatever a client does to the descriptor that it shares, the sidecar serves on."""

from __future__ import annotations

import errno
import os
import select
import threading
from typing import NoReturn

import pytest

from kv_types.errors import StrataError
from sidecar.attach.connection import take_rings
from tests.support.attach_raw import descriptors_of, expect_closed, rows_in_use, still_serves
from tests.support.attach_site import AttachSite


def test_a_doorbell_that_its_client_made_wait_and_emptied_holds_nobody_up() -> None:
    doorbell = os.eventfd(0)  # one that waits
    taking = threading.Thread(target=take_rings, args=(doorbell,), daemon=True)
    taking.start()
    taking.join(10)
    assert not taking.is_alive()
    os.eventfd_write(doorbell, 3)
    take_rings(doorbell)
    assert select.select([doorbell], [], [], 0) == ([], [], [])
    os.close(doorbell)


def test_where_there_is_no_descriptor_for_a_doorbell_nothing_is_left_of_the_client(
    site: AttachSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: int) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    before, rows = descriptors_of(site), rows_in_use(site)
    with monkeypatch.context() as patched:
        patched.setattr("sidecar.attach.server.os.eventfd", exhausted)
        with pytest.raises(StrataError):
            site.attach()
    assert rows_in_use(site) == rows
    expect_closed(site, before)
    still_serves(site)
