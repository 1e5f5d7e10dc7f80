"""A sidecar's L2 half as a process of its own, for tests that stop or kill it, and the handle that tests hold."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from cache_l2.reader import AttachedArena
from tests.support.processes import wait_until_stopped


def main() -> None:
    """Serve until a line comes on stdin; answer `statistics` with a line of JSON."""
    from tests.support.attach_site import AttachSite

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    path, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    with AttachSite(path.parent, **settings) as site:
        print("ready", flush=True)
        for line in sys.stdin:
            match line.strip():
                case "statistics":
                    figures = {**site.call(lambda store: dict(store.statistics())), **_server(site)}
                    print(json.dumps(figures), flush=True)
                case "hide_all":
                    print(json.dumps({"hidden": site.call(lambda store: store.hide_all())}), flush=True)
                case _:
                    return


def _server(site: Any) -> dict[str, int]:
    figures: dict[str, int] = site.call(lambda _: dict(site.server.statistics()))
    return {f"server.{name}": value for name, value in figures.items()}


class AttachDaemon:
    """The process, ended with the `with` block, whatever state it is in."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "attach.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.attach_daemon", str(self.path), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"the daemon did not start: {line!r}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str) -> dict[str, int]:
        """Send a command and return the figures it answers with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.pid)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def attach(self, **options: Any) -> AttachedArena:
        return AttachedArena.connect(str(self.path), **{"prefault": False, "deadline_s": 5.0, **options})

    def __enter__(self) -> AttachDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            guard = threading.Timer(20, self._process.kill)
            guard.start()
            self._process.communicate("end\n")
            guard.cancel()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


if __name__ == "__main__":
    main()
