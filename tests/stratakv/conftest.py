"""What tests of the command share: a sidecar's administration on a real socket, and a disk with room for little."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner, Result

from kv_types.events import Selected
from kv_types.selectors import Selector
from stratakv.cli import app
from tests.kv_types.samples import namespace
from tests.support.admin_site import AdminSite

SPACES = (
    namespace(model="m", page_tokens=4),
    namespace(model="m", page_tokens=4, tenant="alice"),
    namespace(model="other", page_tokens=16),
)


@dataclass(frozen=True, slots=True)
class Command:
    """`stratakv` against one site."""

    site: AdminSite

    def __call__(self, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> Result:
        found = [*words, "--runtime-dir", str(self.site.runtime_dir)]
        return CliRunner().invoke(app, found, input=stdin, env={"COLUMNS": "250", **(environment or {})})

    def json(self, *words: str, stdin: str = "", code: int = 0) -> Any:
        """What it prints with --json; its exit code must be `code`."""
        result = self(*words, "--json", stdin=stdin)
        assert result.exit_code == code, (result.exit_code, result.stderr, result.exception)
        return json.loads(result.stdout)


def selectors(site: AdminSite) -> list[Selector]:
    """What the records of the log select."""
    found = []
    for record in site.call(site.fleet.records):
        assert isinstance(record.event, Selected)
        found.append(record.event.selector)
    return found


@pytest.fixture
def quiet() -> Iterator[None]:
    """The site's log lines go elsewhere than what a command in this process prints."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device, not a path of ours
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere))
        yield
        structlog.reset_defaults()


@pytest.fixture
def site(quiet: None) -> Iterator[AdminSite]:
    with tempfile.TemporaryDirectory(prefix="skv-") as folder, AdminSite(Path(folder), *SPACES) as running:
        yield running


@pytest.fixture
def stratakv(site: AdminSite) -> Command:
    return Command(site)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk with room for little."""
    place = tmp_path / "narrow"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)
