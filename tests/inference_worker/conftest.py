"""Fixtures of the client's tests: a real daemon on a runtime directory of its own, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference_worker.client import Client, ClientSettings
from tests.inference_worker.looking import SPACE, Looking
from tests.support.l3_site import L3Site
from tests.support.sidecar_process import SidecarProcess, sidecar_process

FLAGS = ("--freshness-lease", "1s")
MakeClient = Callable[..., Client]


@pytest.fixture(scope="module")
def shared_sidecar() -> Iterator[SidecarProcess]:
    """One daemon for the tests of a module that do it no harm."""
    with sidecar_process(flags=FLAGS) as started:
        yield started


@pytest.fixture
def sidecar() -> Iterator[SidecarProcess]:
    """A daemon of one test's own, not started."""
    with sidecar_process(start=False, flags=FLAGS) as made:
        yield made


@pytest.fixture
def connect() -> Iterator[MakeClient]:
    """Make clients that are closed at the test's end."""
    made: list[Client] = []

    def make(endpoint: str | Path, **settings: object) -> Client:
        client = Client.connect(endpoint, settings=ClientSettings(**settings))  # type: ignore[arg-type]
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture(params=["shared_memory", "grpc"])
def client(request: pytest.FixtureRequest, shared_sidecar: SidecarProcess, connect: MakeClient) -> Client:
    """A client of each transport, ready."""
    made = connect(shared_sidecar.runtime, shared_memory=request.param == "shared_memory", deadline_s=10.0)
    assert made.wait_ready(deadline_s=10.0)
    assert made.statistics()["transport"] == request.param
    return made


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    """A model name of the test's own, so that tests share a daemon and no pages."""
    return str(request.node.name)


@pytest.fixture
def l3_site(tmp_path: Path) -> Iterator[L3Site]:
    """A sidecar's attach server in this process, with an L3 in memory."""
    with L3Site(tmp_path) as started:
        yield started


@pytest.fixture
def looking(l3_site: L3Site, connect: MakeClient) -> Looking:
    """One client of it, with a namespace that the sidecar knows."""
    made = connect(l3_site.path.parent, prefault=False, deadline_s=10.0)
    handle = made.register(SPACE)
    with made.begin(handle):
        return Looking(l3_site, made, handle)
