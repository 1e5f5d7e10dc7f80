"""Lineage over gRPC: what a get tells and a put says of it, and that no number of one life means anything in the next."""

from __future__ import annotations

from typing import Any

import pytest

from inference_worker import remote, streams
from inference_worker.client import Client, RegisteredNamespace
from inference_worker.streams import PageReceiver
from kv_types.ids import KEY_BYTES, LifeId
from kv_types.outcomes import STORED, Hit, MissReason, Tier
from kv_types.validity import NO_INSTANCE, UNKNOWN_INSTANCE
from kv_wire.gen import cache_pb2
from kv_wire.transfer import GetPart
from sidecar.serving.served_store import Place, PutTerms
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under, room_for
from tests.support.arena_services import service_of
from tests.support.followed_store import at_once
from tests.support.pages import chain as fresh_chain
from tests.support.pages import namespace_of, page_bytes_of
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess
from tests.support.stores import add, make_store


@pytest.fixture
def client(shared_sidecar: SidecarProcess, connect: MakeClient) -> Client:
    return connect(shared_sidecar.runtime, shared_memory=False, deadline_s=10.0)


@pytest.fixture
def ns(client: Client, model: str) -> RegisteredNamespace:
    return client.register(namespace(model))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each put says that its pages rest on."""
    told: list[int] = []
    real = streams.put_messages

    def record(header: cache_pb2.PutHeader, *pages: Any, **more: Any) -> Any:
        assert header.HasField("rests_on")
        told.append(header.rests_on)
        return real(header, *pages, **more)

    monkeypatch.setattr(remote, "put_messages", record)
    return told


def part(keys: bytes, pages: int) -> bytes:
    return keys[: pages * KEY_BYTES]


def test_puts_of_a_request_say_what_it_got(client: Client, ns: RegisteredNamespace, said: list[int]) -> None:
    keys = chain(ns.identified, 6)
    pages = pages_under(keys, ns.page_bytes)
    with client.begin(ns) as request:
        assert request.put(part(keys, 2), pages[:2]) == [STORED] * 2
    for at, look_up in ((2, "get"), (3, "lease")):
        with client.begin(ns) as request:
            if look_up == "get":
                assert request.get(keys, room_for(keys, ns.page_bytes)) == Hit(2, Tier.L2, MissReason.ABSENT)
            else:
                with request.lease(keys) as lease:
                    assert lease.pages == 3
                    assert set(lease.instances.numbers) == {UNKNOWN_INSTANCE}
            assert request.put(part(keys, at + 1), pages[at : at + 1], start=at) == [STORED]
    assert said[0] == NO_INSTANCE
    assert len({*said[1:], NO_INSTANCE, UNKNOWN_INSTANCE}) == 4, "two pages, and told which"


def test_what_a_request_has_stored_itself_is_told_by_nobody(
    client: Client, ns: RegisteredNamespace, said: list[int]
) -> None:
    keys = chain(ns.identified, 3)
    pages = pages_under(keys, ns.page_bytes)
    with client.begin(ns) as request:
        for at in range(3):
            assert request.put(part(keys, at + 1), pages[at : at + 1], start=at) == [STORED]
    assert said == [NO_INSTANCE, UNKNOWN_INSTANCE, UNKNOWN_INSTANCE]


def test_pages_that_the_caller_had_from_elsewhere_are_unknown(
    client: Client, ns: RegisteredNamespace, said: list[int]
) -> None:
    keys = chain(ns.identified, 4)
    pages = pages_under(keys, ns.page_bytes)
    put_fresh(client, ns, part(keys, 3), pages[:3])
    with client.begin(ns) as request:
        behind = keys[KEY_BYTES : 3 * KEY_BYTES]
        request.get(part(keys, 3), room_for(behind, ns.page_bytes), start=1)
        assert request.put(keys, pages[3:], start=3) == [STORED]
    assert put_fresh(client, ns, keys, pages) != []
    assert said == [NO_INSTANCE, UNKNOWN_INSTANCE]


@pytest.mark.parametrize(
    ("pages", "trailer", "told"),
    [
        (3, cache_pb2.GetTrailer(pages=3, instance=77), 77),
        (2, cache_pb2.GetTrailer(pages=3, instance=77), UNKNOWN_INSTANCE),
        (3, cache_pb2.GetTrailer(pages=3), UNKNOWN_INSTANCE),
        (0, cache_pb2.GetTrailer(pages=0), UNKNOWN_INSTANCE),
        (3, None, UNKNOWN_INSTANCE),
    ],
)
def test_the_instance_is_that_of_the_last_page_that_came(
    pages: int, trailer: cache_pb2.GetTrailer | None, told: int
) -> None:
    receiver = PageReceiver(page_bytes=8, first=0, pages_max=3)
    receiver.take(GetPart(cache_pb2.GetHeader(pages=3, page_bytes=8), [], trailer))
    assert receiver.instance(pages) == told


# --- lives ---


class Life:
    """A sidecar's store, and what gRPC makes of it."""

    def __init__(self, life: bytes) -> None:
        self.store = make_store()
        self.store.life = LifeId(life)
        self.service = service_of(self.store)
        self.space = namespace_of()
        self.id = add(self.store, self.space).id

    def put(self, keys: list[Any], at: int, rests_on: int) -> None:
        place = self.service.reserve_page(
            self.id, parent=keys[at - 1] if at else None, key=keys[at], ttl_s=None
        )
        assert isinstance(place, Place)
        place.view[:] = bytes(page_bytes_of(self.space))
        terms = PutTerms(stamp=self.store.stamp(), rests_on=rests_on)
        assert self.service.commit_page(place, terms) == STORED

    def told(self, keys: list[Any]) -> int:
        lease = at_once(self.service.lease_chain(self.id, b"".join(keys), start=0, wait_s=0))
        lease.release()
        return lease.instance

    def is_marked(self, key: bytes) -> bool:
        entry = self.store._arena.find(key)
        assert entry is not None
        return bool(entry["lineage_unknown"])


def test_a_number_of_an_earlier_life_names_no_page_of_this_one() -> None:
    """Both lives did the same, so that the arenas have equal numbers."""
    keys = fresh_chain(2)
    before, after = Life(b"a" * 16), Life(b"b" * 16)
    for life in (before, after):
        life.put(keys, 0, NO_INSTANCE)
    told = before.told(keys[:1])
    with before.store.lease(before.id, keys[0]) as one, after.store.lease(after.id, keys[0]) as other:
        assert one.instance == other.instance, "or this test would show nothing"
    assert told not in (after.told(keys[:1]), NO_INSTANCE, UNKNOWN_INSTANCE)
    before.put(keys, 1, told)
    after.put(keys, 1, told)
    assert not before.is_marked(keys[1])
    assert after.is_marked(keys[1])


@pytest.mark.parametrize("number", [NO_INSTANCE, UNKNOWN_INSTANCE])
def test_what_stands_for_no_page_stays_what_it_is(number: int) -> None:
    life = Life(b"a" * 16)
    assert life.told(fresh_chain(1)) == NO_INSTANCE
    keys = fresh_chain(1)
    life.put(keys, 0, number)
    assert life.is_marked(keys[0]) == (number == UNKNOWN_INSTANCE)
