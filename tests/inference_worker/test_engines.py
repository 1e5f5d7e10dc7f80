"""Engines with an index of their own (rule R18): what was hidden is acknowledged when they have applied it, not before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_worker.client import Client, ClientSettings
from kv_types.errors import ConfigError
from kv_types.ids import NO_LIFE
from kv_types.outcomes import Miss, MissReason, Refused, RefuseReason
from kv_types.selectors import EVERYTHING
from kv_types.validity import EngineMode
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.attach_site import AttachSite
from tests.support.polling import wait_until
from tests.support.puts import put_fresh

FOR_EVER = 2**64 - 1


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def attach(connect: MakeClient, site: AttachSite, engine: EngineMode) -> Client:
    return connect(site.path.parent, engine=engine, prefault=False)


def behind(site: AttachSite) -> int:
    """Views that are published and not acknowledged."""
    return site.call(lambda store: store.view - store.acknowledged_view())


def hide(site: AttachSite) -> None:
    site.call(lambda store: store.hide(EVERYTHING))


def apply(client: Client) -> None:
    """What an engine does at its step boundary."""
    client.validity.set_applied_view(client.validity.view)


@pytest.mark.parametrize("engine", [EngineMode.KEEP, EngineMode.DROP])
def test_an_engine_that_has_not_applied_holds_the_acknowledgement_back(
    site: AttachSite, connect: MakeClient, engine: EngineMode
) -> None:
    client = attach(connect, site, engine)
    apply(client)
    client.validity.claim_freshness(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 3600 * 10**9)
    assert behind(site) == 0
    hide(site)
    hide(site)
    assert behind(site) == 2
    (held,) = site.call(lambda store: store.held_back_by())
    assert "applied view" in held.why
    events = client.validity.events_since(client.validity.view - 2)
    assert events is not None
    client.validity.set_applied_view(events[0][0])
    assert behind(site) == 1
    apply(client)
    assert behind(site) == 0
    assert site.call(lambda store: store.held_back_by()) == []


def test_nobody_waits_for_a_client_without_an_index(site: AttachSite, connect: MakeClient) -> None:
    client = attach(connect, site, EngineMode.NONE)
    client.validity.claim_freshness(FOR_EVER)
    hide(site)
    assert behind(site) == 0


def test_drop_is_waited_for_until_its_own_freshness_has_run_out(
    site: AttachSite, connect: MakeClient
) -> None:
    client = attach(connect, site, EngineMode.DROP)
    soon_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 200_000_000
    claimed, view = client.validity.claim_freshness(soon_ns)
    assert (claimed, view) == (soon_ns, client.validity.view)
    hide(site)
    seen = behind(site)
    if time.clock_gettime_ns(time.CLOCK_BOOTTIME) < soon_ns:
        assert seen > 0
    wait_until(lambda: behind(site) == 0, what="its own freshness to run out")
    assert client.validity.claim_freshness()[0] == client.validity.freshness_ns


def test_keep_is_waited_for_while_it_claims_without_limit_and_no_longer(
    site: AttachSite, connect: MakeClient
) -> None:
    client = attach(connect, site, EngineMode.KEEP)
    hide(site)
    assert behind(site) == 0, "gated: it asks the header at its next look-up"
    site.call(lambda store: store.grant_keep(store.keep_opened))
    assert client.validity.claim_freshness(FOR_EVER) == (FOR_EVER, client.validity.view)
    hide(site)
    assert behind(site) > 0
    (held,) = site.call(lambda store: store.held_back_by())
    assert "it keeps its pages (mode keep)" in held.why
    client.validity.claim_freshness(0)
    assert behind(site) == 0
    client.validity.claim_freshness(FOR_EVER)
    assert behind(site) > 0, "what it claims it has not applied for"
    client.close()
    wait_until(lambda: behind(site) == 0, what="the engine's end")


def test_nobody_claims_below_a_header_that_is_closed(site: AttachSite, connect: MakeClient) -> None:
    client = attach(connect, site, EngineMode.KEEP)
    site.call(lambda store: store.grant_keep(store.keep_opened))
    reader = client._link.arena.reader  # type: ignore[union-attr]
    assert reader.claim_freshness(FOR_EVER)[0] == FOR_EVER
    site.call(lambda store: store.drain())
    assert site.call(lambda store: store.engines_may_serve()), "what was claimed before stands"
    assert reader.claim_freshness(FOR_EVER) == (0, 0)
    assert not site.call(lambda store: store.engines_may_serve())


def test_an_engine_that_attaches_again_is_an_engine_again(site: AttachSite, connect: MakeClient) -> None:
    client = attach(connect, site, EngineMode.KEEP)
    apply(client)
    site.call(lambda store: store.grant_keep(store.keep_opened))
    client.validity.claim_freshness(FOR_EVER)
    hide(site)
    assert behind(site) == 1
    connections = site.call(lambda _: list(site.server._connections))

    def cut(_: object) -> None:
        for one in connections:
            site.server._close(one)

    site.call(cut)
    wait_until(lambda: client.statistics()["attaches"] == 2, what="the engine to attach again")
    rows = site.call(lambda store: store.clients())
    assert EngineMode.KEEP in {row.engine for row in rows}
    apply(client)
    wait_until(lambda: behind(site) == 0, what="the former row's end")


@pytest.mark.parametrize(
    "settings", [{"engine": 1}, {"engine": "keep"}, {"engine": EngineMode.DROP, "shared_memory": False}]
)
def test_settings_that_no_engine_can_have_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="engine"):
        ClientSettings(**settings)


def test_an_engine_needs_the_sidecar_of_its_own_node() -> None:
    with pytest.raises(ConfigError, match="runtime directory"):
        Client.connect("127.0.0.1:9", settings=ClientSettings(engine=EngineMode.KEEP))


def test_an_engine_that_is_refused_shared_memory_gets_no_pages_over_grpc(
    tmp_path: Path, connect: MakeClient
) -> None:
    """It could not be told what to forget of them."""
    with AttachSite(tmp_path, client_rows=2) as site:
        first = attach(connect, site, EngineMode.NONE)
        assert first.statistics()["transport"] == "shared_memory"
        engine = attach(connect, site, EngineMode.KEEP)
        plain = connect(tmp_path, prefault=False)
        wait_until(lambda: plain.statistics()["transport"] == "grpc", what="gRPC to be used instead")
        assert engine.statistics()["transport"] == "none"
        assert "row" in str(engine.statistics()["reason"])
        ns = engine.register(namespace("engine"))
        keys = chain(ns.identified, 1)
        assert engine.match(ns, keys) == Miss(MissReason.UNREACHABLE)
        assert engine.validity.life == NO_LIFE
        assert engine.validity.claim_freshness() == (0, 0)
        assert put_fresh(engine, ns, keys, pages_under(keys, ns.page_bytes)) == [
            Refused(RefuseReason.UNREACHABLE)
        ]
