"""C35: what the daemon listens on, and what its code never does with bytes from outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.daemon import ROOT, Daemon

_LISTENING = "0A"
_MAPPED_V4 = "0000000000000000FFFF0000"  # gRPC writes IPv4 addresses the IPv6 way
_PACKAGES = (
    "kv_types",
    "kv_policy",
    "kv_wire",
    "cache_l1",
    "cache_l2",
    "sidecar",
    "stratakv",
    "inference_worker",
)
_FORBIDDEN = re.compile(
    r"\b(pickle|marshal|shelve|dill|cloudpickle)\b|(?<![.\w])(eval|exec)\(|os\.system\(|shell=True"
)


def listening(pid: int) -> set[tuple[str, int]]:
    """(address in the kernel's hexadecimal, port) of every TCP socket that a process listens on."""
    inodes = {
        target.removeprefix("socket:[").removesuffix("]")
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if (target := str(entry.readlink())).startswith("socket:[")
    }
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, _, port = fields[1].rpartition(":")
            if fields[3] == _LISTENING and fields[9] in inodes:
                found.add((address.removeprefix(_MAPPED_V4), int(port, 16)))
    return found


LOOPBACK = "0100007F"
EVERYWHERE = "0" * 32  # gRPC takes every interface's IPv6 addresses with the IPv4 ones


@pytest.mark.parametrize(
    ("flags", "addresses"),
    [
        ((), {LOOPBACK}),
        (("--metrics-port", "off"), set()),
        (("--grpc-tcp", "127.0.0.1:0", "--metrics-port", "off"), {LOOPBACK}),
        (("--grpc-tcp", "0.0.0.0:0"), {LOOPBACK, EVERYWHERE}),
    ],
)
def test_c35_it_listens_on_other_interfaces_only_when_they_are_named(
    runtime_dir: Path, flags: tuple[str, ...], addresses: set[str]
) -> None:
    with Daemon(runtime_dir, *flags) as daemon:
        daemon.wait_ready()
        assert {address for address, _ in listening(daemon.pid)} == addresses


def test_c35_nothing_unpickles_evaluates_or_runs_a_shell() -> None:
    files = [path for package in _PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 40, "the search looks where the code is"
    for path in files:
        found = _FORBIDDEN.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(ROOT)}: {found.group(0) if found else ''}"


def test_the_search_finds_what_it_looks_for() -> None:
    for bad in ("import pickle", "eval(text)", "run(x, shell=True)", "os.system('x')"):
        assert _FORBIDDEN.search(bad), bad
    assert not _FORBIDDEN.search("evaluate(x); model.eval(); self.execute(y)")
