"""The Transformers connector with a model on a device of its own: pages of L2 and L1 come and go rightly, whatever the order.

The same tests run with the model on the processor, so that what is wrong in them shows without a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from cache_l1.transfer import Transfers
from cache_l1.transfer_streams import CudaStreams, HostSide, Side, StreamSide
from inference_worker.client import Client, ClientSettings
from inference_worker.connectors import transformers_reuse
from inference_worker.connectors.transformers import Prefill, TransformersConnector
from tests.connectors.models import PAGE_TOKENS, tiny_model, tokens
from tests.support.polling import wait_until
from tests.support.sidecar_process import SidecarProcess

POISON = 0xEE
PAGES = 6
DEVICES = [
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
    "cpu",
]
TOLERANCE = {"cpu": 1e-5, "cuda": 1e-3}
"""fp32; a pass over a part of a prompt takes other kernels there, which sum in another order."""


class PoisonedStreams(CudaStreams):
    """Staging memory that begins poisoned."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        return super().staging(size_bytes).fill_(POISON)


class PoisonedHost(HostSide):
    """Likewise."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        return super().staging(size_bytes).fill_(POISON)


def poisoned_side(device: torch.device) -> Side:
    return StreamSide(PoisonedStreams(device)) if device.type == "cuda" else PoisonedHost()


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    process = SidecarProcess(tmp_path_factory.mktemp("sidecar") / "run", arena_bytes=64 << 20)
    try:
        process.start()
        yield process
    finally:
        process.end()


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever copy comes too early or too late brings poison."""
    monkeypatch.setattr(
        transformers_reuse, "Transfers", lambda device: Transfers(device, make_side=poisoned_side)
    )


def poison_free_memory(device: str, size_bytes: int = 8 << 20) -> None:
    """What is allocated next there begins poisoned, as far as the allocator gives back what it had."""
    torch.full((size_bytes,), POISON, dtype=torch.uint8, device=device)


def connect(sidecar: SidecarProcess, *, remote: bool = False) -> Client:
    settings = ClientSettings(shared_memory=not remote, deadline_s=20.0, prefault=False)
    client = Client.connect(sidecar.runtime, settings=settings)
    assert client.wait_ready(deadline_s=20.0)
    return client


def connector(model: Any, client: Client, **settings: Any) -> TransformersConnector:
    return TransformersConnector(
        model, client, page_tokens=PAGE_TOKENS, require_cacheable=True, look_up_deadline_s=20.0,
        store_deadline_s=20.0, **settings,
    )  # fmt: skip


def prefix_bits(done: Prefill, count: int) -> list[bytes]:
    """Exact bytes of the KV of the first `count` tokens, layer by layer."""
    return [
        tensor[0, :, :count].contiguous().view(torch.uint8).cpu().numpy().tobytes()
        for layer in done.past_key_values.layers
        for tensor in (layer.keys, layer.values)
    ]


