"""Child processes of the demo: started, listened to with a deadline, shown as progress, and always ended."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console

REPOSITORY = Path(__file__).resolve().parent.parent


class DemoError(RuntimeError):
    """The demo cannot go on; its text says why and what to look at."""


class Children:
    """Every process that the demo started, so that none outlives it."""

    def __init__(self, console: Console, logs: Path) -> None:
        self._console = console
        self._logs = logs
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self, name: str, arguments: Sequence[str], *, listen: bool, program: str = sys.executable
    ) -> subprocess.Popen[str]:
        """Start a process, of Python unless told otherwise, in a session of its own (a Ctrl-C reaches the demo alone,
        which then ends it).

        What it writes to stderr (and stdout, unless listened to) goes to `<logs>/<name>.log`.
        """
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        quiet = {
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            # Threads that spin while they wait for each other double a prefill's time once a core is shared.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if listen else log,
                stderr=log,
                text=True,
                cwd=REPOSITORY,
                env={**os.environ, **quiet, "PYTHONPATH": path},
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> Path:
        """Where a child's messages go."""
        return self._logs / f"{name}.log"

    def listen(self, name: str, arguments: Sequence[str], *, title: str, deadline_s: float) -> dict[str, Any]:
        """Run a child that prints a JSON object a line; show its stages, return its last object.

        Raises DemoError when it fails, talks nonsense or takes longer than `deadline_s`.
        """
        process = self.start(name, arguments, listen=True)
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue(maxsize=64)
        threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
        began = time.monotonic()
        stage, last = "starting", None
        with self._console.status("") as status:
            while True:
                passed = time.monotonic() - began
                if passed > deadline_s:
                    self._stop(process)
                    raise DemoError(f"{title}: not done after {deadline_s:.0f} s (it was {stage})")
                status.update(f"{title}: {stage} … [dim]{passed:.0f} s[/dim]")
                try:
                    line = lines.get(timeout=0.25)
                except queue.Empty:
                    continue
                if line is None:
                    break
                message = self._message(name, line)
                stage = str(message.get("stage", stage))
                last = message
        if process.wait(timeout=10) != 0 or last is None:
            raise DemoError(f"{title}: ended with code {process.returncode}\n{self.tail(name)}")
        return last

    def _message(self, name: str, line: str) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except json.JSONDecodeError as error:
            raise DemoError(f"{name} printed what is no JSON: {line[:200]!r}") from error
        if not isinstance(message, dict):
            raise DemoError(f"{name} printed what is no JSON object: {line[:200]!r}")
        return message

    def tail(self, name: str, *, lines: int = 15) -> str:
        """Return the end of a child's messages."""
        log = self.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, *, keep: Sequence[subprocess.Popen[str]] = ()) -> None:
        """End whatever still runs, except `keep`: ask first, insist after ten seconds. Last started, first
        ended.
        """
        for process in reversed(self._processes):
            if process not in keep:
                self._stop(process)

    @staticmethod
    def _stop(process: subprocess.Popen[str]) -> None:
        if process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _read_lines(source: IO[str], lines: queue.Queue[str | None]) -> None:
    with source:
        for line in source:
            lines.put(line)
    lines.put(None)
