"""A real `stratakv serve` in a process of its own, started, stopped, killed and started again by its pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemon import ROOT, START_S_MAX, clean_environment
from tests.support.polling import wait_until
from tests.support.processes import wait_until_stopped


class SidecarProcess:
    """One runtime directory and the daemon that serves it now, if any. `program`: what Python runs in place of ours."""

    def __init__(
        self,
        runtime: Path,
        *,
        arena_bytes: int = 64 * 2**20,
        flags: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "stratakv"),
    ) -> None:
        self.runtime = runtime
        self._log = runtime.with_name(runtime.name + ".log")
        self._arena_bytes = arena_bytes
        self.flags = flags
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The daemon's pid."""
        assert self._process is not None, "the daemon was not started"
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start the daemon; with `wait`, return when both sockets answer to connections."""
        command = [
            sys.executable, *self._program, "serve", "--runtime-dir", str(self.runtime),
            "--arena-size", str(self._arena_bytes), "--log-level", "warning", *self.flags,
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=clean_environment()
            )
        if wait:
            self.wait_up()

    def wait_up(self) -> None:
        """Wait until both sockets answer to connections; fails, with its output, when the daemon ends instead."""
        wait_until(self._is_up, timeout_s=START_S_MAX, what="the sidecar's start")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the daemon."""
        os.kill(self.pid, number)

    def pause(self) -> None:
        """SIGSTOP, and wait until the kernel says that it stands still."""
        self.signal(signal.SIGSTOP)
        wait_until_stopped(self.pid)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self.wait()

    def terminate(self) -> int:
        """SIGTERM, and wait for the end; returns the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        assert self._process is not None, "the daemon was not started"
        return self._process.wait(START_S_MAX)

    def end(self) -> None:
        """Make sure that nothing is left running, stopped daemons too."""
        if self._process is not None:
            self.kill()

    def output(self) -> str:
        """What the daemon printed in all its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the sidecar ended at its start:\n{self.output()[-4000:]}")
        # the attach socket is opened last; the kernel's table shows the gRPC socket by the name that it was bound under
        return _listens(self.runtime / "attach.sock") and (self.runtime / "grpc.sock").exists()


@contextmanager
def sidecar_process(
    *, start: bool = True, arena_bytes: int = 64 * 2**20, flags: tuple[str, ...] = ()
) -> Iterator[SidecarProcess]:
    """A daemon on a runtime directory of its own, whose path is short enough for sockets; ended with the block."""
    with tempfile.TemporaryDirectory(prefix="skv-") as directory:
        daemon = SidecarProcess(Path(directory) / "run", arena_bytes=arena_bytes, flags=flags)
        try:
            if start:
                daemon.start()
            yield daemon
        finally:
            daemon.end()


def _listens(path: Path) -> bool:
    # The inode of a listening socket is in the kernel's table with the flag of a listener (00010000).
    for line in Path("/proc/net/unix").read_text().splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[7] == str(path) and fields[3] == "00010000":
            return True
    return False
