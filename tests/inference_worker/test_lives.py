"""A sidecar that comes late, stands still, dies and returns: no call outlasts its deadline, no worker restarts."""

from __future__ import annotations

import signal
import threading
from functools import partial

import pytest

from inference_worker.client import Client, RegisteredNamespace
from kv_types.errors import ClosedError
from kv_types.outcomes import (
    KNOWN,
    Hit,
    LookUpOutcome,
    Miss,
    MissReason,
    PutOutcome,
    Refused,
    RefuseReason,
    Stored,
    Tier,
)
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import all_stored, chain, namespace, pages_under, room_for
from tests.support import timing
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess

DEADLINE_S = 0.5


timed = partial(timing.timed, deadline_s=DEADLINE_S)


def put(client: Client, ns: RegisteredNamespace, keys: bytes) -> list[PutOutcome]:
    return put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes))


def get(client: Client, ns: RegisteredNamespace, keys: bytes) -> tuple[LookUpOutcome, list[bytes]]:
    room = room_for(keys, ns.page_bytes)
    outcome = client.get(ns, keys, room)
    return outcome, [bytes(page) for page in room]


@pytest.fixture(params=["shared_memory", "grpc"])
def shared_memory(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "shared_memory")


def test_c20_a_worker_that_starts_before_its_sidecar(
    sidecar: SidecarProcess, connect: MakeClient, shared_memory: bool
) -> None:
    client = connect(sidecar.runtime, shared_memory=shared_memory, deadline_s=DEADLINE_S)
    ns = client.register(namespace())
    keys = chain(ns.identified, 3)
    assert timed(lambda: client.match(ns, keys)) == Miss(MissReason.UNREACHABLE)
    assert timed(lambda: client.lease(ns, keys)).reason is MissReason.UNREACHABLE
    assert timed(lambda: put(client, ns, keys)) == [Refused(RefuseReason.UNREACHABLE)] * 3
    with timed(lambda: client.begin(ns)) as request:
        assert request.stamp is None
        assert request.refused is RefuseReason.UNREACHABLE
        sidecar.start()
        wait_until(lambda: all_stored(put(client, ns, keys)), what="the first put")
        assert (
            request.put(keys, pages_under(keys, ns.page_bytes)) == [Refused(RefuseReason.UNREACHABLE)] * 3
        ), "what was computed since before the first stamp is not stored under a later one"
    outcome, pages = get(client, ns, keys)
    assert outcome == Hit(3, Tier.L2)
    assert pages == pages_under(keys, ns.page_bytes)
    counts = client.namespace_counts()[ns.label]
    assert counts.missed == {MissReason.UNREACHABLE: 3}
    assert counts.requested == counts.l2 + 3


def test_c20_the_sidecar_is_killed_in_mid_put_and_returns(
    sidecar: SidecarProcess, connect: MakeClient, shared_memory: bool
) -> None:
    sidecar.start()
    client = connect(sidecar.runtime, shared_memory=shared_memory, deadline_s=5.0)
    ns = client.register(namespace(layers=64))
    enough = threading.Event()
    outcomes: list[list[PutOutcome]] = []
    failures: list[BaseException] = []

    def serve() -> None:
        seed = 0
        while not enough.is_set():
            seed += 1
            keys = chain(ns.identified, 8, seed=seed)
            try:
                outcomes.append(put(client, ns, keys))
                outcome, pages = get(client, ns, keys)
                hits = outcome.pages if isinstance(outcome, Hit) else 0
                assert pages[:hits] == pages_under(keys, ns.page_bytes)[:hits]
            except BaseException as error:
                failures.append(error)
                return

    worker = threading.Thread(target=serve)
    worker.start()
    try:
        wait_until(lambda: len(outcomes) > 3, what="puts")
        sidecar.kill()
        wait_until(lambda: isinstance(outcomes[-1][-1], Refused), what="a refused put")
        sidecar.start()
        before = len(outcomes)
        wait_until(lambda: len(outcomes) > before and all_stored(outcomes[-1]), what="puts in the new life")
    finally:
        enough.set()
        worker.join()
    assert not failures
    reasons = {one.reason for batch in outcomes for one in batch if isinstance(one, Refused)}
    assert reasons <= {
        RefuseReason.UNREACHABLE, RefuseReason.CLOSED, RefuseReason.DEADLINE, RefuseReason.UNLISTED,
    }  # fmt: skip
    assert client.statistics()["reconnects"] == 1


