"""Namespaces that a client forgets: their counters serve others, and no page of an account is lost (I7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2.attach_messages import Unregister
from inference_worker.client import Client
from kv_types.errors import ClosedError, InvalidArgumentError, LimitExceededError
from kv_types.limits import NAMESPACES_PER_CLIENT_MAX
from kv_types.namespace import Weights
from kv_types.outcomes import Hit, MissReason, Tier
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support.attach_site import AttachSite, register
from tests.support.pages import namespace_of
from tests.support.puts import put_fresh


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


def test_a_client_goes_through_any_number_of_versions(client: Client, model: str) -> None:
    spaces = [
        namespace(model, weights=Weights(version=str(n))) for n in range(2 * NAMESPACES_PER_CLIENT_MAX + 1)
    ]
    for space in spaces:
        ns = client.register(space)
        keys = chain(space, 2)
        assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)))
        assert client.get(ns, keys, room_for(keys, ns.page_bytes)) == Hit(2, Tier.L2)
        client.forget(ns)
    counts = client.namespace_counts()
    assert set(counts) == {"forgotten"}
    assert (counts["forgotten"].requested, counts["forgotten"].l2) == (2 * len(spaces), 2 * len(spaces))
    assert client.statistics()["requested_pages"] == 2 * len(spaces)
    again = client.register(spaces[0])
    assert client.match(again, chain(spaces[0], 2)) == Hit(2, Tier.L2), "its pages stay where they are"


def test_what_was_forgotten_says_so(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 1)
    begun = client.begin(ns)
    with client.lease(ns, keys) as lease:
        client.forget(ns)
        assert lease.pages == 0
    with pytest.raises(InvalidArgumentError, match="forgotten"):
        client.match(ns, keys)
    with pytest.raises(InvalidArgumentError, match="forgotten"):
        client.forget(ns)
    with pytest.raises(ClosedError, match="forgotten"):
        begun.match(keys)
    begun.end()
    assert client.register(namespace(model)) is not ns


def test_a_closed_client_forgets_nothing(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    client.close()
    with pytest.raises(ClosedError):
        client.forget(ns)


def test_a_namespace_is_forgotten_where_no_sidecar_is(connect: MakeClient, tmp_path: Path) -> None:
    client = connect(tmp_path, attach_deadline_s=0.1)
    ns = client.register(namespace())
    with client.lease(ns, chain(ns.identified, 3)) as lease:
        assert lease.reason is MissReason.UNREACHABLE
    client.forget(ns)
    assert client.statistics()["missed_pages_unreachable"] == 3


def test_the_sidecar_counts_each_look_up_under_its_own_namespace(
    site: AttachSite, connect: MakeClient
) -> None:
    client = connect(site.path.parent, prefault=False)
    spaces = [namespace("m", weights=Weights(version=str(n))) for n in range(3)]
    kept = client.register(spaces[0])
    for pages, space in enumerate(spaces[1:], start=1):
        ns = client.register(space)
        client.get(ns, chain(space, pages), room_for(chain(space, pages), ns.page_bytes))
        client.get(kept, chain(spaces[0], 7), room_for(chain(spaces[0], 7), kept.page_bytes))
        client.forget(ns)
    counts = site.call(lambda store: dict(store.namespace_counts()))
    assert [counts[space.id].requested for space in spaces] == [14, 1, 2]
    client.close()
    assert site.call(lambda store: dict(store.namespace_counts())) == counts


def test_numbers_that_a_client_never_had_are_passed_over(site: AttachSite) -> None:
    with site.attach() as mine, site.attach() as other:
        registration = register(other, namespace_of())
        for number in (registration.number, 77, 2**32 - 1):
            mine._call(Unregister(number), 10.0)
        assert other.ping(deadline_s=10.0)
        again = register(other, namespace_of())
        assert (again.number, again.counter) == (registration.number, registration.counter)
        assert other.unregister(registration, deadline_s=10.0)
        assert other.unregister(registration, deadline_s=10.0), "twice is once"
        register(mine, namespace_of())
        assert mine.ping(deadline_s=10.0)


def test_a_counter_that_was_given_back_is_given_again_and_no_other(site: AttachSite) -> None:
    with site.attach() as arena:
        held = [register(arena, namespace_of(f"m{n}")) for n in range(NAMESPACES_PER_CLIENT_MAX)]
        with pytest.raises(LimitExceededError, match="forget"):
            register(arena, namespace_of("one more"))
        arena.unregister(held[5], deadline_s=10.0)
        assert register(arena, namespace_of("one more")).counter == held[5].counter
        with pytest.raises(LimitExceededError, match="forget"):
            register(arena, namespace_of("m5"))
