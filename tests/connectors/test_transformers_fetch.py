"""Pages come straight out of the arena where the model's device reaches it, and are staged where it doesn't: the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cache_l1.transfer_registration import RegisteredMemory
from inference_worker.client import Client, ClientSettings
from inference_worker.connectors import transformers_fetch
from inference_worker.connectors.transformers import TransformersConnector
from kv_types.outcomes import MissReason
from tests.connectors.fakes import FakeClient, FakeSidecar
from tests.connectors.models import PAGE_TOKENS, shared_model, tokens
from tests.connectors.test_transformers_prefill import assert_right, cache_bytes
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess


class Runtime:
    """Registers, unless it answers with an error; notes what is registered, and what was."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.asked = 0
        self.registered: set[int] = set()

    def register(self, address: int, size_bytes: int) -> int:
        self.asked += 1
        if not self.answer:
            self.registered.add(address)
        return self.answer

    def unregister(self, address: int) -> int:
        self.registered.remove(address)
        return 0


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    process = SidecarProcess(tmp_path_factory.mktemp("sidecar") / "run", arena_bytes=32 << 20)
    try:
        process.start()
        yield process
    finally:
        process.end()


def connect(runtime: Path, *, remote: bool = False) -> Client:
    client = Client.connect(
        runtime, settings=ClientSettings(shared_memory=not remote, deadline_s=10.0, prefault=False)
    )
    assert client.wait_ready(deadline_s=10.0)
    return client


def connector(client: Any, **settings: Any) -> TransformersConnector:
    return TransformersConnector(
        shared_model("llama"), client, page_tokens=PAGE_TOKENS, require_cacheable=True,
        look_up_deadline_s=10.0, store_deadline_s=10.0, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("way", ["straight", "refused", "remote"])
def test_the_bytes_are_those_that_were_stored(
    way: str, sidecar: SidecarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tokens(5 * PAGE_TOKENS + 3, seed=70)
    with connect(sidecar.runtime) as client:
        first = connector(client).prefill(row[None])
    runtime, straight = Runtime(2 if way == "refused" else 0), [0]
    monkeypatch.setattr(transformers_fetch, "registered_memory", lambda device: RegisteredMemory(runtime))
    copy_straight = transformers_fetch._copy_straight

    def counted(views: Any, room: torch.Tensor) -> None:
        straight[0] += len(views)
        copy_straight(views, room)

    monkeypatch.setattr(transformers_fetch, "_copy_straight", counted)
    client = connect(sidecar.runtime, remote=way == "remote")
    worker = connector(client)
    wait_until(lambda: bool(runtime.asked) or way == "remote", what="the arena is registered")
    again = worker.prefill(row[None])
    assert again.report.rows[0].pages_l2 == 5
    assert again.report.rows[0].ended_by is MissReason.NONE
    assert cache_bytes(again, 0, 5 * PAGE_TOKENS) == cache_bytes(first, 0, 5 * PAGE_TOKENS)
    assert straight[0] == (5 if way == "straight" else 0)
    longer = torch.cat((row[: 2 * PAGE_TOKENS], tokens(PAGE_TOKENS, seed=sum(map(ord, way)))))
    other = connector(client, l1_bytes=1)
    done = other.prefill(longer[None])
    assert (done.report.rows[0].pages_l2, done.report.rows[0].ended_by) == (2, MissReason.ABSENT)
    assert_right(shared_model("llama"), done, [longer])
    assert client.statistics()["leases_held"] == 0
    client.close()
    assert not runtime.registered


def test_a_device_without_memory_of_its_own_is_not_told_of_the_arena() -> None:
    client = FakeClient(FakeSidecar())
    connector(client).prefill(tokens(40)[None])
    assert not client.registrars


def test_a_connector_registers_once_however_often_its_model_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transformers_fetch, "registered_memory", lambda device: RegisteredMemory(Runtime()))
    client = FakeClient(FakeSidecar())
    worker = connector(client)
    worker.refresh()
    assert len(client.registrars) == 1
    sidecar = client.sidecar
    row = tokens(4 * PAGE_TOKENS + 1, seed=72)
    worker.prefill(row[None])
    other = connector(FakeClient(sidecar))
    assert other.prefill(row[None]).report.rows[0].pages_l2 == 4
