"""A PageStore over gRPC for tests, by nothing but the generated stub's messages and the wire's codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import grpc

from kv_types import limits
from kv_types.errors import BufferMismatchError, InvalidArgumentError
from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, LookUpOutcome, Miss, PutOutcome, Tier
from kv_types.page_keys import pack_keys
from kv_types.page_layout import PageLayout
from kv_wire.channel import CacheCalls
from kv_wire.checksum import Checksum
from kv_wire.conversions import (
    miss_reason_from_wire,
    put_from_wire,
    row_from_wire,
    stamp_from_wire,
    stamp_to_wire,
)
from kv_wire.gen import cache_pb2
from kv_wire.page_batches import put_messages
from kv_wire.status import from_rpc_error

DEADLINE_S = 20.0
_Answer = TypeVar("_Answer")


class RemoteStore:
    """One channel's view of a sidecar. Raises kv_types errors as every PageStore does."""

    def __init__(
        self, channel: grpc.Channel, *, chunk_bytes: int = limits.GRPC_CHUNK_BYTES, whole: bool = False
    ) -> None:
        """`whole` asks for short answers as one message, as workers do."""
        self.calls = CacheCalls(channel)
        self._chunk_bytes = chunk_bytes
        self._whole = whole
        self._page_bytes: dict[NamespaceId, int] = {}

    def register(self, namespace: Namespace) -> NamespaceId:
        page_bytes = PageLayout.of(namespace).page_bytes
        request = cache_pb2.RegisterNamespaceRequest(canonical=namespace.canonical, page_bytes=page_bytes)
        answer = _checked(lambda: self.calls.register_namespace(request, timeout=DEADLINE_S))
        assert answer.namespace_id == namespace.id
        self._page_bytes[namespace.id] = page_bytes
        return namespace.id

    def look_up(self, namespace: NamespaceId, keys: Sequence[PageKey]) -> LookUpOutcome:
        request = cache_pb2.LookUpRequest(
            namespace_id=namespace, rows=[cache_pb2.Chain(keys=pack_keys(keys))]
        )
        answer = _checked(lambda: self.calls.look_up(request, timeout=DEADLINE_S))
        (row,) = answer.rows
        return row_from_wire(row)

    def get(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        destinations: Sequence[memoryview],
        *,
        start: int = 0,
    ) -> LookUpOutcome:
        packed = pack_keys(keys)
        self._check_buffers(namespace, destinations, len(keys) - start, writable=True)
        request = cache_pb2.GetRequest(
            namespace_id=namespace,
            chain=cache_pb2.Chain(keys=packed),
            start=start,
            chunk_bytes=self._chunk_bytes,
        )
        try:
            return self._receive(request, destinations, self._page_bytes.get(namespace, 0))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def _receive(
        self, request: cache_pb2.GetRequest, destinations: Sequence[memoryview], page_bytes: int
    ) -> LookUpOutcome:
        digests: dict[int, Checksum] = {}
        trailer = None
        for part in self.calls.get(
            request, deadline_s=DEADLINE_S, page_bytes=page_bytes if self._whole else 0
        ):
            assert trailer is None, "nothing comes after the trailer"
            for chunk in part.chunks:
                into = destinations[chunk.page - request.start].cast("B")
                into[chunk.offset : chunk.offset + chunk.data.nbytes] = chunk.data
                digest = digests.setdefault(chunk.page, Checksum())
                digest.update(chunk.data)
                if chunk.offset + chunk.data.nbytes == into.nbytes:
                    assert digest.value == chunk.checksum, f"page {chunk.page} is damaged"
                else:
                    assert chunk.checksum == 0
            trailer = part.trailer
        assert trailer is not None, "the stream was cut"
        assert sorted(digests) == list(range(request.start, request.start + trailer.pages))
        reason = miss_reason_from_wire(trailer.ended_by)
        return Hit(trailer.pages, Tier.L2, reason) if trailer.pages else Miss(reason)

    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        stamp: Stamp | None,
        start: int = 0,
    ) -> list[PutOutcome]:
        packed = pack_keys(keys)
        if not 0 <= start <= len(keys):
            raise InvalidArgumentError(f"start {start} of {len(keys)} pages")
        self._check_buffers(namespace, sources, len(keys) - start, writable=False)
        header = cache_pb2.PutHeader(
            namespace_id=namespace,
            chain=cache_pb2.Chain(keys=packed),
            start=start,
            stamp=stamp_to_wire(stamp),
        )
        views = [source.cast("B") for source in sources]
        answer = _checked(
            lambda: self.calls.put_raw(
                put_messages(header, views, page_bytes=self._page_bytes.get(namespace, 1)), timeout=DEADLINE_S
            )
        )
        return [put_from_wire(page) for page in answer.pages]

    def stamp(self) -> Stamp | None:
        answer = self.status()
        return stamp_from_wire(answer.stamp) if answer.HasField("stamp") else None

    def statistics(self) -> Mapping[str, int]:
        counts: dict[str, int] = {"requested_pages": 0}
        for space in self.status().namespaces:
            for name in ("requested_pages", "l1_pages", "l2_pages", "l3_pages"):
                counts[name] = counts.get(name, 0) + getattr(space, name)
            for reason, pages in space.missed_pages.items():
                counts[f"missed_pages_{reason}"] = counts.get(f"missed_pages_{reason}", 0) + pages
        return counts

    def status(self) -> cache_pb2.StatusResponse:
        answer: cache_pb2.StatusResponse = _checked(
            lambda: self.calls.status(cache_pb2.StatusRequest(), timeout=DEADLINE_S)
        )
        return answer

    def _check_buffers(
        self, namespace: NamespaceId, buffers: Sequence[memoryview], count: int, *, writable: bool
    ) -> None:
        page_bytes = self._page_bytes.get(namespace)
        if len(buffers) != count:
            raise BufferMismatchError(f"{len(buffers)} buffers for {count} pages")
        for buffer in buffers:
            if page_bytes is not None and buffer.nbytes != page_bytes:
                raise BufferMismatchError(f"a page has {page_bytes} bytes")
            if not buffer.c_contiguous or (writable and buffer.readonly):
                raise BufferMismatchError("a buffer is contiguous, and writable where it is written to")


def _checked(call: Callable[[], _Answer]) -> _Answer:
    try:
        return call()
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
