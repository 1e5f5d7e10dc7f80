"""Leases of what another process has looked up and counted: the same pages under the same checks, and no account changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference_worker.client import Client, RegisteredNamespace
from kv_types.errors import ClosedError, InvalidArgumentError
from kv_types.namespace import Uncacheable, UncacheableReason
from kv_types.outcomes import MissReason
from kv_types.selectors import EVERYTHING
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.looking import Looking
from tests.inference_worker.worlds import all_stored, chain, keys_of, namespace, pages_under
from tests.support.attach_site import AttachSite
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def counted(client: Client) -> dict[str, Any]:
    """All accounts of a client."""
    told = client.statistics()
    kept = ("look_ups", "requested_pages", "l1_pages", "l2_pages", "l3_pages", "bytes_read")
    return {name: value for name, value in told.items() if name in kept or name.startswith("missed_")}


def stored(client: Client, model: str, pages: int) -> tuple[RegisteredNamespace, bytes]:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, pages)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
    return ns, keys


def look(client: Client, ns: RegisteredNamespace, keys: bytes, *, start: int = 0) -> tuple[int, MissReason]:
    """Pages of an uncounted lease, every byte checked, and why no more."""
    sources = pages_under(keys[32 * start :], ns.page_bytes)
    with client.lease(ns, keys, start=start, counted=False) as lease:
        assert [bytes(page) for page in lease] == sources[: lease.pages]
        return lease.pages, lease.reason


def test_pages_are_pinned_and_nothing_is_counted(client: Client, model: str) -> None:
    ns, keys = stored(client, model, 5)
    longer, other = chain(ns.identified, 8), chain(ns.identified, 3, seed=1)
    with client.lease(ns, keys, deadline_s=0.0 if client.validity.view else None) as lease:
        assert lease.pages == 5
    before = counted(client)
    assert (before["look_ups"], before["l2_pages"]) == (1, 5)
    assert look(client, ns, keys) == (5, MissReason.NONE)
    assert look(client, ns, longer) == (5, MissReason.ABSENT)
    assert look(client, ns, longer, start=3) == (2, MissReason.ABSENT)
    assert look(client, ns, other) == (0, MissReason.ABSENT)
    assert look(client, ns, b"") == (0, MissReason.NONE)
    assert look(client, ns, keys, start=5) == (0, MissReason.NONE)
    with client.lease(ns, [*keys_of(keys)], counted=False) as lease:  # type: ignore[list-item]
        assert lease.pages == 5
    assert counted(client) == before


def test_views_and_instances_are_told_as_by_any_lease(site: AttachSite, connect: MakeClient) -> None:
    client = connect(site.path.parent, prefault=False)
    ns, keys = stored(client, "told", 4)
    with client.lease(ns, keys) as one, client.lease(ns, keys, counted=False) as other:
        assert (one.instances, one.view) == (other.instances, other.view)
        assert one.view == client.validity.view
        assert client.statistics()["leases_held"] == 2


def test_it_is_valid_as_any_lease_is(site: AttachSite, connect: MakeClient) -> None:
    client = connect(site.path.parent, prefault=False)
    ns, keys = stored(client, "valid", 4)
    with client.lease(ns, keys, counted=False) as lease:
        site.call(lambda store: store.hide(EVERYTHING))
        assert [bytes(page) for page in lease] == pages_under(keys, ns.page_bytes), "pinned stays pinned"
        assert site.call(lambda store: store.view - store.drained_view()) > 0
    assert site.call(lambda store: store.view - store.drained_view()) == 0
    assert look(client, ns, keys) == (0, MissReason.ABSENT)
    site.call(lambda store: store.publish_freshness(1))
    assert look(client, ns, keys) == (0, MissReason.STALE)
    before = counted(client)
    site.call(lambda store: store.drain())
    assert look(client, ns, keys)[1] in (MissReason.CLOSED, MissReason.UNREACHABLE)
    assert counted(client) == before


def test_nothing_is_loaded_for_it(looking: Looking) -> None:
    keys = chain(looking.ns.identified, 4)
    looking.shelve(keys)
    before = counted(looking.client)
    assert look(looking.client, looking.ns, keys) == (0, MissReason.ABSENT)
    assert counted(looking.client) == before
    assert looking.look("lease", keys) == (0, 4, MissReason.NONE)
    assert look(looking.client, looking.ns, keys) == (4, MissReason.NONE)


def test_what_somebody_has_just_put_is_waited_for(
    shared_sidecar: SidecarProcess, connect: MakeClient, model: str
) -> None:
    writer, reader = (connect(shared_sidecar.runtime, prefault=False, deadline_s=10.0) for _ in range(2))
    mine, theirs = (one.register(namespace(model)) for one in (writer, reader))
    for seed in range(40):
        keys = chain(mine.identified, 3, seed=seed)
        assert all_stored(put_fresh(writer, mine, keys, pages_under(keys, mine.page_bytes)))
        assert look(reader, theirs, keys) == (3, MissReason.NONE)


def test_pages_out_of_reach_are_none_with_the_reason(connect: MakeClient, tmp_path: Path) -> None:
    client = connect(tmp_path)
    ns = client.register(namespace("nobody"))
    keys = chain(ns.identified, 2)
    unnamed = client.register(Uncacheable(UncacheableReason.MODEL_UNNAMED, "test"))
    before = counted(client)
    assert look(client, ns, keys) == (0, MissReason.UNREACHABLE)
    with client.lease(unnamed, keys, counted=False) as lease:
        assert (lease.pages, lease.reason) == (0, MissReason.UNCACHEABLE)
    assert counted(client) == before
    with pytest.raises(InvalidArgumentError):
        client.lease(ns, keys, start=3, counted=False)
    with pytest.raises(InvalidArgumentError):
        client.lease(ns, keys[:-1], counted=False)
    with pytest.raises(InvalidArgumentError, match="register"):
        client.lease(connect(tmp_path).register(namespace("nobody")), keys, counted=False)
    client.close()
    with pytest.raises(ClosedError):
        client.lease(ns, keys, counted=False)