def test_c34_stopped_then_killed_then_started_again(
    sidecar: SidecarProcess, connect: MakeClient, shared_memory: bool
) -> None:
    sidecar.start()
    client = connect(sidecar.runtime, shared_memory=shared_memory, deadline_s=DEADLINE_S)
    ns = client.register(namespace())
    keys, fresh = chain(ns.identified, 3), chain(ns.identified, 3, seed=1)
    wait_until(lambda: all_stored(put(client, ns, keys)), what="the first put")
    sidecar.pause()
    if shared_memory:
        # Slots that were granted before it stood still are filled; nobody can tell yet.
        assert timed(lambda: put(client, ns, chain(ns.identified, 3, seed=2))) == [Stored()] * 3
        wait_until(
            lambda: timed(lambda: client.match(ns, keys)) == Miss(MissReason.STALE),
            what="the freshness to run out",
        )
        outcome, _ = timed(lambda: get(client, ns, keys))
        assert outcome == Miss(MissReason.STALE)
        assert timed(lambda: client.lease(ns, keys)).reason is MissReason.STALE
    else:
        assert timed(lambda: client.match(ns, keys)) == Miss(MissReason.DEADLINE)
        assert timed(lambda: get(client, ns, keys))[0] == Miss(MissReason.DEADLINE)
    assert timed(lambda: put(client, ns, fresh)) == [Refused(RefuseReason.DEADLINE)] * 3
    late = client.register(namespace("late"))
    assert isinstance(timed(lambda: client.match(late, keys)), Miss)
    sidecar.kill()
    answers = {timed(lambda: client.match(ns, keys)) for _ in range(20)}
    assert answers <= {
        Miss(reason) for reason in (MissReason.UNREACHABLE, MissReason.STALE, MissReason.DEADLINE)
    }
    sidecar.start()
    wait_until(lambda: all_stored(timed(lambda: put(client, ns, fresh))), what="a put in the new life")
    assert client.match(ns, keys) == Miss(MissReason.ABSENT), (
        "a new life knows nothing of the old one's pages"
    )
    assert get(client, ns, fresh) == (Hit(3, Tier.L2), pages_under(fresh, ns.page_bytes))
    assert client.statistics()["reconnects"] == 1


