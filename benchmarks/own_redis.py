"""Redis servers of one's own for a measurement: started on a Unix socket and a free port, ended by their process ids."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from sidecar.log import die_with_parent
from sidecar.log.private_redis import find_redis_server

START_S_MAX = 20.0
_POLL_S = 0.02
_PORT_MAX = 65_535
_BUS_PORT_AFTER = 10_000
"""A cluster node's bus listens so many ports above its clients' port."""


@dataclass(frozen=True)
class OwnRedis:
    """A running server; `client` is for looking at it from outside."""

    socket_path: Path
    port: int
    client: Redis

    @property
    def url(self) -> str:
        """Where it is."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.client.info("server")["process_id"])

    def cpu_s(self) -> float:
        """Processor time of the server up to now, in the kernel too."""
        told = self.client.info("cpu")
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

    def script_us(self) -> tuple[int, float]:
        """Calls of scripts up to now, and the µs spent in them."""
        stats = self.client.info("commandstats")
        found = [stats.get(f"cmdstat_{name}", {"calls": 0, "usec": 0}) for name in ("evalsha", "eval")]
        return sum(each["calls"] for each in found), float(sum(each["usec"] for each in found))


@contextlib.contextmanager
def own_redis(
    *, follows: OwnRedis | None = None, options: Sequence[str] = (), is_cluster_node: bool = False
) -> Iterator[OwnRedis]:
    """Run a server, or a replica in sync with another one; raises RuntimeError when there is none, or it fails."""
    binary = find_redis_server()
    if binary is None:
        raise RuntimeError("no redis-server to measure: install one, or the extra stratakv[redis-server]")
    with tempfile.TemporaryDirectory(prefix="stratakv-bench-") as directory:
        path, port = Path(directory) / "s", _free_port(room_above=_BUS_PORT_AFTER if is_cluster_node else 0)
        command = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), str(binary)]
        command += ["--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(path), "--dir", directory]
        command += ["--save", "", "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
        command += options
        if follows is not None:
            command += ["--replicaof", f"127.0.0.1 {follows.port}"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client = Redis(unix_socket_path=str(path))
        try:
            _wait(client, in_sync=follows is not None)
            yield OwnRedis(path, port, client)
        finally:
            client.close()
            server.terminate()
            server.wait()


def _wait(client: Redis, *, in_sync: bool) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(RedisError):
            if not in_sync or client.info("replication")["master_link_status"] == "up":
                client.ping()
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"a redis-server did not come up within {START_S_MAX} s")


def _free_port(*, room_above: int = 0) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port + room_above <= _PORT_MAX:
            return port
