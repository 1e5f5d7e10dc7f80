"""The gRPC server: where it listens, health, reflection, and its end."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kv_types.errors import ConfigError, EndpointInUseError
from kv_wire.channel import SERVICE, server_options
from kv_wire.gen import admin_pb2, cache_pb2
from sidecar.endpoint import check_port_free, private_files


class GrpcServer:
    """Serves Cache and Admin on a Unix socket and, where asked for, on a TCP port, where Admin refuses every call.

    gRPC can't tell a Unix socket's peer (no binding and no credential type of its reads SO_PEERCRED). What keeps
    other users out is the kernel's own check at connect: the socket is 0600, in a directory that is 0700 and ours.
    """

    def __init__(
        self, cache: grpc.GenericRpcHandler[bytes, bytes], admin: grpc.GenericRpcHandler[bytes, bytes]
    ) -> None:
        self._server = grpc.aio.server(options=server_options())
        self._server.add_generic_rpc_handlers((cache, admin))
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = (
            cache_pb2.DESCRIPTOR.services_by_name["Cache"].full_name,
            admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(services, self._server)
        self.addresses: list[str] = []

    async def start(self, unix_path: Path, *, tcp: str | None) -> None:
        """Bind and serve; raises EndpointInUseError or ConfigError naming the address."""
        if tcp is not None:
            self.addresses.append(self._listen_tcp(tcp))
        # gRPC unlinks at its end the name that it bound, whoever's socket that is by then: it gets one that is gone.
        bound = unix_path.with_suffix(".new")
        with private_files():
            self._bind(f"unix:{bound}")
        bound.replace(unix_path)
        self.addresses.insert(0, f"unix:{unix_path}")
        await self._server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop_serving(self) -> None:
        """Tell health checks that this server goes away."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Close the sockets and end calls that still run after `grace_s` seconds."""
        await self._server.stop(grace_s)

    def _listen_tcp(self, address: str) -> str:
        check_port_free(address)
        port = self._bind(address)
        return f"{address.rpartition(':')[0]}:{port}"

    def _bind(self, address: str) -> int:
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise EndpointInUseError(f"cannot listen on {address}: {error}") from error
        if port == 0:
            raise ConfigError(f"cannot listen on {address}: gRPC refused the address")
        return port
