"""A real sidecar with a client over gRPC, and the `stratakv` command run against it in the test's process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from stratakv.cli import app
from tests.support.daemon import Daemon
from tests.support.remote_store import RemoteStore


class Node:
    """One sidecar."""

    def __init__(self, daemon: Daemon, store: RemoteStore) -> None:
        self.daemon = daemon
        self.store = store

    def run(self, *words: str, code: int = 0) -> Any:
        """Run a verb with --json; its exit code must be `code`."""
        return json.loads(self._output(words, code))

    def fails(self, *words: str, code: int) -> str:
        """Run a verb that ends without an answer; returns what it says."""
        result = self._invoke(words)
        assert result.exit_code == code, self._said(result)
        assert result.stdout == ""
        return result.stderr

    def log(self) -> list[Any]:
        """The kept records."""
        return [json.loads(line) for line in self._output(("log",), 0).splitlines()]

    def pages(self) -> int:
        """Pages that are visible."""
        return self.store.status().arena["entries_visible"]

    def _output(self, words: tuple[str, ...], code: int) -> str:
        result = self._invoke(words)
        assert result.exit_code == code, self._said(result)
        return result.stdout

    def _invoke(self, words: tuple[str, ...]) -> Result:
        place = ("--json", "--runtime-dir", str(self.daemon.runtime_dir))
        return CliRunner().invoke(app, [*words, *place])

    def _said(self, result: Result) -> str:
        return f"{result.exit_code}: {result.stderr} {result.exception!r}\n{self.daemon.output[-2000:]}"
