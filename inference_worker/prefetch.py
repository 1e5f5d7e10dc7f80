"""Prefetches: requests to load pages into L2 that nobody waits for, a bounded number under way."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from inference_worker.deadlines import Deadline
from inference_worker.forking import GATE
from kv_wire.channel import CacheCalls
from kv_wire.gen import cache_pb2


class Prefetches:
    """Counts what is sent, answered, failed and dropped. Thread-safe."""

    def __init__(self, *, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._lock = threading.Lock()
        self._in_flight = 0
        self._sent = 0
        self._failed = 0
        self._dropped = 0

    def send(
        self,
        calls: CacheCalls,
        register: cache_pb2.RegisterNamespaceRequest,
        look_up: cache_pb2.LookUpRequest,
        *,
        deadline_s: float,
    ) -> bool:
        """Send one prefetch and return at once; False, and counted, when too many are under way.

        The namespace is registered first, by a call that is not waited for either: the sidecar may be a new one.
        """
        with self._lock:
            if self._in_flight >= self._in_flight_max or not GATE.enter(Deadline(0.0)):
                self._dropped += 1
                return False
            self._in_flight += 1
            self._sent += 1
        try:
            first = calls.register_namespace.future(register, timeout=deadline_s)
        except (grpc.RpcError, ValueError):
            self._ended(failed=True)  # ValueError: the channel was closed by another thread
            return False
        first.add_done_callback(lambda done: self._registered(done, calls, look_up, deadline_s))
        return True

    def statistics(self) -> dict[str, int]:
        """Counters by name."""
        with self._lock:
            return {
                "prefetches_in_flight": self._in_flight,
                "prefetches_sent": self._sent,
                "prefetches_failed": self._failed,
                "prefetches_dropped": self._dropped,
            }

    def _registered(
        self, done: grpc.Future[Any], calls: CacheCalls, look_up: cache_pb2.LookUpRequest, deadline_s: float
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            self._ended(failed=True)
            return
        try:
            second = calls.look_up.future(look_up, timeout=deadline_s)
        except (grpc.RpcError, ValueError):
            self._ended(failed=True)
            return
        second.add_done_callback(
            lambda ended: self._ended(failed=ended.cancelled() or ended.exception() is not None)
        )

    def _ended(self, *, failed: bool) -> None:
        with self._lock:
            self._in_flight -= 1
            self._failed += failed
        GATE.leave()
