"""The gate that gRPC calls and forks share, and prefetches, which pass it without being waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from inference_worker.deadlines import Deadline
from inference_worker.forking import GATE, CallGate
from inference_worker.prefetch import Prefetches
from kv_types.limits import FORK_WAIT_S_MAX
from kv_wire.gen import cache_pb2
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess
from tests.support.timing import timed


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def test_a_fork_waits_for_calls_in_flight() -> None:
    gate = CallGate()
    assert gate.enter(Deadline(0.0))
    thread, _ = in_thread(gate.before_fork)
    wait_until(lambda: gate.forking, what="the fork to begin")
    assert thread.is_alive()
    gate.leave()
    thread.join(FORK_WAIT_S_MAX)
    assert not thread.is_alive()


def test_calls_wait_for_a_fork_within_their_deadline() -> None:
    gate = CallGate()
    gate.before_fork()
    assert not gate.enter(Deadline(0.0))
    thread, answers = in_thread(lambda: gate.enter(Deadline(10.0)))
    gate.after_in_parent()
    thread.join(5.0)
    assert answers == [True]
    assert gate.calls == 1


def test_a_fork_waits_a_bounded_time_for_calls_that_do_not_end() -> None:
    gate = CallGate()
    gate.enter(Deadline(0.0))
    began = time.monotonic()
    timed(gate.before_fork, deadline_s=FORK_WAIT_S_MAX)
    assert time.monotonic() - began >= FORK_WAIT_S_MAX


def test_a_child_begins_with_an_open_gate() -> None:
    gate = CallGate()
    gate.enter(Deadline(0.0))
    gate.before_fork()
    gate.after_in_child()
    assert gate.enter(Deadline(0.0))
    gate.leave()
    gate.leave()
    assert gate.calls == 0


class SilentCalls:
    """Calls whose answers come when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Any], None]] = []
        self.requests: list[Any] = []
        self.cancels = 0
        self.register_namespace = self.look_up = self

    def future(self, request: object, *, timeout: float) -> SilentCalls:
        self.requests.append(request)
        return self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.waiting.append(callback)

    def cancel(self) -> None:
        self.cancels += 1

    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def answer(self) -> None:
        self.waiting.pop(0)(self)


def test_prefetches_under_way_are_bounded_and_counted() -> None:
    prefetches, calls = Prefetches(in_flight_max=2), SilentCalls()
    register, look_up = cache_pb2.RegisterNamespaceRequest(), cache_pb2.LookUpRequest(prefetch=True)

    def send() -> bool:
        return prefetches.send(calls, register, look_up, deadline_s=1.0) is not None  # type: ignore[arg-type]

    before = GATE.calls
    assert [send(), send(), send()] == [True, True, False]
    assert GATE.calls == before + 2
    calls.answer()
    calls.answer()
    assert calls.requests == [register, register, look_up, look_up]
    assert not send()
    calls.answer()
    assert send()
    for _ in range(3):
        calls.answer()
    assert prefetches.statistics() == {
        "prefetches_in_flight": 0, "prefetches_sent": 3, "prefetches_failed": 0, "prefetches_dropped": 2,
    }  # fmt: skip
    assert GATE.calls == before


def test_without_a_slower_tier_nothing_is_prefetched(
    shared_sidecar: SidecarProcess, connect: MakeClient
) -> None:
    client = connect(shared_sidecar.runtime)
    ns = client.register(namespace("prefetch"))
    keys = chain(ns.identified, 4)
    put_fresh(client, ns, keys[:64], pages_under(keys[:64], ns.page_bytes))
    assert client.prefetch(ns, keys[:64]) is None
    assert client.prefetch(ns, keys) is None
    assert client.statistics()["prefetches_sent"] == client.statistics()["prefetches_dropped"] == 0


def test_a_prefetch_over_grpc_asks_and_is_over(shared_sidecar: SidecarProcess, connect: MakeClient) -> None:
    client = connect(shared_sidecar.runtime, shared_memory=False)
    ns = client.register(namespace("prefetch"))
    prefetch = client.prefetch(ns, chain(ns.identified, 4))
    assert prefetch is not None
    wait_until(lambda: prefetch.is_over, what="the prefetch's end")
    statistics = client.statistics()
    assert (statistics["prefetches_sent"], statistics["prefetches_failed"]) == (1, 0)
    assert statistics["prefetches_in_flight"] == 0


def test_a_prefetch_that_is_called_off_ends() -> None:
    prefetches, calls = Prefetches(in_flight_max=2), SilentCalls()
    register, look_up = cache_pb2.RegisterNamespaceRequest(), cache_pb2.LookUpRequest(prefetch=True)
    prefetch = prefetches.send(calls, register, look_up, deadline_s=1.0)  # type: ignore[arg-type]
    assert prefetch is not None
    prefetch.cancel()
    prefetch.cancel()
    assert calls.cancels == 2
    calls.answer()
    assert calls.cancels == 3, "the call that follows is called off at once"
    calls.answer()
    assert prefetch.is_over


def test_a_prefetch_from_nobody_fails_in_the_background(connect: MakeClient) -> None:
    client = connect("127.0.0.1:9")
    ns = client.register(namespace())
    assert client.prefetch(ns, chain(ns.identified, 1))
    wait_until(lambda: client.statistics()["prefetches_failed"] == 1, what="the prefetch's end")