def assert_like_cold(model: Any, done: Prefill, row: torch.Tensor, *, device: str) -> None:
    """Logits, and the KV of all tokens, are those of the model alone."""
    with torch.no_grad():
        cold = model(input_ids=row[None], use_cache=True)
    assert torch.allclose(done.logits[0], cold.logits[0, -1], atol=TOLERANCE[device], rtol=0)
    for ours, theirs in zip(done.past_key_values.layers, cold.past_key_values.layers, strict=True):
        assert ours.keys.device.type == device
        for one, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            assert torch.allclose(one, other, atol=TOLERANCE[device], rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("remote", [False, True], ids=["arena", "remote"])
def test_a_prefix_of_l2_stands_in_the_engines_cache_as_it_was_computed(
    device: str, remote: bool, sidecar: SidecarProcess
) -> None:
    """Out of registered memory, where the arena is that by then, else through pinned memory: the same bytes."""
    model = tiny_model("llama", seed=3 + remote).to(device)
    row = tokens(PAGES * PAGE_TOKENS + 5, seed=30).to(device)
    with connect(sidecar) as client:
        first = connector(model, client).prefill(row[None])
    assert first.report.pages_stored == PAGES
    assert_like_cold(model, first, row, device=device)
    with connect(sidecar, remote=remote) as client:
        for attempt in range(3):  # the first ones may come before the arena is registered
            worker = connector(model, client)
            poison_free_memory(device)
            again = worker.prefill(row[None])
            assert (again.report.rows[0].pages_l1, again.report.rows[0].pages_l2) == (0, PAGES), attempt
            assert prefix_bits(again, PAGES * PAGE_TOKENS) == prefix_bits(first, PAGES * PAGE_TOKENS)
            assert_like_cold(model, again, row, device=device)
    assert client.statistics()["leases_held"] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_registered_memory_and_pinned_memory_bring_the_same(
    device: str, sidecar: SidecarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama", seed=5).to(device)
    row = tokens(PAGES * PAGE_TOKENS + 1, seed=31).to(device)
    with connect(sidecar) as client:
        first = connector(model, client).prefill(row[None])
        worker = connector(model, client, l1_bytes=1)
        reached = worker._reached
        if reached is not None:
            wait_until(
                lambda: bool(reached._memories) or reached._has_failed,
                what="the arena is registered or can't be",
            )
        straight = worker.prefill(row[None])
        if reached is not None:
            monkeypatch.setattr(reached, "_of", lambda view: None)
        staged = worker.prefill(row[None])
    for done in (straight, staged):
        assert done.report.rows[0].pages_l2 >= PAGES - 1
        assert prefix_bits(done, PAGES * PAGE_TOKENS) == prefix_bits(first, PAGES * PAGE_TOKENS)


@pytest.mark.parametrize("device", DEVICES)
def test_many_prefixes_through_a_small_l1_are_never_mixed(device: str, sidecar: SidecarProcess) -> None:
    """Loads, stores and passes follow one another without a wait between them, and L1's pages change hands all the time."""
    model = tiny_model("llama", seed=6).to(device)
    rows = [tokens(PAGES * PAGE_TOKENS + 3, seed=100 + number).to(device) for number in range(12)]
    page_bytes = 3 * 2 * 2 * PAGE_TOKENS * 16 * 4
    with connect(sidecar) as client:
        worker = connector(model, client, l1_bytes=4 * PAGES * page_bytes, l1_promotion="always")
        cold = [worker.prefill(row[None]) for row in rows]
        for turn in range(4):
            poison_free_memory(device)
            warm = [worker.prefill(row[None]) for row in rows]
            for number, (one, other) in enumerate(zip(warm, cold, strict=True)):
                found = one.report.rows[0].pages_l1 + one.report.rows[0].pages_l2
                assert found == PAGES, (turn, number)
                assert prefix_bits(one, PAGES * PAGE_TOKENS) == prefix_bits(other, PAGES * PAGE_TOKENS)
    assert worker.statistics()["evicted_pages"] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_threads_on_streams_of_their_own_share_an_l1(device: str, sidecar: SidecarProcess) -> None:
    """Each thread's pages are evicted and filled by the others, whose streams nothing orders but we."""
    model = tiny_model("llama", seed=7).to(device)
    rows = [tokens(PAGES * PAGE_TOKENS + 3, seed=200 + number).to(device) for number in range(8)]
    page_bytes = 3 * 2 * 2 * PAGE_TOKENS * 16 * 4
    errors: list[str] = []
    with connect(sidecar) as client:
        worker = connector(model, client, l1_bytes=3 * PAGES * page_bytes, l1_promotion="always")
        cold = [prefix_bits(worker.prefill(row[None]), PAGES * PAGE_TOKENS) for row in rows]

        def work(number: int) -> None:
            with stream_of_its_own(device):
                for turn in range(12):
                    at = (number * 3 + turn) % len(rows)
                    done = worker.prefill(rows[at][None])
                    if prefix_bits(done, PAGES * PAGE_TOKENS) != cold[at]:
                        errors.append(f"thread {number}, turn {turn}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        if device == "cuda":
            torch.cuda.synchronize()  # what the threads share was computed on this one's stream
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors
    assert worker.statistics()["pinned_pages"] == 0


def stream_of_its_own(device: str) -> AbstractContextManager[Any]:
    make_stream: Any = torch.cuda.Stream
    return torch.cuda.stream(make_stream()) if device == "cuda" else nullcontext()


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_on_another_stream_finds_what_the_last_one_stored(
    device: str, sidecar: SidecarProcess
) -> None:
    """An engine that changes its stream between calls: what it scattered into L1 may not have come there yet."""
    model = tiny_model("llama", seed=8).to(device)
    with connect(sidecar) as client:
        worker = connector(model, client)
        for turn in range(8):
            row = tokens(PAGES * PAGE_TOKENS + 3, seed=300 + turn).to(device)
            if device == "cuda":
                torch.cuda.synchronize()
            with stream_of_its_own(device):
                first = worker.prefill(row[None])
            with stream_of_its_own(device):
                second = worker.prefill(row[None])
                assert second.report.rows[0].pages_l1 == PAGES, turn
                bits = prefix_bits(second, PAGES * PAGE_TOKENS)
            if device == "cuda":
                torch.cuda.synchronize()
            assert bits == prefix_bits(first, PAGES * PAGE_TOKENS), turn
