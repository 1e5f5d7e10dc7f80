"""The same transfers on a CUDA device: poisoned buffers under load, bandwidth beside a pinned copy, registered memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from cache_l1.transfer import Part, Transfers
from cache_l1.transfer_contiguous import ContiguousCopies
from cache_l1.transfer_registration import RegisteredMemory, host_tensor, registered_memory
from cache_l1.transfer_streams import CudaStreams, StreamSide
from tests.cache_l1.sides import POISON
from tests.cache_l1.test_transfer_contiguous import copies_of, empty_cache, naive, some_pages
from tests.support.polling import wait_until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 1 << 20
PART_BYTES = 4 * MIB
BANDWIDTH_LEAST = 0.85
"""Of a pinned copy's, both ways."""


class PoisonedStreams(CudaStreams):
    """Staging memory that begins poisoned."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        return super().staging(size_bytes).fill_(POISON)


def poisoned_side(device: torch.device) -> StreamSide:
    return StreamSide(PoisonedStreams(device))


def busy(matrix: torch.Tensor, rounds: int) -> None:
    """Keep the engine's stream at work."""
    for _ in range(rounds):
        torch.mm(matrix, matrix)


def load_parts(source: torch.Tensor, target: torch.Tensor) -> list[Part]:
    def fill(at: int, staging: torch.Tensor) -> None:
        staging.fill_(POISON)  # what a late copy of the buffer's last part would bring
        staging.copy_(source[at])

    def move(at: int, staging: torch.Tensor) -> None:
        target[at].copy_(staging, non_blocking=True)

    return [Part(source.shape[1], partial(fill, at), partial(move, at)) for at in range(len(source))]


def store_parts(source: torch.Tensor, target: torch.Tensor) -> list[Part]:
    def move(at: int, staging: torch.Tensor) -> None:
        staging.copy_(source[at], non_blocking=True)

    def empty(at: int, staging: torch.Tensor) -> None:
        target[at].copy_(staging)
        staging.fill_(POISON)  # what a copy that had not come yet would leave

    return [Part(source.shape[1], partial(empty, at), partial(move, at)) for at in range(len(source))]


def test_poisoned_buffers_reach_nobody() -> None:
    """Loads, stores and an engine that computes with the same blocks, for many rounds."""
    device, draw = torch.device("cuda"), random.Random(5)
    transfers = Transfers(device, make_side=poisoned_side)
    matrix = torch.randn((2048, 2048), device=device)
    blocks = torch.zeros((12, PART_BYTES), dtype=torch.uint8, device=device)
    for turn in range(60):
        source = torch.full((12, PART_BYTES), turn + 1, dtype=torch.uint8)
        busy(matrix, draw.randrange(12))
        loaded = transfers.load(load_parts(source, blocks))
        transfers.engine_waits(loaded)
        blocks.add_(1)  # the engine, behind the load
        busy(matrix, draw.randrange(12))
        target = torch.full((12, PART_BYTES), POISON, dtype=torch.uint8)
        transfers.store(store_parts(blocks, target))
        assert torch.equal(target, source + 1), f"turn {turn}"


def test_loads_and_stores_of_two_threads_mix_nothing() -> None:
    device = torch.device("cuda")
    transfers = Transfers(device, make_side=poisoned_side)
    wrong: list[str] = []

    def work(number: int) -> None:
        blocks = torch.zeros((6, PART_BYTES), dtype=torch.uint8, device=device)
        for turn in range(20):
            source = torch.full((6, PART_BYTES), 1 + number * 100 + turn, dtype=torch.uint8)
            transfers.load(load_parts(source, blocks)).synchronize()
            target = torch.empty_like(source)
            transfers.store(store_parts(blocks, target))
            if not torch.equal(source, target):
                wrong.append(f"thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not wrong


def _gb_per_s(run: Callable[[], object], size_bytes: int) -> float:
    """The best of several rounds, timed by the device."""
    cuda: Any = torch.cuda
    best = 0.0
    for _ in range(8):
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        run()
        torch.cuda.synchronize()
        end.record()
        end.synchronize()
        best = max(best, size_bytes / begin.elapsed_time(end) / 1e6)
    return best


def test_transfers_reach_the_bandwidth_of_a_pinned_copy() -> None:
    """A ratio of one run, printed with -s; both sides move what is pinned, so that the host's copies are not measured."""
    device = torch.device("cuda")
    pinned = torch.empty((64, PART_BYTES), dtype=torch.uint8, pin_memory=True)
    blocks = torch.empty((64, PART_BYTES), dtype=torch.uint8, device=device)
    transfers = Transfers(device)

    def straight() -> None:
        transfers.load_straight(partial(_copy, pinned, blocks)).synchronize()

    def nothing(_: torch.Tensor) -> None:
        pass

    def stored() -> None:
        transfers.store([Part(PART_BYTES, nothing, partial(_copy, blocks[at])) for at in range(64)])

    size = blocks.numel()
    copied_in = _gb_per_s(partial(blocks.copy_, pinned, non_blocking=True), size)
    copied_out = _gb_per_s(partial(pinned.copy_, blocks, non_blocking=True), size)
    loaded, brought = _gb_per_s(straight, size), _gb_per_s(stored, size)
    print(f"in {loaded:.1f} of {copied_in:.1f} GB/s, out {brought:.1f} of {copied_out:.1f} GB/s")
    assert loaded >= BANDWIDTH_LEAST * copied_in
    assert brought >= BANDWIDTH_LEAST * copied_out


@pytest.mark.parametrize("kind", ["gqa", "mla"])
@pytest.mark.parametrize("numbers", [[2, 3, 4], [9, 0, 5, 1]], ids=str)
def test_gather_and_scatter_on_the_device(kind: str, numbers: list[int]) -> None:
    copies: ContiguousCopies = copies_of(kind, "native")
    pages = some_pages(copies)
    cache = [one.to("cuda") for one in empty_cache(copies)]
    copies.gather(pages.to("cuda"), numbers, cache, column=2)
    wanted = naive(copies, pages, numbers, 2)
    for ours, theirs in zip(cache, wanted, strict=True):
        assert torch.equal(ours.cpu().view(torch.int16), theirs.view(torch.int16))
    target = torch.zeros_like(pages, device="cuda")
    copies.scatter(cache, target, numbers, column=2)
    assert torch.equal(target.cpu()[numbers], pages[numbers])


def test_registered_memory_is_read_by_the_device() -> None:
    device = torch.device("cuda")
    memory = registered_memory(device)
    assert isinstance(memory, RegisteredMemory)
    arena = np.random.default_rng(3).integers(0, 256, 64 * MIB, dtype=np.uint8)
    end = memory.register(arena.ctypes.data, arena.nbytes)
    view = arena[MIB : 9 * MIB].data.toreadonly()

    def is_reached() -> bool:
        with memory.held([view]) as reached:
            return reached

    wait_until(is_reached, what="the memory is registered")
    target = torch.empty(view.nbytes, dtype=torch.uint8, device=device)
    with memory.held([view]):
        assert host_tensor(view).is_pinned()
        Transfers(device).load_straight(partial(_copy, host_tensor(view), target)).synchronize()
    assert np.array_equal(target.cpu().numpy(), arena[MIB : 9 * MIB])
    end()
    assert not is_reached()
    assert not host_tensor(view).is_pinned()


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
