"""Engines of mode KEEP that outlive their sidecar (rule R18): they go on by what its header said last, or not at all."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.client import Client
from inference_worker.outlived import OutlivedHeader
from kv_types.errors import InvalidArgumentError, SidecarUnreachableError
from kv_types.ids import NO_LIFE, LifeId, LogIncarnation, Stamp
from kv_types.selectors import EVERYTHING
from kv_types.validity import EngineMode, ObservedView
from tests.inference_worker.conftest import MakeClient
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess

FOR_EVER = 2**64 - 1


def engine_of(sidecar: SidecarProcess, connect: MakeClient, mode: EngineMode = EngineMode.KEEP) -> Client:
    """An engine that has applied all, and that the log knows of."""
    if not sidecar.output():
        sidecar.start()
    client = connect(sidecar.runtime, engine=mode, prefault=False)
    assert client.wait_ready(deadline_s=10.0)
    if mode is EngineMode.KEEP:
        wait_until(lambda: granted(client), what="the log to know of the engine")
    client.validity.set_applied_view(client.validity.view)
    return client


def granted(client: Client) -> bool:
    """Whether it may serve without limit now; claimed for a moment, as a gated engine does."""
    claimed, _ = client.validity.claim_freshness(FOR_EVER)
    client.validity.claim_freshness(0)
    return claimed == FOR_EVER


def lost(client: Client) -> None:
    wait_until(lambda: client.statistics()["losses"] == 1, what="the loss to be seen")
    wait_until(lambda: client.statistics()["transport"] == "none", what="nothing to serve")


def test_a_sidecar_that_is_killed_is_outlived_until_the_next_one_comes(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = engine_of(sidecar, connect)
    validity = client.validity
    life, view, stamped = validity.life, validity.view, validity.stamped_view()
    assert (validity.outlived, validity.never_attached) == (False, False)
    sidecar.kill()
    lost(client)
    wait_until(lambda: validity.outlived, what="the death to be known")
    assert (validity.life, validity.view, validity.stamped_view()) == (life, view, stamped)
    assert validity.claim_freshness(FOR_EVER) == (FOR_EVER, view)
    assert validity.claim_freshness() == (validity.freshness_ns, view)
    assert validity.events_since(view) == []
    assert validity.events_since(view + 1) is None
    validity.set_applied_view(view)
    with validity.hold() as hold:
        assert (hold.is_held, hold.life, hold.view) == (True, life, view)
    maps = Path("/proc/self/maps")
    wait_until(lambda: "memfd:stratakv-data" not in maps.read_text(), what="its memory to be given back")
    sidecar.start()
    wait_until(lambda: validity.life not in (life, NO_LIFE), what="the next life")
    assert not validity.outlived
    wait_until(lambda: granted(client), what="the log to know of the engine again")


def test_nothing_is_outlived_where_the_sidecar_closed_its_header(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = engine_of(sidecar, connect)
    assert sidecar.terminate() == 0
    lost(client)
    assert not client.validity.outlived
    assert client.validity.life == NO_LIFE
    assert client.validity.claim_freshness(FOR_EVER) == (0, 0)
    assert not client.validity.never_attached


@pytest.mark.parametrize("mode", [EngineMode.NONE, EngineMode.DROP])
def test_no_other_mode_outlives_its_sidecar(
    sidecar: SidecarProcess, connect: MakeClient, mode: EngineMode
) -> None:
    client = engine_of(sidecar, connect, mode)
    sidecar.kill()
    lost(client)
    assert (client.validity.outlived, client.validity.life) == (False, NO_LIFE)


def test_a_sidecar_that_stands_still_is_not_outlived_but_claimed_below(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = engine_of(sidecar, connect)
    life, view = client.validity.life, client.validity.view
    sidecar.pause()
    wait_until(
        lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) > client.validity.freshness_ns,
        what="freshness to run out",
    )
    assert not client.validity.outlived
    assert client.validity.claim_freshness(FOR_EVER) == (FOR_EVER, view)
    client.validity.claim_freshness(0)
    assert client.validity.life == life
    sidecar.signal(signal.SIGCONT)
    sidecar.kill()
    wait_until(lambda: client.validity.outlived, what="the death to be known")


def test_the_next_one_must_serve_before_it_takes_its_place(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = engine_of(sidecar, connect)
    life = client.validity.life
    sidecar.kill()
    wait_until(lambda: client.validity.outlived, what="the death to be known")
    with pytest.MonkeyPatch.context() as patch:

        def broken(_: object) -> None:
            raise SidecarUnreachableError("it broke before it served")

        patch.setattr(client._link, "publish", broken)
        sidecar.start()
        wait_until(lambda: int(client.statistics()["losses"]) > 1, what="an attempt that breaks")
        assert (client.validity.outlived, client.validity.life) == (True, life)
    wait_until(lambda: client.validity.life != life, what="the next life")
    assert not client.validity.outlived


def test_an_engine_that_was_never_attached_says_so(tmp_path: Path, connect: MakeClient) -> None:
    client = connect(tmp_path, engine=EngineMode.KEEP)
    assert (client.validity.never_attached, client.validity.outlived) == (True, False)
    client.close()
    assert client.validity.never_attached


def test_a_closed_client_outlives_nobody(sidecar: SidecarProcess, connect: MakeClient) -> None:
    client = engine_of(sidecar, connect)
    sidecar.kill()
    wait_until(lambda: client.validity.outlived, what="the death to be known")
    client.close()
    assert (client.validity.outlived, client.validity.life) == (False, NO_LIFE)


def test_a_forked_child_outlives_nobody_and_was_attached(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = engine_of(sidecar, connect)
    sidecar.kill()
    wait_until(lambda: client.validity.outlived, what="the death to be known")
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        validity = client.validity
        os._exit(validity.outlived or validity.never_attached or validity.life != NO_LIFE)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.validity.outlived


# --- a sidecar that lives on ---


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def test_a_broken_connection_alone_is_no_death(
    site: AttachSite, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sidecar lives and is acknowledged by: nothing may be served that it can't be seen to have taken."""
    monkeypatch.setattr("inference_worker.local._DEATH_S", 0.05)
    client = connect(site.path.parent, engine=EngineMode.KEEP, prefault=False)
    site.call(lambda store: store.grant_keep(store.keep_opened))
    assert granted(client)
    seen: list[bool] = []
    arena = client._link.arena
    assert arena is not None
    with socket.socket(fileno=os.dup(arena.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)

    def attached_again() -> bool:
        seen.append(client.validity.outlived)
        return client.statistics()["attaches"] == 2

    wait_until(attached_again, what="another attach")
    assert not any(seen)
    site.call(lambda store: store.hide(EVERYTHING))
    assert site.call(lambda store: store.view - store.acknowledged_view()) == 0


def test_what_was_published_last_must_be_applied_first() -> None:
    life, stamp = LifeId(b"l" * 16), Stamp(LogIncarnation(b"i" * 16), 9)
    events = [(view, b"i" * 16, view + 2, 1, b"x") for view in (5, 6, 7)]
    header = OutlivedHeader(ObservedView(life, 7), stamp, 33, 4, events)
    assert (header.life, header.view(), header.freshness_ns()) == (life, 7, 33)
    assert header.stamped_view() == (ObservedView(life, 7), stamp)
    assert header.events_since(4) == events
    assert header.events_since(6) == events[2:]
    assert header.events_since(7) == []
    assert header.events_since(3) is None, "applied less than it had told: drops everything"
    assert OutlivedHeader(ObservedView(life, 7), stamp, 33, 4, None).events_since(7) is None
    asked = [None, 0, 32, 33, 34, FOR_EVER - 1, FOR_EVER]
    assert [header.claim_freshness(one)[0] for one in asked] == [33, 0, 32, 33, 33, 33, FOR_EVER]
    assert {header.claim_freshness(one)[1] for one in asked} == {7}
    with header.hold(5) as hold:
        assert (hold.is_held, hold.life, hold.view) == (True, life, 5)
        hold.advance(7)
        assert hold.view == 7
        with pytest.raises(InvalidArgumentError, match="published"):
            hold.advance(8)
    assert not hold.is_held
    for none in (0, 8):
        with pytest.raises(InvalidArgumentError, match="published"):
            header.hold(none)
