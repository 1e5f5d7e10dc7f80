"""Holds on views: a process that follows views by itself keeps `drained` back with one slot (rule R19)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_worker.client import Client
from inference_worker.view_hold import ViewHold
from kv_types.errors import InvalidArgumentError
from kv_types.ids import NO_LIFE, LifeId
from kv_types.selectors import EVERYTHING
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import namespace
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@pytest.fixture
def attached(site: AttachSite, connect: MakeClient) -> Client:
    client = connect(site.path.parent, prefault=False)
    assert client.validity.life == site.call(lambda store: store.life)
    return client


def hide(site: AttachSite) -> None:
    site.call(lambda store: store.hide(EVERYTHING))


def undrained(site: AttachSite) -> int:
    """Views that are published and not drained."""
    return site.call(lambda store: store.view - store.drained_view())


def rows(site: AttachSite) -> int:
    return site.call(lambda store: len(store.clients()) - 1)


def test_a_hold_keeps_drained_back_until_it_has_advanced_or_ended(site: AttachSite, attached: Client) -> None:
    hold = attached.validity.hold()
    assert (hold.is_held, hold.life, hold.view) == (True, attached.validity.life, attached.validity.view)
    hide(site)
    hide(site)
    assert undrained(site) == 2
    hold.advance(attached.validity.view - 1)
    assert (undrained(site), hold.view) == (1, attached.validity.view - 1)
    hold.advance(1)
    assert undrained(site) == 1, "never back"
    hold.advance(attached.validity.view)
    assert undrained(site) == 0
    hide(site)
    assert undrained(site) == 1
    hold.end()
    hold.end()
    assert (undrained(site), hold.is_held, hold.view, hold.life) == (0, False, 0, NO_LIFE)
    hold.advance(1)


def test_an_older_view_can_be_held(site: AttachSite, attached: Client) -> None:
    view = attached.validity.view
    hide(site)
    hide(site)
    with attached.validity.hold(view, life=attached.validity.life) as hold:
        assert (hold.view, undrained(site)) == (view, 2)
    assert undrained(site) == 0


def test_holds_and_requests_are_apart(site: AttachSite, attached: Client) -> None:
    request = attached.begin(attached.register(namespace("holds")))
    hold = attached.validity.hold()
    hide(site)
    request.end()
    assert undrained(site) == 1
    del hold  # forgotten is ended
    assert undrained(site) == 0


@pytest.mark.parametrize("view", [0, 10**6, -1, 2**64, True, "1", 1.0])
def test_no_view_is_named(attached: Client, view: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="view"):
        attached.validity.hold(view)
    with attached.validity.hold() as hold:
        if view == 0 and not isinstance(view, bool):
            hold.advance(view)
        else:
            with pytest.raises(InvalidArgumentError, match="view"):
                hold.advance(view)


def test_nothing_is_held_of_another_life_without_a_slot_or_a_header(
    site: AttachSite, attached: Client, connect: MakeClient, tmp_path: Path
) -> None:
    other = attached.validity.hold(life=LifeId(b"x" * 16))
    holds = [attached.validity.hold() for _ in range(256)]
    assert all(hold.is_held for hold in holds)
    none_left = attached.validity.hold()
    hide(site)
    for hold in holds:
        hold.end()
    assert undrained(site) == 0
    absent = connect(tmp_path / "nobody").validity
    assert absent.stamped_view() is None
    for nothing in (other, none_left, absent.hold(), absent.hold(7)):
        assert (nothing.is_held, nothing.life, nothing.view) == (False, NO_LIFE, 0)
        nothing.advance(5)
        nothing.end()


def test_a_hold_outlives_its_client_and_keeps_the_row(site: AttachSite, attached: Client) -> None:
    hold = attached.validity.hold()
    attached.close()
    hide(site)
    assert (undrained(site), rows(site)) == (1, 1)
    hold.advance(site.call(lambda store: store.view))
    assert undrained(site) == 0
    hold.end()
    wait_until(lambda: rows(site) == 0, what="the row's end")


def test_a_forked_child_ends_and_advances_nothing(site: AttachSite, attached: Client) -> None:
    hold = attached.validity.hold()
    hide(site)
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        held = hold.is_held
        hold.advance(2**64 - 1)
        hold.end()
        os._exit(1 if held else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (hold.is_held, undrained(site)) == (True, 1)


def test_a_hold_survives_its_sidecar(sidecar: SidecarProcess, connect: MakeClient) -> None:
    sidecar.start()
    client = connect(sidecar.runtime, prefault=False)
    assert client.wait_ready(deadline_s=10.0)
    hold = client.validity.hold()
    life, view = hold.life, hold.view
    sidecar.kill()
    sidecar.start()
    wait_until(lambda: client.validity.life not in (life, NO_LIFE), what="the next life")
    assert (hold.is_held, hold.life) == (True, life)
    hold.advance(view)
    other = client.validity.hold(view, life=life)
    assert not other.is_held, "it is another life's view"
    hold.end()
    assert not hold.is_held


def test_a_stamped_view_is_of_one_moment(site: AttachSite, attached: Client) -> None:
    before = attached.validity.stamped_view()
    hide(site)
    after = attached.validity.stamped_view()
    assert before is not None
    assert after is not None
    assert (after[0].life, after[0].view) == (attached.validity.life, attached.validity.view)
    assert after[0].view == before[0].view + 1
    assert after[1] == attached.stamp()
    site.call(lambda store: store.drain())
    assert attached.validity.stamped_view() is None


def test_a_hold_that_nothing_was_taken_for_is_a_context_manager_too() -> None:
    with ViewHold(None) as hold:
        assert not hold.is_held
