"""Fixtures for tests with the real vLLM, which are collected only where it can be imported (`make test-vllm`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.own_engine import has_vllm
from tests.support.redis_servers import redis_servers
from tests.support.sidecar_process import SidecarProcess, sidecar_process
from tests.vllm import models
from tests.vllm.engines import Makers, makers
from tests.vllm.nursery import Nursery

if not has_vllm():
    collect_ignore_glob = ["test_*.py"]

Sidecars = Callable[..., AbstractContextManager[SidecarProcess]]


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """What engines are forked from."""
    with Nursery(tmp_path_factory.mktemp("nursery") / "log") as of_session:
        yield of_session


@pytest.fixture(scope="module")
def made(nursery: Nursery) -> Iterator[Makers]:
    """Engines and servers for the tests of one module."""
    with makers(nursery.spawn) as of_module:
        yield of_module


@pytest.fixture
def made_here(made: Makers) -> Iterator[Makers]:
    """Engines and servers that end with the test."""
    before = made.count
    yield made
    made.end(since=before)


@contextmanager
def sidecar_with(
    *, redis: bool = False, arena_bytes: int = 256 * 2**20, flags: tuple[str, ...] = ()
) -> Iterator[SidecarProcess]:
    """A sidecar for the block: with a log of its own in memory, or with a Redis of its own for log and L3."""
    with ExitStack() as running:
        if redis:
            servers = running.enter_context(redis_servers())
            place: tuple[str, ...] = ("--l3-url", servers.start().url)
        else:
            place = ("--no-l3",)
        yield running.enter_context(sidecar_process(arena_bytes=arena_bytes, flags=(*place, *flags)))


@pytest.fixture(scope="module")
def sidecar() -> Iterator[SidecarProcess]:
    """A sidecar for the tests of one module, with its log in memory."""
    with sidecar_with() as running:
        yield running


@pytest.fixture(scope="session")
def llama() -> Path:
    """The tiny model with grouped-query attention."""
    return models.llama_tiny()


@pytest.fixture(scope="session")
def mla() -> Path:
    """The tiny model with latent attention."""
    return models.mla_tiny()
