"""RegisterNamespace over gRPC: calls that go on when nobody waits for them any more, one a namespace, a bounded number in all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import grpc

from inference_worker.deadlines import Deadline
from inference_worker.forking import GATE
from inference_worker.namespaces import RegisteredNamespace
from kv_types.errors import DeadlineExceededError, SidecarUnreachableError, UnknownNamespaceError
from kv_types.ids import NO_LIFE, LifeId, Stamp
from kv_types.limits import LISTINGS_IN_FLIGHT_PER_CLIENT_MAX
from kv_wire.channel import CacheCalls
from kv_wire.conversions import stamp_from_wire
from kv_wire.gen import cache_pb2

_Result = TypeVar("_Result")


class Channel(Protocol):
    """What a registration needs of the sidecar's channel."""

    registrations: RegistrationsUnderWay
    register_s: float
    """How long a registration may go on by itself."""

    def calling(self, deadline: Deadline) -> contextlib.AbstractContextManager[CacheCalls]:
        """Yield the calls; what they raise comes out as StrataError."""
        ...

    def note_life(self, life: bytes) -> None:
        """Take note of the life that answered."""
        ...


class RegistrationsUnderWay:
    """Those of one channel that go on by themselves. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0

    def begin(
        self, calls: CacheCalls, request: cache_pb2.RegisterNamespaceRequest, *, timeout_s: float
    ) -> RegistrationCall | None:
        """Send one and return at once; None where as many as may be are under way, or a fork holds calls back.

        Raises ValueError when another thread has closed the channel.
        """
        with self._lock:
            if self._under_way >= LISTINGS_IN_FLIGHT_PER_CLIENT_MAX or not GATE.enter(Deadline(0.0)):
                return None
            self._under_way += 1
        try:
            sent = calls.register_namespace.future(request, timeout=timeout_s)
        except BaseException:
            self._ended()
            raise
        sent.add_done_callback(lambda _: self._ended())
        return RegistrationCall(sent)

    def _ended(self) -> None:
        with self._lock:
            self._under_way -= 1
        GATE.leave()


class RegistrationCall:
    """One that was sent. Thread-safe."""

    def __init__(self, sent: grpc.Future[cache_pb2.RegisterNamespaceResponse]) -> None:
        self._sent = sent

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return bool(self._sent.done())

    def wait(self, deadline: Deadline) -> cache_pb2.RegisterNamespaceResponse:
        """Return the answer; it may be waited for again after DeadlineExceededError. Raises grpc.RpcError once it has failed."""
        try:
            return self._sent.result(timeout=deadline.remaining_s())
        except grpc.FutureTimeoutError as error:
            raise DeadlineExceededError("the sidecar has not registered the namespace yet") from error
        except grpc.FutureCancelledError as error:  # the channel was closed
            raise SidecarUnreachableError("the client's channel was closed") from error


class RemoteRegistration:
    """One namespace's, over the lives of the sidecar. Thread-safe."""

    def __init__(self, channel: Channel, namespace: RegisteredNamespace) -> None:
        self._channel = channel
        self._namespace = namespace
        self._life: bytes | None = None
        self._lock = threading.Lock()
        self._asked: RegistrationCall | None = None
        """Under way, or not looked at since it ended."""

    @property
    def life(self) -> LifeId:
        """The life that has registered it last, NO_LIFE before the first."""
        return NO_LIFE if self._life is None else LifeId(self._life)

    def renew(self, deadline: Deadline) -> Stamp | None:
        """Register by a call of now, which tells the sidecar's position."""
        with self._channel.calling(deadline) as calls:
            response = calls.register_namespace(self._request(), timeout=deadline.remaining_s())
        self._take(response)
        return stamp_from_wire(response.stamp) if response.HasField("stamp") else None

    def with_registration(self, deadline: Deadline, attempt: Callable[[], _Result]) -> _Result:
        """Run `attempt`; register before the first one, and again when the sidecar came back without knowing us."""
        if self._life is None:
            self._ensure(deadline)
        try:
            return attempt()
        except UnknownNamespaceError:
            self._ensure(deadline)
            return attempt()

    def _ensure(self, deadline: Deadline) -> None:
        """Register within the deadline, by a call that goes on after it: whoever comes next takes its answer."""
        response = None
        try:
            response = self._answer(deadline)
        except DeadlineExceededError:  # of the call, which somebody had begun with less time, or ours
            if deadline.passed:
                raise
        if response is not None:
            self._take(response)
        elif deadline.passed:
            raise DeadlineExceededError("as many registrations are under way as may be, or a fork is")
        else:
            self.renew(deadline)

    def _answer(self, deadline: Deadline) -> cache_pb2.RegisterNamespaceResponse | None:
        """Wait for the call that is under way, begun here where none is; None where none may be."""
        with self._channel.calling(deadline) as calls:
            with self._lock:
                if self._asked is None:
                    self._asked = self._channel.registrations.begin(
                        calls,
                        self._request(),
                        timeout_s=max(self._channel.register_s, deadline.remaining_s()),
                    )
                asked = self._asked
            if asked is None:
                return None
            try:
                return asked.wait(deadline)
            finally:
                with self._lock:
                    if self._asked is asked and asked.is_over:
                        self._asked = None

    def _request(self) -> cache_pb2.RegisterNamespaceRequest:
        return cache_pb2.RegisterNamespaceRequest(
            canonical=self._namespace.identified.canonical, page_bytes=self._namespace.page_bytes
        )

    def _take(self, response: cache_pb2.RegisterNamespaceResponse) -> None:
        self._life = response.life
        self._channel.note_life(response.life)
