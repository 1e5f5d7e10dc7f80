"""Prefetches: requests to bring pages into L2 that nobody waits for, a bounded number under way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from cache_l2.attach_loads import LoadTicket
from cache_l2.attach_messages import LoadedPages
from inference_worker.deadlines import Deadline
from inference_worker.forking import GATE
from kv_types.errors import ProtocolError
from kv_types.loading import LoadDecision
from kv_types.outcomes import MissReason
from kv_wire.channel import CacheCalls
from kv_wire.gen import cache_pb2


class Prefetch(Protocol):
    """A prefetch that was asked for. Forget it, or call it off; a look-up that comes meanwhile shares its load."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it. Does not wait."""
        ...

    @property
    def load(self) -> LoadDecision | None:
        """What was chosen between loading and computing, once it is over and where that can be told."""
        ...

    def cancel(self) -> None:
        """Nobody wants the pages any more. What others wait for, or is on its way, still comes. Again does nothing."""
        ...


class LocalPrefetch:
    """A prefetch over the attach connection."""

    def __init__(self, ticket: LoadTicket) -> None:
        self._ticket = ticket
        self._is_cancelled = False

    @property
    def is_over(self) -> bool:
        """See Prefetch."""
        return self.failed is not None

    @property
    def load(self) -> LoadDecision | None:
        """See Prefetch."""
        with contextlib.suppress(ProtocolError):
            answer = self._ticket.answer()
            return answer.decision if isinstance(answer, LoadedPages) else None
        return None

    @property
    def failed(self) -> bool | None:
        """Whether it ended without an answer; None while it has not ended."""
        try:
            answer = self._ticket.answer()
        except ProtocolError:
            return True
        return None if answer is None else isinstance(answer, MissReason)

    def cancel(self) -> None:
        """See Prefetch."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._ticket.cancel()


class RemotePrefetch:
    """A prefetch over gRPC: two calls, one after the other. The sidecar has what it needs once the second was answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: grpc.Future[Any] | None = None
        self._is_cancelled = False
        self._is_over = False

    load = None
    """See Prefetch; it is not told."""

    @property
    def is_over(self) -> bool:
        """See Prefetch; the sidecar goes on by itself after that."""
        return self._is_over

    def cancel(self) -> None:
        """See Prefetch; what the sidecar was told already it carries out."""
        with self._lock:
            self._is_cancelled, call = True, self._call
        if call is not None:
            call.cancel()

    def goes_on_with(self, call: grpc.Future[Any]) -> None:
        """Take note of the call that is under way."""
        with self._lock:
            self._call, is_cancelled = call, self._is_cancelled
        if is_cancelled:
            call.cancel()

    def ended(self) -> None:
        """Take note of the end."""
        self._is_over = True


class Prefetches:
    """Counts what is sent, answered, failed and dropped. Thread-safe."""

    def __init__(self, *, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._lock = threading.Lock()
        self._local: list[LocalPrefetch] = []
        self._remote = 0
        self._sent = 0
        self._failed = 0
        self._dropped = 0

    def ask(self, begin: Callable[[], LoadTicket | MissReason]) -> LocalPrefetch | None:
        """Ask over the attach connection; None, and counted, when too many are under way, or it can't be asked now."""
        with self._lock:
            self._sweep()
            if self._is_full:
                self._dropped += 1
                return None
            ticket = begin()
            if isinstance(ticket, MissReason):
                self._dropped += 1
                return None
            self._sent += 1
            self._local.append(LocalPrefetch(ticket))
            return self._local[-1]

    def send(
        self,
        calls: CacheCalls,
        register: cache_pb2.RegisterNamespaceRequest,
        look_up: cache_pb2.LookUpRequest,
        *,
        deadline_s: float,
    ) -> RemotePrefetch | None:
        """Send one prefetch and return at once; None, and counted, when too many are under way.

        The namespace is registered first, by a call that is not waited for either: the sidecar may be a new one.
        """
        with self._lock:
            self._sweep()
            if self._is_full or not GATE.enter(Deadline(0.0)):
                self._dropped += 1
                return None
            self._remote += 1
            self._sent += 1
        prefetch = RemotePrefetch()
        try:
            first = calls.register_namespace.future(register, timeout=deadline_s)
        except (grpc.RpcError, ValueError):
            self._ended(prefetch, failed=True)  # ValueError: the channel was closed by another thread
            return None
        prefetch.goes_on_with(first)
        first.add_done_callback(lambda done: self._registered(prefetch, done, calls, look_up, deadline_s))
        return prefetch

    def statistics(self) -> dict[str, int]:
        """Counters by name."""
        with self._lock:
            self._sweep()
            return {
                "prefetches_in_flight": self._remote + len(self._local),
                "prefetches_sent": self._sent,
                "prefetches_failed": self._failed,
                "prefetches_dropped": self._dropped,
            }

    @property
    def _is_full(self) -> bool:
        return self._remote + len(self._local) >= self._in_flight_max

    def _sweep(self) -> None:
        """Forget those that are over."""
        ended = [(prefetch, prefetch.failed) for prefetch in self._local]
        self._local = [prefetch for prefetch, failed in ended if failed is None]
        self._failed += sum(failed is True for _, failed in ended)

    def _registered(
        self,
        prefetch: RemotePrefetch,
        done: grpc.Future[Any],
        calls: CacheCalls,
        look_up: cache_pb2.LookUpRequest,
        deadline_s: float,
    ) -> None:
        if done.cancelled() or done.exception() is not None:
            self._ended(prefetch, failed=True)
            return
        try:
            second = calls.look_up.future(look_up, timeout=deadline_s)
        except (grpc.RpcError, ValueError):
            self._ended(prefetch, failed=True)
            return
        prefetch.goes_on_with(second)
        second.add_done_callback(
            lambda ended: self._ended(prefetch, failed=ended.cancelled() or ended.exception() is not None)
        )

    def _ended(self, prefetch: RemotePrefetch, *, failed: bool) -> None:
        prefetch.ended()
        with self._lock:
            self._remote -= 1
            self._failed += failed
        GATE.leave()
