"""A process that has imported vLLM and forks engines on demand: an import takes most of an engine's start.

Run as `python -m tests.vllm.nursery DESCRIPTOR`; the class starts it. Each message on that socket is one engine: its
environment as JSON, with the descriptors of its wire and of its log. Back come its pid, and at its end its exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.own_engine import START_S_MAX, environment_of

_MESSAGE_BYTES = 1 << 18
_EXIT_CODE_S_MAX = 10.0

PRELOADED = (
    "vllm.engine.arg_utils",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.llama",
)


class Forked:
    """An engine's process as a Popen shows it, though it is a child of the nursery."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = self._nursery.exit_code(self.pid, wait_s=0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        wait_s = _EXIT_CODE_S_MAX if timeout is None else timeout
        if self.returncode is None:
            self.returncode = self._nursery.exit_code(self.pid, wait_s=wait_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked engine", wait_s)
        return self.returncode


class Nursery:
    """Starts with the first engine that is asked for, and ends with the block, or with this process."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._exit_codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def spawn(self, wire: int, log: int, environment: Mapping[str, str]) -> Forked:
        """Fork an engine that listens on a wire; as `own_engine.Spawn`."""
        if self._socket is None:
            self._start()
        assert self._socket is not None
        socket.send_fds(self._socket, [json.dumps(dict(environment)).encode()], [wire, log])
        deadline = time.monotonic() + START_S_MAX
        while (left_s := deadline - time.monotonic()) > 0:
            told = self._receive(left_s)
            if told is not None and "began" in told:
                return Forked(self, told["began"])
        raise AssertionError(f"no engine was forked: {self._log.read_text(errors='replace')[-3000:]}")

    def exit_code(self, pid: int, *, wait_s: float) -> int | None:
        """The exit code of an engine; None when it doesn't end in time."""
        deadline = time.monotonic() + wait_s
        while pid not in self._exit_codes:
            left_s = deadline - time.monotonic()
            if self._receive(max(left_s, 0.0)) is None and left_s <= 0:
                return None
        return self._exit_codes[pid]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait(_EXIT_CODE_S_MAX)

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self._log.open("ab") as sink, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.vllm.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, pass_fds=(theirs.fileno(),),
                env=environment_of(),
            )  # fmt: skip

    def _receive(self, wait_s: float) -> dict[str, Any] | None:
        assert self._socket is not None
        with self._lock:
            if not select.select([self._socket], [], [], wait_s)[0]:
                return None
            data = self._socket.recv(_MESSAGE_BYTES)
        assert data, f"the nursery has ended: {self._log.read_text(errors='replace')[-3000:]}"
        told: dict[str, Any] = json.loads(data)
        if "ended" in told:
            self._exit_codes[told["ended"]] = told["code"]
        return told


def _become_engine(environment: Mapping[str, str], wire: int, log: int) -> None:
    from benchmarks.engine_process import serve

    code = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # as the environment has it, not as it was found before
        code = serve(wire)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Import, then fork until the socket closes."""
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    orders = socket.socket(fileno=int(sys.argv[1]))
    children: dict[int, int] = {}
    while True:
        ready = select.select([orders.fileno(), *children], [], [])[0]
        for descriptor in ready:
            if descriptor in children:
                pid = children.pop(descriptor)
                os.close(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                orders.send(json.dumps({"ended": pid, "code": code}).encode())
        if orders.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE_BYTES, 2)
            if not data:
                return 0
            wire, log = descriptors
            pid = os.fork()
            if pid == 0:
                orders.close()
                _become_engine(json.loads(data), wire, log)
            children[os.pidfd_open(pid)] = pid
            os.close(wire)
            os.close(log)
            orders.send(json.dumps({"began": pid}).encode())


if __name__ == "__main__":
    sys.exit(main())
