"""What lets a device reach the arena is told of its memory while it is mapped: all pages lie in it, and the end comes first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from inference_worker.client import Client
from kv_types.errors import ClosedError
from kv_types.outcomes import STORED
from tests.inference_worker.conftest import MakeClient
from tests.inference_worker.worlds import chain, namespace, pages_under
from tests.support.polling import wait_until
from tests.support.puts import put_fresh
from tests.support.sidecar_process import SidecarProcess


class Registrar:
    """Notes (address, bytes) of what is mapped; reads it once more when it is told of the end."""

    def __init__(self) -> None:
        self.mapped: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []

    def __call__(self, address: int, size_bytes: int) -> Callable[[], None]:
        self.mapped.append((address, size_bytes))
        return lambda: self.ended.append((address, size_bytes))


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def test_all_pages_lie_in_what_was_told(sidecar: SidecarProcess, connect: MakeClient) -> None:
    sidecar.start()
    registrar = Registrar()
    client: Client = connect(sidecar.runtime, register_memory=registrar, deadline_s=10.0)
    assert client.wait_ready(deadline_s=10.0)
    space = namespace("registered")
    ns, keys = client.register(space), chain(space, 3)
    assert put_fresh(client, ns, keys, pages_under(keys, ns.page_bytes)) == [STORED] * 3
    ((begin, size),) = registrar.mapped
    with client.lease(ns, keys) as lease:
        assert lease.pages == 3
        first = [_address(view) for view in lease]  # no view is kept: its arena would stay mapped
        assert all(begin <= address <= begin + size - ns.page_bytes for address in first)
        assert registrar.ended == []
    client.close()
    assert registrar.ended == registrar.mapped


def test_each_life_has_memory_of_its_own(sidecar: SidecarProcess, connect: MakeClient) -> None:
    sidecar.start()
    registrar = Registrar()
    client: Client = connect(sidecar.runtime, register_memory=registrar, deadline_s=10.0)
    assert client.wait_ready(deadline_s=10.0)
    sidecar.kill()
    wait_until(lambda: len(registrar.ended) == 1, what="the first life's memory is let go of")
    sidecar.start()
    wait_until(lambda: len(registrar.mapped) == 2, what="the second life's memory is told", timeout_s=30.0)
    client.close()
    assert registrar.ended == registrar.mapped


def test_a_device_that_is_learned_of_later_is_told_of_this_life_and_the_next(
    sidecar: SidecarProcess, connect: MakeClient
) -> None:
    sidecar.start()
    registrar, other = Registrar(), Registrar()
    client: Client = connect(sidecar.runtime, deadline_s=10.0)
    assert client.wait_ready(deadline_s=10.0)
    client.register_memory(registrar)
    client.register_memory(other)
    assert len(registrar.mapped) == 1
    sidecar.kill()
    wait_until(lambda: len(registrar.ended) == 1, what="the first life's memory is let go of")
    sidecar.start()
    wait_until(lambda: len(registrar.mapped) == 2, what="the second life's memory is told", timeout_s=30.0)
    client.close()
    assert registrar.ended == registrar.mapped
    assert not other.mapped
    with pytest.raises(ClosedError):
        client.register_memory(other)


def test_a_device_may_be_told_before_there_is_a_sidecar(sidecar: SidecarProcess, connect: MakeClient) -> None:
    registrar = Registrar()
    client: Client = connect(sidecar.runtime, deadline_s=10.0)
    client.register_memory(registrar)
    sidecar.start()
    assert client.wait_ready(deadline_s=20.0)
    assert len(registrar.mapped) == 1
    client.close()
    assert registrar.ended == registrar.mapped
