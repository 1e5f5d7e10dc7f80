"""How channels are opened and servers bounded: gRPC options for both ends, and the calls of the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import grpc

from kv_types import limits
from kv_types.errors import InvalidArgumentError
from kv_types.ids import KEY_BYTES
from kv_wire.addresses import host_and_port
from kv_wire.allocator import teach_large_messages
from kv_wire.gen import cache_pb2
from kv_wire.transfer import GetPart, decode_get_response, fits_one_message

SERVICE = "stratakv.v1.Cache"
Options: TypeAlias = list[tuple[str, int | str]]

_READ_AHEAD_BYTES = 8 * limits.GRPC_CHUNK_BYTES


def channel_options() -> Options:
    """Options of every client channel.

    No retries (a deadline is the caller's, and half a put cannot be sent again), no HTTP proxy from the
    environment (it would catch loopback calls), a connection of its own (a new channel after a fork or a
    restart never inherits a broken one), reconnects within RECONNECT_BACKOFF_S_MAX. gRPC's "minimal backoff" is the
    time that one attempt to connect may take, greeting included: on a loaded machine that is more than a moment.
    """
    backoff_ms_max = int(limits.RECONNECT_BACKOFF_S_MAX * 1000)
    return [
        ("grpc.max_receive_message_length", limits.GRPC_MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", limits.GRPC_MESSAGE_BYTES_MAX),
        ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES),
        ("grpc.http2.max_frame_size", limits.GRPC_MESSAGE_BYTES_MAX),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", backoff_ms_max),
        ("grpc.max_reconnect_backoff_ms", backoff_ms_max),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def server_options() -> Options:
    """Options of the server: bounded messages, and no second daemon on the same port."""
    return [
        ("grpc.max_receive_message_length", limits.GRPC_MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", limits.GRPC_MESSAGE_BYTES_MAX),
        ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES),
        ("grpc.http2.max_frame_size", limits.GRPC_MESSAGE_BYTES_MAX),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.max_concurrent_streams", limits.GRPC_CALLS_PER_CONNECTION_MAX),
    ]


def check_address(address: str) -> str:
    """Return `address` if it is "unix:<path>" or "host:port"; raises InvalidArgumentError saying why not."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        if not path:
            raise InvalidArgumentError('the address "unix:" lacks a path; write unix:/path/to/grpc.sock')
        if len(path.encode()) > limits.SOCKET_PATH_BYTES_MAX:
            raise InvalidArgumentError(
                f"the socket path {path!r} has {len(path.encode())} bytes; Unix sockets take at most "
                f"{limits.SOCKET_PATH_BYTES_MAX}; choose a shorter runtime directory"
            )
        return address
    parts = host_and_port(address)
    if parts is None or parts[1] > limits.PORT_MAX:
        raise InvalidArgumentError(
            f"{address!r} is not an address; write host:port, [ipv6]:port or unix:/path"
        )
    return address


def open_channel(address: str) -> grpc.Channel:
    """Open a channel to "unix:<path>" or "host:port". Connects lazily; raises InvalidArgumentError only."""
    teach_large_messages()
    return grpc.insecure_channel(check_address(address), options=channel_options())


class CacheCalls:
    """The calls of stratakv.v1.Cache on one channel; bulk messages as bytes of `kv_wire.transfer`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.register_namespace = channel.unary_unary(
            f"/{SERVICE}/RegisterNamespace",
            request_serializer=cache_pb2.RegisterNamespaceRequest.SerializeToString,
            response_deserializer=cache_pb2.RegisterNamespaceResponse.FromString,
        )
        self.look_up = channel.unary_unary(
            f"/{SERVICE}/LookUp",
            request_serializer=cache_pb2.LookUpRequest.SerializeToString,
            response_deserializer=cache_pb2.LookUpResponse.FromString,
        )
        self.get_raw = channel.unary_stream(
            f"/{SERVICE}/Get",
            request_serializer=cache_pb2.GetRequest.SerializeToString,
            response_deserializer=None,
        )
        self.get_whole_raw = channel.unary_unary(
            f"/{SERVICE}/GetWhole",
            request_serializer=cache_pb2.GetRequest.SerializeToString,
            response_deserializer=None,
        )
        self.put_raw = channel.stream_unary(
            f"/{SERVICE}/Put",
            request_serializer=None,
            response_deserializer=cache_pb2.PutResponse.FromString,
        )
        self.status = channel.unary_unary(
            f"/{SERVICE}/Status",
            request_serializer=cache_pb2.StatusRequest.SerializeToString,
            response_deserializer=cache_pb2.StatusResponse.FromString,
        )

    def get(
        self, request: cache_pb2.GetRequest, *, deadline_s: float, page_bytes: int = 0
    ) -> Iterator[GetPart]:
        """Yield the decoded messages of a Get. Raises grpc.RpcError and ProtocolError while iterating.

        `page_bytes`, where the caller knows the namespace's, lets a short answer come as one message without the
        cost of a stream, which is a quarter of the time of a 1 MiB page.
        """
        pages = len(request.chain.keys) // KEY_BYTES - request.start
        if page_bytes and fits_one_message(pages, page_bytes):
            yield decode_get_response(self.get_whole_raw(request, timeout=deadline_s))
            return
        for message in self.get_raw(request, timeout=deadline_s):
            yield decode_get_response(message)