def test_a_paused_sidecar_that_goes_on_is_used_again_without_a_reconnect(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.start()
    client = connect(sidecar.runtime, deadline_s=DEADLINE_S)
    ns = client.register(namespace())
    keys = chain(ns.identified, 2)
    put(client, ns, keys)
    sidecar.pause()
    known = put(client, ns, keys)
    was_fresh = client.match(ns, keys) == Hit(2, Tier.L2)
    assert known == [KNOWN] * 2 or not was_fresh, "what is known costs no round trip"
    wait_until(lambda: client.match(ns, keys) == Miss(MissReason.STALE), what="the freshness to run out")
    sidecar.signal(signal.SIGCONT)
    wait_until(lambda: client.match(ns, keys) == Hit(2, Tier.L2), what="freshness")
    fresh = chain(ns.identified, 2, seed=1)
    wait_until(lambda: all_stored(put(client, ns, fresh)), what="a put")
    assert client.statistics()["reconnects"] == 0


def test_leases_of_an_ended_life_stay_readable(sidecar: SidecarProcess, connect: MakeClient) -> None:
    sidecar.start()
    client = connect(sidecar.runtime)
    ns = client.register(namespace(layers=2))
    keys = chain(ns.identified, 3)
    put(client, ns, keys)
    lease = client.lease(ns, keys)
    view = client.lease(ns, keys)[1]
    with client.begin(ns) as request:
        sidecar.kill()
        wait_until(lambda: client.statistics()["transport"] == "none", what="the loss to be noticed")
        sidecar.start()
        assert client.wait_ready(deadline_s=10.0)
        assert [bytes(page) for page in lease] == pages_under(keys, ns.page_bytes)
        assert bytes(view) == pages_under(keys, ns.page_bytes)[1]
        outcomes = request.put(keys, pages_under(keys, ns.page_bytes))
        assert outcomes[0] == Refused(RefuseReason.STAMP_FOREIGN), "a stamp of another log is never stored"
    lease.release()
    assert all_stored(put(client, ns, keys))


def test_accounts_go_on_over_the_sidecars_lives(sidecar: SidecarProcess, connect: MakeClient) -> None:
    sidecar.start()
    client = connect(sidecar.runtime)
    ns = client.register(namespace())
    keys = chain(ns.identified, 4)
    put(client, ns, keys[:64])
    get(client, ns, keys)
    sidecar.kill()
    wait_until(lambda: client.match(ns, keys) == Miss(MissReason.UNREACHABLE), what="the loss to be noticed")
    get(client, ns, keys)
    sidecar.start()
    assert client.wait_ready(deadline_s=10.0)
    get(client, ns, keys)
    counts = client.namespace_counts()[ns.label]
    assert (counts.look_ups, counts.requested, counts.l2) == (3, 12, 2)
    assert counts.missed == {MissReason.ABSENT: 6, MissReason.UNREACHABLE: 4}
    statistics = client.statistics()
    assert (statistics["attaches"], statistics["losses"], statistics["reconnects"]) == (2, 1, 1)


def test_a_draining_sidecar_is_left_and_its_successor_found(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.flags += ("--drain-time", "600s")
    sidecar.start()
    client = connect(sidecar.runtime)
    ns = client.register(namespace())
    keys = chain(ns.identified, 2)
    put(client, ns, keys)
    assert sidecar.terminate() == 0, "it did not wait in vain for its client to leave"
    found = timed(lambda: client.match(ns, keys))
    assert found in (Miss(MissReason.CLOSED), Miss(MissReason.UNREACHABLE))
    sidecar.start()
    wait_until(lambda: all_stored(put(client, ns, keys)), what="a put in the new life")


def test_calls_may_wait_for_a_reconnection_within_their_deadline(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.start()
    client = connect(sidecar.runtime, wait_for_reconnect=True, deadline_s=20.0)
    ns = client.register(namespace())
    keys = chain(ns.identified, 2)
    sidecar.kill()
    wait_until(lambda: client.statistics()["transport"] == "none", what="the loss to be noticed")
    outcome = timed(lambda: client.get(ns, keys, room_for(keys, ns.page_bytes), deadline_s=DEADLINE_S))
    assert outcome == Miss(MissReason.UNREACHABLE)
    sidecar.start(wait=False)
    assert all_stored(put(client, ns, keys)), "the call waited for the new life"


def test_threads_that_call_while_the_client_closes_get_an_answer_or_closed_error(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.start()
    for _ in range(5):
        client = connect(sidecar.runtime)
        ns = client.register(namespace())
        keys = chain(ns.identified, 2)
        put(client, ns, keys)
        callers = [Caller(client, ns, keys) for _ in range(4)]
        for caller in callers:
            caller.start()
        wait_until(lambda callers=callers: min(one.calls for one in callers) > 2, what="calls")  # type: ignore[misc]
        client.close()
        for caller in callers:
            caller.join()
        assert [one.failure for one in callers] == [None] * 4


class Caller(threading.Thread):
    """Leases and puts until the client is closed; keeps any other failure."""

    def __init__(self, client: Client, ns: RegisteredNamespace, keys: bytes) -> None:
        super().__init__()
        self._client, self._ns, self._keys = client, ns, keys
        self.calls = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        pages = pages_under(self._keys, self._ns.page_bytes)
        try:
            while True:
                with self._client.lease(self._ns, self._keys) as lease:
                    assert [bytes(page) for page in lease] in (pages, [])
                put(self._client, self._ns, self._keys)
                self.calls += 1
        except ClosedError:
            return
        except BaseException as error:
            self.failure = error


def test_a_sidecar_that_is_slow_to_greet_is_waited_for_within_the_deadline(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.start()
    client = connect(sidecar.runtime, shared_memory=False, deadline_s=10.0)
    ns = client.register(namespace("greeting"))
    keys = chain(ns.identified, 2)
    sidecar.pause()
    outcomes: list[LookUpOutcome] = []
    call = threading.Thread(target=lambda: outcomes.append(get(client, ns, keys)[0]))
    call.start()
    call.join(0.7)
    assert call.is_alive(), f"given up as {outcomes} though nine seconds were left"
    sidecar.signal(signal.SIGCONT)
    call.join()
    assert outcomes == [Miss(MissReason.ABSENT)]
