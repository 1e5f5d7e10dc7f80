"""Forks workers of a fleet, so that many of them share one interpreter's start; run as `python -m tests.fleet.nursery`.

Sound because what is forked is nobody yet: this process imports, and never attaches, opens no channel and has one thread (it
checks). So no child inherits a mapping, a socket of a sidecar, a lock that is held or a thread that is gone, and what each of
them does is what a process does that was started anew. They end when this process does, whatever ends it, and not before.

Takes a line of JSON at a time, and answers with one: {"start": plan, "log": file} → {"pid"}, {"reap": pid} → {"status"} once it
has ended; the end of its input ends all workers, and {"ended": {pid: status}} is the last answer.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fleet.worker import FleetWorker, WorkerPlan
from tests.support.daemon import ROOT, clean_environment


class Nursery:
    """The process that forks, seen by whoever wants workers. A context manager that leaves none of them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.nursery"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environment({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}),
        )  # fmt: skip

    def start(self, plan: WorkerPlan, *, log: Path) -> int:
        """Fork a worker; returns its pid, which is nobody else's until it is reaped."""
        return int(self._ask({"start": asdict(plan), "log": str(log)})["pid"])

    def reap(self, pid: int) -> int:
        """Wait for a worker's end; returns its exit code, negative when a signal ended it."""
        return int(self._ask({"reap": pid})["status"])

    def end(self) -> Mapping[int, int]:
        """Let all workers end by themselves; returns their exit codes by pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        told = json.loads(self._process.stdout.readline())["ended"]
        self._process.wait(20)
        return {int(pid): status for pid, status in told.items()}

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def _serve() -> None:
    lives, ours = (
        os.pipe()
    )  # workers read the end of their life at one end; it comes when nobody holds the other
    living: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "start" in question:
            pid = _fork(WorkerPlan(**question["start"]), Path(question["log"]), lives=lives, ours=ours)
            living.add(pid)
            _say({"pid": pid})
        else:
            living.discard(question["reap"])
            _say({"status": _status_of(question["reap"])})
    os.close(ours)
    _say({"ended": {pid: _status_of(pid) for pid in living}})


def _fork(plan: WorkerPlan, log: Path, *, lives: int, ours: int) -> int:
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "what is forked has threads"
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.close(ours)
        os.dup2(lives, 0)
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        random.seed(plan.seed)
        FleetWorker(plan).run()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)  # the parent's own endings are not ours


def _status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _say(told: Mapping[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    _serve()
