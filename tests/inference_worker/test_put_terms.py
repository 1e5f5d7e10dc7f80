"""Terms of a put: times to live, stamps, tags and deadlines are checked alike over both transports."""

from __future__ import annotations

from typing import Any

import pytest

from cache_l2.reader import AttachedArena
from inference_worker.client import Client
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import LogIncarnation, Stamp
from kv_types.limits import NAMESPACES_PER_CLIENT_MAX, TTL_S_MAX
from kv_types.namespace import Uncacheable, UncacheableReason
from kv_types.outcomes import Miss, MissReason, Refused, RefuseReason
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess


def test_bad_tags_deadlines_and_counts_are_named(client: Client, model: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 1)
    page = [bytes(ns.page_bytes)]
    with pytest.raises(LimitExceededError, match="tags"):
        put_fresh(client, ns, keys, page, tags=[b"t"] * 100)
    with pytest.raises(InvalidArgumentError, match="tag"):
        put_fresh(client, ns, keys, page, tags=[b""])
    with pytest.raises(InvalidArgumentError, match="deadline_s"):
        put_fresh(client, ns, keys, page, deadline_s=float("nan"))
    if client.statistics()["transport"] == "shared_memory":
        for number in range(NAMESPACES_PER_CLIENT_MAX - 1):
            client.register(namespace(f"{model}-{number}"))
        with pytest.raises(LimitExceededError, match=str(NAMESPACES_PER_CLIENT_MAX)):
            client.register(namespace(f"{model}-one more"))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("stamp", 5),
        ("stamp", Stamp(LogIncarnation(bytes(16)), -1)),
        ("stamp", Stamp(LogIncarnation(bytes(16)), 2**64)),
        ("stamp", Stamp(LogIncarnation(bytes(3)), 0)),
        ("tags", 5),
        ("deadline_s", "1"),
    ],
)
def test_bad_terms_of_a_put_are_named_and_leave_nothing_behind(
    client: Client, model: str, argument: str, value: Any
) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    pages = pages_under(keys, ns.page_bytes)
    name = {"tags": "tag", "stamp": "stamp|incarnation"}.get(argument, argument)
    with pytest.raises(InvalidArgumentError, match=name):
        client.put(ns, keys, pages, **{"stamp": client.stamp(), argument: value})
    assert all_stored(put_fresh(client, ns, keys, pages)), "no place stays reserved"


def test_places_are_given_back_when_the_commit_is_refused_as_a_whole(
    shared_sidecar: SidecarProcess, connect: MakeClient, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(shared_sidecar.runtime)
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    pages = pages_under(keys, ns.page_bytes)

    def refuse(*_: object, **__: object) -> None:
        raise LimitExceededError("too many producers")

    with monkeypatch.context() as patched:
        patched.setattr(AttachedArena, "commit", refuse)
        with pytest.raises(LimitExceededError, match="too many producers"):
            put_fresh(client, ns, keys, pages)
    assert all_stored(put_fresh(client, ns, keys, pages))


@pytest.mark.parametrize("ttl_s", [None, 0, 1, TTL_S_MAX])
def test_every_time_to_live_is_taken(client: Client, model: str, ttl_s: int | None) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    assert all_stored(put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes), ttl_s=ttl_s))


@pytest.mark.parametrize("ttl_s", [-1, 1.5, True, "1", TTL_S_MAX + 1, 2**64])
def test_a_time_to_live_out_of_range_is_refused_alike(client: Client, model: str, ttl_s: Any) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 1)
    pages = pages_under(keys, ns.page_bytes)
    with pytest.raises(InvalidArgumentError, match="ttl_s"):
        put_fresh(client, ns, keys, pages, ttl_s=ttl_s)
    assert all_stored(put_fresh(client, ns, keys, pages)), "no place stays reserved"


def test_a_put_without_a_stamp_stores_nothing_and_is_never_stamped_later(client: Client, model: str) -> None:
    """What was computed before a record must not be stamped behind it (rule R1)."""
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    pages = pages_under(keys, ns.page_bytes)
    with pytest.raises(TypeError, match="stamp"):
        client.put(ns, keys, pages)  # type: ignore[call-arg]
    assert client.put(ns, keys, pages, stamp=None) == [Refused(RefuseReason.STAMP_FOREIGN)] * 2
    assert client.match(ns, keys) == Miss(MissReason.ABSENT)
    begun = client.stamp()
    assert all_stored(client.put(ns, keys, pages, stamp=begun))
    nameless = client.register(Uncacheable(UncacheableReason.WEIGHTS_UNNAMED, "no digest"))
    assert client.put(nameless, keys, pages, stamp=begun) == [Refused(RefuseReason.UNCACHEABLE)] * 2
    assert client.put(nameless, keys, pages, stamp=None) == [Refused(RefuseReason.UNCACHEABLE)] * 2
