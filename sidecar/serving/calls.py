"""What every gRPC call passes through: the limit on calls at once, errors to status, latency, draining."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from kv_types import limits
from kv_types.errors import ClosedError, DeadlineExceededError, OverloadedError, ProtocolError, StrataError
from kv_wire.status import to_status
from sidecar.logs import logger

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
UnaryBody: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]
StreamBody: TypeAlias = Callable[[bytes, Context], Awaitable[None]]
Observer: TypeAlias = Callable[[str, str, float], None]
"""Called at a call's end with its method, its status code's name and its seconds."""

_COMPRESSIONS = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
COMPRESSION_KEY = "stratakv-compression"
"""Request metadata with which a caller asks for compressed answers."""

_log = logger("grpc")


class Calls:
    """Guards the calls of a service; `running` of them at most `calls_max`, none once draining."""

    def __init__(self, observe: Observer, *, calls_max: int = limits.GRPC_CONCURRENT_CALLS_MAX) -> None:
        self._observe = observe
        self._calls_max = calls_max
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.running = 0
        self.refused = 0

    def guard(self, method: str, body: StreamBody | UnaryBody) -> Callable[[Any, Context], Awaitable[Any]]:
        """Wrap the body of one method."""

        async def guarded(request: Any, context: Context) -> Any:  # noqa: RET503 - abort always raises
            began, code = time.perf_counter(), grpc.StatusCode.OK
            trailing: tuple[tuple[str, str], ...] = ()
            try:
                with self._admitted():
                    return await body(request, context)
            except StrataError as error:
                code, text, trailing = to_status(error)
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except grpc.aio.InternalError:
                # What was written or read came to nothing: the caller, or its deadline, has ended the call meanwhile, and
                # the cancellation of this task is still on its way. There is nobody to be told.
                code = grpc.StatusCode.CANCELLED
                return None
            except Exception:  # noqa: BLE001 - the boundary: a bug ends one call and is logged, not the daemon
                code, text = grpc.StatusCode.INTERNAL, "internal error; the sidecar's log says more"
                _log.exception("a call failed in a way that it must not", method=method)
            finally:
                self._observe(method, code.name, time.perf_counter() - began)
            # Last, because a peer that reads nothing holds this back until its deadline.
            await context.abort(code, text, trailing)

        return guarded

    async def drain(self, drain_s: float) -> bool:
        """Refuse new calls and wait for those running; False when some still ran after `drain_s` seconds."""
        self._draining = True
        try:
            async with asyncio.timeout(drain_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._draining:
            raise ClosedError("the sidecar is shutting down; connect again when it is back")
        if self.running >= self._calls_max:
            self.refused += 1
            raise OverloadedError(
                f"{self.running} calls are running, and no more than {self._calls_max} may at once; try again later"
            )
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()


def parse(into: Message, raw: bytes) -> None:
    """Parse `raw` into an empty message; raises ProtocolError."""
    try:
        into.ParseFromString(raw)
    except DecodeError as error:
        raise ProtocolError(f"not a valid {into.DESCRIPTOR.name}: {error}") from error


async def within_idle_limit(step: Awaitable[Any], *, what: str, idle_s: float) -> Any:
    """Await one step of a streaming peer; raises DeadlineExceededError when it takes longer than `idle_s`."""
    try:
        async with asyncio.timeout(idle_s):
            return await step
    except TimeoutError:
        raise DeadlineExceededError(f"{what} did not move for {idle_s:g} s, so the call was ended") from None


def wants_compression(context: Context) -> grpc.Compression | None:
    """Return the compression that the caller asked for, if any; names that we do not know count as none."""
    for key, value in context.invocation_metadata() or ():
        if key == COMPRESSION_KEY and isinstance(value, str):
            return _COMPRESSIONS.get(value)
    return None
