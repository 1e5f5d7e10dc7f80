"""Namespaces that are new to a sidecar which is slow to register them: asked for once, and taken by whoever looks later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from cache_l2.attach_messages import Looked
from inference_worker.client import Client, RegisteredNamespace
from kv_types.limits import LISTINGS_IN_FLIGHT_PER_CLIENT_MAX
from kv_types.namespace import Weights
from kv_types.outcomes import MissReason
from kv_types.page_keys import key_digests
from kv_wire.gen import cache_pb2
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.lying_sidecar import header, lying_sidecar, page, trailer
from tests.inference_worker.worlds import chain, namespace, pages_under, room_for
from tests.support.attach_site import AttachSite
from tests.support.directory import SlowDirectory
from tests.support.polling import wait_until

SPACE = namespace("registering")
KEYS = chain(SPACE, 2)
LONG_S = 20.0
SOON_S = 0.02


class Slow(Protocol):
    """A sidecar that registers nothing until it is told to."""

    client: Client
    failed: MissReason
    """What a look-up misses for once its registration has failed."""

    @property
    def asked(self) -> int:
        """Registrations that it has heard of."""
        ...

    def answer(self, *, fails: bool = False) -> None:
        """Answer those that wait, and all that come."""
        ...


class SlowAttach:
    failed = MissReason.STALE

    def __init__(self, site: AttachSite, directory: SlowDirectory, client: Client) -> None:
        self.site, self.client, self._directory = site, client, directory

    @property
    def asked(self) -> int:
        return self._directory.asked

    def answer(self, *, fails: bool = False) -> None:
        def set_on_the_loop(_: object) -> None:
            self._directory.fails = fails
            self._directory.answers.set()

        self.site.call(set_on_the_loop)


class SlowGrpc:
    failed = MissReason.UNREACHABLE

    def __init__(self) -> None:
        self.client: Client
        self.asked = 0
        self._fails = False
        self._answers = threading.Event()

    def answer(self, *, fails: bool = False) -> None:
        self._fails = fails
        self._answers.set()

    def registering(self) -> None:
        self.asked += 1
        assert self._answers.wait(LONG_S)
        if self._fails:
            raise RuntimeError("this one fails, as a test will have it")


def _get(request: cache_pb2.GetRequest) -> Iterator[bytes]:
    """What a sidecar answers that has all there is."""
    keys = request.chain.keys
    contents = pages_under(keys, PAGE_BYTES)
    yield header(len(contents), PAGE_BYTES)
    yield from (page(number, content) for number, content in enumerate(contents))
    yield trailer(len(contents))


PAGE_BYTES = 1024


@contextmanager
def _over_attach(folder: Path, connect: MakeClient) -> Iterator[SlowAttach]:
    directory = SlowDirectory()
    with AttachSite(folder, directory=directory) as site:
        client = connect(site.path.parent, prefault=False, deadline_s=LONG_S)
        assert client.wait_ready(deadline_s=LONG_S)
        slow = SlowAttach(site, directory, client)
        yield slow
        slow.answer()


@contextmanager
def _over_grpc(folder: Path, connect: MakeClient) -> Iterator[SlowGrpc]:
    del folder
    slow = SlowGrpc()
    with lying_sidecar(_get, slow.registering) as address:
        slow.client = connect(address, deadline_s=LONG_S)
        assert slow.client.wait_ready(deadline_s=LONG_S)
        yield slow
        slow.client.close()
        slow.answer()


TRANSPORTS: dict[str, Callable[..., object]] = {"shared_memory": _over_attach, "grpc": _over_grpc}


@pytest.fixture(params=list(TRANSPORTS))
def slow(request: pytest.FixtureRequest, tmp_path: Path, connect: MakeClient) -> Iterator[Slow]:
    """One of each transport."""
    with TRANSPORTS[request.param](tmp_path, connect) as made:  # type: ignore[attr-defined]
        yield made


def reason_of(
    client: Client, ns: RegisteredNamespace, *, deadline_s: float, keys: bytes = KEYS
) -> MissReason:
    """Why a look-up gets no more than it does."""
    with client.lease(ns, keys, deadline_s=deadline_s) as lease:
        return lease.reason


def test_look_ups_without_time_have_a_namespace_registered_once(slow: Slow) -> None:
    ns = slow.client.register(SPACE)
    for _ in range(20):
        assert reason_of(slow.client, ns, deadline_s=0.0) is MissReason.DEADLINE
    wait_until(lambda: slow.asked == 1, what="the registration to be heard of")
    slow.answer()
    assert reason_of(slow.client, ns, deadline_s=LONG_S) is not MissReason.DEADLINE
    assert slow.asked == 1, "the answer of the first was taken"
    assert slow.client.namespace_counts()[ns.label].missed[MissReason.DEADLINE] == 40


def test_who_gives_up_leaves_the_registration_to_the_next(slow: Slow) -> None:
    ns = slow.client.register(SPACE)
    for _ in range(3):
        assert reason_of(slow.client, ns, deadline_s=SOON_S) is MissReason.DEADLINE
    slow.answer()
    assert reason_of(slow.client, ns, deadline_s=LONG_S) is not MissReason.DEADLINE
    assert slow.asked == 1


def test_it_is_asked_for_again_once_it_has_failed(slow: Slow) -> None:
    ns = slow.client.register(SPACE)
    assert reason_of(slow.client, ns, deadline_s=0.0) is MissReason.DEADLINE
    wait_until(lambda: slow.asked == 1, what="the registration to be heard of")
    slow.answer(fails=True)
    assert reason_of(slow.client, ns, deadline_s=LONG_S) is slow.failed
    slow.answer()
    assert reason_of(slow.client, ns, deadline_s=LONG_S) not in (slow.failed, MissReason.DEADLINE)
    assert slow.asked == 2


def test_threads_that_wait_for_one_namespace_ask_once(slow: Slow) -> None:
    ns = slow.client.register(SPACE)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(reason_of, slow.client, ns, deadline_s=LONG_S) for _ in range(8)]
        wait_until(lambda: slow.asked == 1, what="the registration to be heard of")
        slow.answer()
        reasons = {one.result(LONG_S) for one in waiting}
    assert MissReason.DEADLINE not in reasons
    assert slow.asked == 1


def test_no_more_are_under_way_than_a_sidecar_lets_wait(slow: Slow) -> None:
    spaces = [namespace("many", weights=Weights(version=str(n))) for n in range(20)]
    handles = [slow.client.register(space) for space in spaces]
    for _ in range(2):
        for ns, space in zip(handles, spaces, strict=True):
            assert reason_of(slow.client, ns, deadline_s=0.0, keys=chain(space, 1)) is MissReason.DEADLINE
    most = LISTINGS_IN_FLIGHT_PER_CLIENT_MAX
    assert len(spaces) > most
    wait_until(
        lambda: slow.asked == most, what=lambda: f"{most} registrations, of which {slow.asked} were heard of,"
    )
    slow.answer()
    for ns, space in zip(handles, spaces, strict=True):
        found = reason_of(slow.client, ns, deadline_s=LONG_S, keys=chain(space, 1))
        assert found not in (MissReason.DEADLINE, MissReason.OVERLOADED)
    assert slow.asked == len(spaces)


def test_who_has_more_time_than_the_call_that_is_under_way_asks_again(connect: MakeClient) -> None:
    slow = SlowGrpc()
    with lying_sidecar(_get, slow.registering) as address, ThreadPoolExecutor(1) as pool:
        slow.client = connect(address, deadline_s=SOON_S)
        ns = slow.client.register(SPACE)
        try:
            assert reason_of(slow.client, ns, deadline_s=0.0) is MissReason.DEADLINE
            wait_until(lambda: slow.asked == 1, what="the registration to be heard of")
            waiting = pool.submit(reason_of, slow.client, ns, deadline_s=LONG_S)
            wait_until(lambda: slow.asked == 2, what="the second to be heard of")
        finally:
            slow.answer()
        assert waiting.result(LONG_S) is MissReason.NONE


@pytest.fixture
def attach(tmp_path: Path, connect: MakeClient) -> Iterator[SlowAttach]:
    with _over_attach(tmp_path, connect) as made:
        yield made


def test_without_any_time_it_is_served_once_the_sidecar_has_answered(attach: SlowAttach) -> None:
    ns = attach.client.register(SPACE)
    assert reason_of(attach.client, ns, deadline_s=0.0) is MissReason.DEADLINE
    attach.answer()
    wait_until(
        lambda: reason_of(attach.client, ns, deadline_s=0.0) is MissReason.ABSENT,
        what="a look-up without time to be answered",
    )
    room = room_for(KEYS, ns.page_bytes)
    assert getattr(attach.client.get(ns, KEYS, room, deadline_s=0.0), "reason", None) is MissReason.ABSENT
    assert attach.asked == 1


def test_a_new_life_knows_nothing_of_what_the_last_one_was_asked(tmp_path: Path, connect: MakeClient) -> None:
    with _over_attach(tmp_path, connect) as first:
        client = first.client
        ns = client.register(SPACE)
        assert reason_of(client, ns, deadline_s=0.0) is MissReason.DEADLINE
        wait_until(lambda: first.asked == 1, what="the registration to be heard of")
    wait_until(lambda: client.statistics()["transport"] != "shared_memory", what="the end to be seen")
    with AttachSite(tmp_path) as second:
        wait_until(lambda: client.statistics()["transport"] == "shared_memory", what="the next life")
        wait_until(
            lambda: reason_of(client, ns, deadline_s=0.0) is MissReason.ABSENT,
            what="a look-up to be answered",
        )
        assert second.call(lambda store: store.namespace_counts())[SPACE.id].look_ups > 0
        client.close()


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_is_forgotten_while_it_is_under_way_can_be_registered_again(
    attach: SlowAttach, is_answered: bool
) -> None:
    client = attach.client
    ns = client.register(SPACE)
    assert reason_of(client, ns, deadline_s=0.0) is MissReason.DEADLINE
    wait_until(lambda: attach.asked == 1, what="the registration to be heard of")
    if is_answered:
        attach.answer()
    client.forget(ns, deadline_s=LONG_S if is_answered else SOON_S)
    attach.answer()
    again = client.register(SPACE)
    assert reason_of(client, again, deadline_s=LONG_S) is MissReason.ABSENT
    assert client.statistics()["missed_pages_deadline"] == 2, "of the one that was forgotten"


def test_a_recording_is_told_how_many_look_ups_came_too_early(attach: SlowAttach) -> None:
    client, site = attach.client, attach.site
    ns = client.register(SPACE)
    assert reason_of(client, ns, deadline_s=0.0) is MissReason.DEADLINE, "not while nothing is recorded"
    site.call(lambda store: store.record(True))
    for _ in range(3):
        assert reason_of(client, ns, deadline_s=0.0) is MissReason.DEADLINE
    assert client.get(ns, KEYS, room_for(KEYS, ns.page_bytes), deadline_s=0.0)
    attach.answer()
    assert reason_of(client, ns, deadline_s=LONG_S) is MissReason.ABSENT
    wait_until(lambda: bool(site.looked), what="the look-up to be told")
    assert site.looked == [Looked(site.looked[0].namespace_number, key_digests(KEYS), 4)]
