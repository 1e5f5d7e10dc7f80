"""The gRPC service stratakv.v1.Cache over one store: decodes, checks, streams; decides nothing about pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from kv_types import limits
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES, namespace_id
from kv_wire.channel import SERVICE
from kv_wire.conversions import (
    chain_keys,
    cost_from_wire,
    decision_to_wire,
    put_to_wire,
    row_to_wire,
    stamp_to_wire,
)
from kv_wire.gen import cache_pb2
from kv_wire.transfer import decode_put_request, fits_one_message
from sidecar.serving.calls import Calls, Context, parse, wants_compression, within_idle_limit
from sidecar.serving.get_messages import get_messages, whole_message
from sidecar.serving.put_stream import PutStream
from sidecar.serving.served_store import LeasedPages, ServedNamespace, ServedStore

_END = grpc.aio.EOF  # type: ignore[attr-defined]
_TURN_S = 0.005
"""A handler that has kept the event loop for so long lets others run."""
_CANCELLATION_S = 0.01
_COMPRESSED_CHUNK_BYTES = 64 * 1024
"""Chunks that are compressed on the event loop are small, so that none blocks it for long."""


class CacheService:
    """Serves one store. `status` builds the answer of Status; all calls run on the store's own thread."""

    def __init__(
        self,
        store: ServedStore,
        calls: Calls,
        status: Callable[[], cache_pb2.StatusResponse],
        *,
        idle_s: float = limits.GRPC_IDLE_S_MAX,
        load_s: float = limits.CALL_DEADLINE_S_DEFAULT,
    ) -> None:
        """`load_s`: how long one call waits at most for what this node lacks."""
        self._store = store
        self._calls = calls
        self._status = status
        self._idle_s = idle_s
        self._load_s = load_s

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the handlers of all methods; requests and answers are raw bytes, so that bad ones can be named."""
        unary = grpc.unary_unary_rpc_method_handler
        bodies = {
            "RegisterNamespace": unary(self._calls.guard("RegisterNamespace", self.register_namespace)),
            "LookUp": unary(self._calls.guard("LookUp", self.look_up)),
            "Status": unary(self._calls.guard("Status", self.status)),
            "Get": grpc.unary_stream_rpc_method_handler(self._calls.guard("Get", self.get)),
            "GetWhole": unary(self._calls.guard("GetWhole", self.get_whole)),
            "Put": grpc.stream_unary_rpc_method_handler(self._calls.guard("Put", self.put)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, bodies)

    async def register_namespace(self, raw: bytes, context: Context) -> bytes:
        """Make a namespace known, to the fleet's directory first: the stamp that is told is that of pages under it."""
        request = cache_pb2.RegisterNamespaceRequest()
        parse(request, raw)
        if not 1 <= len(request.canonical) <= limits.NAMESPACE_BYTES_MAX:
            raise LimitExceededError(
                f"a canonical namespace has 1 to {limits.NAMESPACE_BYTES_MAX} bytes; got {len(request.canonical)}"
            )
        if not 1 <= request.page_bytes <= limits.PAGE_BYTES_MAX:
            raise LimitExceededError(f"page_bytes is 1 to {limits.PAGE_BYTES_MAX}; got {request.page_bytes}")
        known = self._store.register_namespace(request.canonical, request.page_bytes)
        is_listed = await self._store.list_namespace(known.id)
        answer = cache_pb2.RegisterNamespaceResponse(
            namespace_id=known.id,
            life=self._store.life,
            stamp=stamp_to_wire(self._store.stamp() if is_listed else None),
        )
        return _answer(answer.SerializeToString(), context)

    async def look_up(self, raw: bytes, context: Context) -> bytes:
        """Look up every row. The stamp is loaded first, so that it is right for what is computed on top (rule R1)."""
        request = cache_pb2.LookUpRequest()
        parse(request, raw)
        if not 1 <= len(request.rows) <= limits.LOOK_UP_ROWS_MAX:
            raise LimitExceededError(
                f"a look-up has 1 to {limits.LOOK_UP_ROWS_MAX} rows; got {len(request.rows)}"
            )
        namespace = self._store.served_namespace(namespace_id(request.namespace_id)).id
        stamp = self._store.stamp()
        answer = cache_pb2.LookUpResponse(stamp=stamp_to_wire(stamp))
        chains = [chain_keys(row.keys) for row in request.rows]
        compute = cost_from_wire(request.compute) if request.HasField("compute") else None
        pending = (
            self._store.prefetch(namespace, chains, compute=compute)
            if request.prefetch
            else [0] * len(chains)
        )
        turn_ends = time.perf_counter() + _TURN_S
        for keys, may_come in zip(chains, pending, strict=True):
            outcome = self._store.look_up_chain(namespace, keys)
            answer.rows.append(row_to_wire(outcome, pages_asked=len(keys) // KEY_BYTES, pending=may_come))
            if time.perf_counter() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.perf_counter() + _TURN_S
        return _answer(answer.SerializeToString(), context)

    async def status(self, raw: bytes, context: Context) -> bytes:
        """Tell everything about the sidecar."""
        parse(cache_pb2.StatusRequest(), raw)
        return _answer(self._status().SerializeToString(), context)

    async def get(self, raw: bytes, context: Context) -> None:
        """Stream the longest servable prefix behind `start`; its pages stay leased until the last is sent."""
        request, namespace = self._get_request(raw)
        chunk_bytes = _chunk_bytes(request.chunk_bytes)
        compression = wants_compression(context)
        if compression is not None and namespace.page_bytes > limits.GRPC_COMPRESSION_BYTES_MIN:
            context.set_compression(compression)
            chunk_bytes = min(chunk_bytes, _COMPRESSED_CHUNK_BYTES)
        async with self._leased(request, namespace, context) as (leased, header):
            await self._send(leased, request.start, header, chunk_bytes, context)

    async def get_whole(self, raw: bytes, context: Context) -> bytes:
        """Answer a short Get in one message."""
        request, namespace = self._get_request(raw)
        pages = len(request.chain.keys) // KEY_BYTES - request.start
        if not fits_one_message(pages, namespace.page_bytes):
            raise LimitExceededError(
                f"{pages} pages of {namespace.page_bytes} bytes do not fit one message: at most "
                f"{limits.GRPC_MESSAGE_CHUNKS_MAX} pages and {limits.GRPC_CHUNK_BYTES} bytes do; call Get"
            )
        async with self._leased(request, namespace, context) as (leased, header):
            body = whole_message(leased.views, start=request.start, header=header, instance=leased.instance)
        # A large body is left as it is: compressing it would hold up the event loop.
        return body if len(body) > _COMPRESSED_CHUNK_BYTES else _answer(body, context)

    def _get_request(self, raw: bytes) -> tuple[cache_pb2.GetRequest, ServedNamespace]:
        request = cache_pb2.GetRequest()
        parse(request, raw)
        namespace = self._store.served_namespace(namespace_id(request.namespace_id))
        chain_keys(request.chain.keys, start=request.start)
        return request, namespace

    @asynccontextmanager
    async def _leased(
        self, request: cache_pb2.GetRequest, namespace: ServedNamespace, context: Context
    ) -> AsyncIterator[tuple[LeasedPages, cache_pb2.GetHeader]]:
        compute = cost_from_wire(request.compute) if request.HasField("compute") else None
        stamp = self._store.stamp()  # before the look-up (rule R1)
        leased = await self._store.lease_chain(
            namespace.id,
            request.chain.keys,
            start=request.start,
            wait_s=self._wait_s(context),
            compute=compute,
        )
        try:
            header = cache_pb2.GetHeader(
                pages=len(leased.views),
                page_bytes=namespace.page_bytes,
                ended_by=int(leased.ended_by),  # type: ignore[arg-type]
                stamp=stamp_to_wire(stamp),
                pages_l3=leased.pages_l3,
                load=decision_to_wire(leased.load),
            )
            yield leased, header
        finally:
            leased.release()

    def _wait_s(self, context: Context) -> float:
        """How long this call may wait for what this node lacks: a part of its own time, so that what came can be sent."""
        remaining_s = context.time_remaining()
        return (
            self._load_s if remaining_s is None else min(self._load_s, remaining_s * limits.L3_CALL_FRACTION)
        )

    async def put(self, _: object, context: Context) -> bytes:
        """Store the pages of one chain as they arrive."""
        stream: PutStream | None = None
        try:
            while (raw := await self._read(context)) is not _END:
                part = decode_put_request(raw)
                if part.header is not None:
                    if stream is not None:
                        raise InvalidArgumentError(
                            "a second header came; a put has one, in its first message"
                        )
                    stream = PutStream(self._store, part.header)
                if stream is None:
                    raise InvalidArgumentError("a put begins with a header; the first message has none")
                for chunk in part.chunks:
                    stream.take(chunk)
                    if stream.refused:
                        break
                if stream.refused:
                    break
            if stream is None or not stream.decided:
                # A call that its caller cancelled looks like a stream that ended, until the cancellation arrives.
                await asyncio.sleep(_CANCELLATION_S)
            if stream is None:
                raise InvalidArgumentError("a put begins with a header; the stream ended without one")
            outcomes = stream.finish()
        finally:
            if stream is not None:
                stream.close()
        answer = cache_pb2.PutResponse(pages=[put_to_wire(outcome) for outcome in outcomes])
        return _answer(answer.SerializeToString(), context)

    async def _send(
        self,
        leased: LeasedPages,
        start: int,
        header: cache_pb2.GetHeader,
        chunk_bytes: int,
        context: Context,
    ) -> None:
        messages = get_messages(
            leased.views, start=start, header=header, instance=leased.instance, chunk_bytes=chunk_bytes
        )
        for message in messages:
            await within_idle_limit(
                context.write(message), what="the reader of this Get", idle_s=self._idle_s
            )

    async def _read(self, context: Context) -> bytes:
        raw: bytes = await within_idle_limit(
            context.read(), what="the writer of this Put", idle_s=self._idle_s
        )
        return raw


def _chunk_bytes(asked: int) -> int:
    if asked == 0:
        return limits.GRPC_CHUNK_BYTES
    if not limits.GRPC_CHUNK_BYTES_MIN <= asked <= limits.GRPC_CHUNK_BYTES:
        raise LimitExceededError(
            f"chunk_bytes is {limits.GRPC_CHUNK_BYTES_MIN} to {limits.GRPC_CHUNK_BYTES}, or 0 for the server's "
            f"choice; got {asked}"
        )
    return asked


def _answer(body: bytes, context: Context) -> bytes:
    """Return the answer's bytes, compressed on their way where that was asked for and pays."""
    if len(body) > limits.GRPC_COMPRESSION_BYTES_MIN:
        compression = wants_compression(context)
        if compression is not None:
            context.set_compression(compression)
    return body
