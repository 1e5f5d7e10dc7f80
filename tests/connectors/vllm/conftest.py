"""Fixtures of the vLLM connector's tests: a real sidecar, and a scheduler's client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inference_worker.client import Client, ClientSettings
from tests.support.sidecar_process import SidecarProcess, sidecar_process


@pytest.fixture(scope="module")
def sidecar() -> Iterator[SidecarProcess]:
    """One daemon for the tests of a module that do it no harm."""
    with sidecar_process(flags=("--freshness-lease", "1s")) as started:
        yield started


@pytest.fixture
def client(sidecar: SidecarProcess) -> Iterator[Client]:
    """A client that is attached."""
    with Client.connect(sidecar.runtime, settings=ClientSettings(deadline_s=10.0)) as made:
        assert made.wait_ready(deadline_s=10.0)
        yield made
