"""Numbers that a client is given: no bool counts as one, nothing is NaN, endless or negative, and the argument is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inference_worker.client import Client, ClientSettings
from kv_types.errors import InvalidArgumentError
from tests.inference_worker.worlds import chain, engine_namespace, namespace, pages_under, room_for
from tests.support.puts import put_fresh

NO_SECONDS: tuple[Any, ...] = (True, False, math.nan, math.inf, -math.inf, -1, -0.5, 10**400, "1", 1j)
NO_COUNT: tuple[Any, ...] = (True, False, math.nan, math.inf, 1.0, -1, 2**70, "1", np.bool_(True))

DEADLINES: dict[str, Callable[[Client, Any, bytes, Any], object]] = {
    "wait_ready": lambda client, ns, keys, bad: client.wait_ready(deadline_s=bad),
    "forget": lambda client, ns, keys, bad: client.forget(ns, deadline_s=bad),
    "begin": lambda client, ns, keys, bad: client.begin(ns, deadline_s=bad),
    "lease": lambda client, ns, keys, bad: client.lease(ns, keys, deadline_s=bad),
    "lease, uncounted": lambda client, ns, keys, bad: client.lease(ns, keys, deadline_s=bad, counted=False),
    "get": lambda client, ns, keys, bad: client.get(ns, keys, room(ns, keys), deadline_s=bad),
    "put": lambda client, ns, keys, bad: client.put(ns, keys, pages(ns, keys), stamp=None, deadline_s=bad),
    "match_shards": lambda client, ns, keys, bad: client.match_shards([(ns, keys)], deadline_s=bad),
    "prefetch": lambda client, ns, keys, bad: client.prefetch(ns, keys, deadline_s=bad),
    "announced": lambda client, ns, keys, bad: client.announced("tiny", deadline_s=bad),
    "request.lease": lambda client, ns, keys, bad: client.begin(ns).lease(keys, deadline_s=bad),
    "request.get": lambda client, ns, keys, bad: client.begin(ns).get(keys, room(ns, keys), deadline_s=bad),
    "request.put": lambda client, ns, keys, bad: client.begin(ns).put(keys, pages(ns, keys), deadline_s=bad),
}
STARTS: dict[str, Callable[[Client, Any, bytes, Any], object]] = {
    "match": lambda client, ns, keys, bad: client.match(ns, keys, start=bad),
    "lease": lambda client, ns, keys, bad: client.lease(ns, keys, start=bad),
    "lease, uncounted": lambda client, ns, keys, bad: client.lease(ns, keys, start=bad, counted=False),
    "lease, this node": lambda client, ns, keys, bad: client.lease(ns, keys, start=bad, deadline_s=0),
    "get": lambda client, ns, keys, bad: client.get(ns, keys, room(ns, keys[32:]), start=bad),
    "put": lambda client, ns, keys, bad: client.put(ns, keys, pages(ns, keys[32:]), stamp=None, start=bad),
    "request.match": lambda client, ns, keys, bad: client.begin(ns).match(keys, start=bad),
    "request.lease": lambda client, ns, keys, bad: client.begin(ns).lease(keys, start=bad),
    "request.get": lambda client, ns, keys, bad: client.begin(ns).get(keys, room(ns, keys[32:]), start=bad),
    "request.put": lambda client, ns, keys, bad: client.begin(ns).put(keys, pages(ns, keys[32:]), start=bad),
}


def room(ns: Any, keys: bytes) -> list[bytearray]:
    return room_for(keys, ns.page_bytes)


def pages(ns: Any, keys: bytes) -> list[bytes]:
    return pages_under(keys, ns.page_bytes)


@pytest.mark.parametrize("name", DEADLINES)
def test_what_is_no_time_is_no_deadline(client: Client, model: str, name: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    for bad in NO_SECONDS:
        with pytest.raises(InvalidArgumentError, match="deadline_s"):
            DEADLINES[name](client, ns, keys, bad)


@pytest.mark.parametrize("name", STARTS)
def test_what_is_no_count_is_no_start(client: Client, model: str, name: str) -> None:
    ns = client.register(namespace(model))
    keys = chain(ns.identified, 2)
    put_fresh(client, ns, keys, pages(ns, keys))
    for bad in NO_COUNT:
        with pytest.raises(InvalidArgumentError, match="start"):
            STARTS[name](client, ns, keys, bad)


def test_other_numbers_that_a_client_is_given(client: Client, model: str) -> None:
    for bad in NO_COUNT:
        with pytest.raises(InvalidArgumentError, match="page_bytes"):
            client.register(engine_namespace(model), page_bytes=bad)
        with pytest.raises(InvalidArgumentError, match="freshness_ns"):
            client.validity.claim_freshness(bad)
        for look in (client.validity.set_applied_view, client.validity.events_since):
            with pytest.raises(InvalidArgumentError, match="view"):
                look(bad)


@pytest.mark.parametrize("setting", ["deadline_s", "attach_deadline_s", "reattach_s", "copy_lease_s"])
def test_settings_that_are_no_time(setting: str) -> None:
    for bad in (*NO_SECONDS, 0):
        with pytest.raises(InvalidArgumentError, match=rf"^{setting} "):
            ClientSettings(**{setting: bad})


def test_a_setting_that_is_no_count() -> None:
    for bad in NO_COUNT:
        with pytest.raises(InvalidArgumentError, match=r"^prefetches_in_flight_max "):
            ClientSettings(prefetches_in_flight_max=bad)
