"""A small HTTP server on loopback that answers GET /metrics: bounded requests, bounded connections, no framework.

It runs on the event loop because the store may be read on that thread only.
"""

from __future__ import annotations

import asyncio
import contextlib

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kv_types import limits
from kv_types.errors import EndpointInUseError
from sidecar.logs import logger

LOOPBACK = "127.0.0.1"
_TEXT = "text/plain; charset=utf-8"
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

_log = logger("metrics")


class MetricsServer:
    """Serves one registry. Every connection carries one request and is then closed."""

    def __init__(
        self, registry: CollectorRegistry, *, request_s_max: float = limits.METRICS_REQUEST_S_MAX
    ) -> None:
        self._registry = registry
        self._request_s_max = request_s_max
        self._server: asyncio.Server | None = None
        self._open = 0

    @property
    def address(self) -> str:
        """host:port that it listens on; empty while it does not."""
        if self._server is None or not self._server.sockets:
            return ""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def start(self, port: int) -> None:
        """Listen on a port of loopback, 0 for any; raises EndpointInUseError."""
        try:
            self._server = await asyncio.start_server(
                self._serve, LOOPBACK, port, limit=limits.METRICS_REQUEST_BYTES_MAX, reuse_port=False
            )
        except OSError as error:
            raise EndpointInUseError(
                f"cannot serve metrics on port {port} of {LOOPBACK}: {error.strerror}; "
                "choose another --metrics-port, 0 for any free one, or off"
            ) from error

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(self._request_s_max):
                if self._open > limits.METRICS_CONNECTIONS_MAX:
                    await _answer(writer, 503, _TEXT, b"too many connections\n")
                else:
                    await self._one_request(reader, writer)
        except (OSError, TimeoutError) as error:
            _log.debug("a metrics connection broke", reason=repr(error))
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _answer(writer, 400, _TEXT, b"not an HTTP request, or its head is too long\n")
            return
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target, _, protocol = rest.partition(" ")
        if not protocol.startswith("HTTP/1."):
            await _answer(writer, 400, _TEXT, b"not an HTTP/1 request\n")
        elif method not in {"GET", "HEAD"}:
            await _answer(writer, 405, _TEXT, b"only GET and HEAD\n")
        elif target.partition("?")[0] != "/metrics":
            await _answer(writer, 404, _TEXT, b"metrics are under /metrics\n")
        else:
            encode, content_type = choose_encoder(_accept(lines[1:]))
            await _answer(writer, 200, content_type, encode(self._registry), with_body=method == "GET")


def _accept(header_lines: list[str]) -> str:
    for line in header_lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "accept":
            return value.strip()
    return ""


async def _answer(
    writer: asyncio.StreamWriter, status: int, content_type: str, body: bytes, *, with_body: bool = True
) -> None:
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode("latin-1") + (body if with_body else b""))
    await writer.drain()
