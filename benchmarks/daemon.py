"""A sidecar of one's own for a measurement: started, awaited, ended by its process id, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from inference_worker.client import Client, ClientSettings

START_S_MAX = 60.0
STOP_S_MAX = 15.0


@contextlib.contextmanager
def own_sidecar(
    *, arena_bytes: int, flags: tuple[str, ...] = (), program: tuple[str, ...] = ("-m", "stratakv")
) -> Iterator[Path]:
    """Run `stratakv serve` on a private runtime directory and yield that directory.

    `program` is what Python runs, with the same arguments. Raises RuntimeError with the daemon's last output when it does
    not come up in START_S_MAX seconds.
    """
    with tempfile.TemporaryDirectory(prefix="stratakv-bench-") as directory:
        runtime = Path(directory) / "run"
        output = Path(directory) / "sidecar.log"
        command = [sys.executable, *program, "serve", "--runtime-dir", str(runtime)]
        command += ["--arena-size", str(arena_bytes), "--log-level", "warning", *flags]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STRATAKV_")}
        with output.open("wb") as sink:
            daemon = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        try:
            _await_sockets(daemon, runtime, output)
            yield runtime
        finally:
            _end(daemon)


@contextlib.contextmanager
def attached_client(runtime: Path) -> Iterator[Client]:
    """A client over shared memory, ready; raises RuntimeError when there is no sidecar to measure."""
    with Client.connect(runtime, settings=ClientSettings(deadline_s=10.0)) as client:
        if not client.wait_ready(deadline_s=30.0):
            raise RuntimeError(f"no sidecar to measure: {client.statistics()}")
        while client.statistics()["prefaulting"]:
            time.sleep(0.01)
        yield client


def _await_sockets(daemon: subprocess.Popen[bytes], runtime: Path, output: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not ((runtime / "attach.sock").exists() and (runtime / "grpc.sock").exists()):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the sidecar did not come up: {output.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
