"""A gRPC server that answers as a sidecar would, but for what a test makes it say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from kv_types.ids import LIFE_BYTES
from kv_types.namespace import Namespace
from kv_types.outcomes import MissReason
from kv_wire.channel import SERVICE
from kv_wire.checksum import checksum
from kv_wire.gen import cache_pb2
from kv_wire.transfer import Chunk, encode_get_response

_THREADS = 20
"""More than registrations may be under way."""
Get = Callable[[cache_pb2.GetRequest], Iterator[bytes]]


@contextmanager
def lying_sidecar(get: Get, registering: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Serve on a loopback port and yield host:port; `get` makes the messages of each Get.

    `registering` is called for each registration before it is answered, on a thread that may wait; what it raises fails it.
    """

    def register(raw: bytes, _: grpc.ServicerContext) -> bytes:
        registering()
        request = cache_pb2.RegisterNamespaceRequest.FromString(raw)
        answer = cache_pb2.RegisterNamespaceResponse(
            namespace_id=Namespace.from_canonical(request.canonical).id, life=bytes(LIFE_BYTES)
        )
        return bytes(answer.SerializeToString())

    def serve(raw: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        return get(cache_pb2.GetRequest.FromString(raw))

    def serve_whole(raw: bytes, _: grpc.ServicerContext) -> bytes:
        # Messages of protobuf that follow each other are one message with the parts of all.
        return b"".join(get(cache_pb2.GetRequest.FromString(raw)))

    handlers = {
        "GetWhole": grpc.unary_unary_rpc_method_handler(serve_whole),
        "RegisterNamespace": grpc.unary_unary_rpc_method_handler(register),
        "Get": grpc.unary_stream_rpc_method_handler(serve),
    }
    server = grpc.server(ThreadPoolExecutor(_THREADS))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def header(pages: int, page_bytes: int) -> bytes:
    """The first message of a Get."""
    return encode_get_response(header=cache_pb2.GetHeader(pages=pages, page_bytes=page_bytes))


def page(number: int, content: bytes, *, sent: bytes | None = None, at: int = 0) -> bytes:
    """A page in one chunk; `sent` travels instead of what its checksum was taken of."""
    data = memoryview(content if sent is None else sent)
    return encode_get_response(chunks=[Chunk(page=number, offset=at, data=data, checksum=checksum(content))])


def trailer(pages: int, reason: MissReason = MissReason.NONE) -> bytes:
    """The last message of a Get."""
    return encode_get_response(trailer=cache_pb2.GetTrailer(pages=pages, ended_by=int(reason)))  # type: ignore[arg-type]
