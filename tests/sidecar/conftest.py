"""A daemon for the tests of one module, and channels to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kv_wire.channel import open_channel
from tests.support.attach_site import AttachSite
from tests.support.daemon import Daemon
from tests.support.remote_store import RemoteStore


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A path for a runtime directory, short enough for sockets; everything below it goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch:
        yield Path(scratch) / "run"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with (
        tempfile.TemporaryDirectory(prefix="skv-") as scratch,
        Daemon(Path(scratch) / "run", arena="384MiB") as running,
    ):
        yield running.wait_ready()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AttachSite]:
    with AttachSite(tmp_path) as started:
        yield started


@pytest.fixture
def channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    with open_channel(daemon.grpc_address) as opened:
        yield opened


@pytest.fixture
def store(channel: grpc.Channel) -> RemoteStore:
    return RemoteStore(channel)
