"""A real `stratakv serve` for tests: started, watched, signalled and ended by its pid, its output kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support.polling import wait_until
from tests.support.processes import heeding_interrupts

ROOT = Path(__file__).resolve().parents[2]
START_S_MAX = 30.0
END_S_MAX = 20.0


class Daemon:
    """One daemon process on one runtime directory. `lines` are its JSON log lines."""

    def __init__(
        self,
        runtime_dir: Path,
        *flags: str,
        arena: str = "64MiB",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.runtime_dir = runtime_dir
        self._output = runtime_dir.with_suffix(".log")
        command = ["serve", "--runtime-dir", str(runtime_dir), "--arena-size", arena, "--log-format", "json"]
        with self._output.open("ab") as sink:
            self._begin = sink.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stratakv", *command, *flags],
                cwd=ROOT, env=clean_environment(environment), stdout=sink, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def grpc_address(self) -> str:
        return f"unix:{self.runtime_dir / 'grpc.sock'}"

    @property
    def output(self) -> str:
        with self._output.open("rb") as source:
            source.seek(self._begin)
            return source.read().decode(errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    def line(self, event: str) -> dict[str, Any]:
        """The first log line of an event; AssertionError with the whole output when there is none."""
        for line in self.lines:
            if line["event"] == event:
                return line
        raise AssertionError(f"no line {event!r} in:\n{self.output}")

    def wait_ready(self) -> Daemon:
        """Wait until it says that it is ready; fails at once, with its output, when it ends instead."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.output}")
            return '"event": "ready"' in self.output

        wait_until(ready, timeout_s=START_S_MAX, what="the daemon's readiness")
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_end(self) -> int:
        """Wait for its end; returns the exit code, negative when a signal ended it."""
        return self.process.wait(END_S_MAX)

    def stop(self) -> int:
        """SIGTERM and wait; SIGKILL when that does not end it."""
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
            try:
                return self.wait_end()
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.wait_end()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait_end()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def private_servers(runtime_dir: Path) -> list[int]:
    """Pids of the Redis servers of sidecars of a runtime directory, whoever is their parent now."""
    mark = str(runtime_dir / "redis-")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words and "redis-server" in words[0] and any(mark in word for word in words):
            found.append(process.pid)
    return found


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of ours, and `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STRATAKV_")}
    return {**kept, **(extra or {})}


def run_command(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """Run `stratakv` to its end."""
    arguments_of: Sequence[str] = [sys.executable, "-m", "stratakv", *arguments]
    return subprocess.run(
        arguments_of, cwd=ROOT, env=clean_environment(environment), capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


def read_status(runtime_dir: Path) -> dict[str, Any]:
    """What the sidecar of a runtime directory says of itself."""
    done = run_command("status", "--json", "--runtime-dir", str(runtime_dir))
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def start_command(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `stratakv`, as from a terminal: Ctrl-C reaches it."""
    with heeding_interrupts():
        return subprocess.Popen(
            [sys.executable, "-m", "stratakv", *arguments],
            cwd=ROOT, env=clean_environment(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
