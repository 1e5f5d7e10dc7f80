"""Transfers through staging: whatever the device's pace, no buffer is used again before its event, and nothing is late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from cache_l1.transfer import Part, Transfers, batches
from cache_l1.transfer_streams import HostSide
from kv_types.engine_limits import L1_STAGING_BUFFERS, L1_STAGING_BYTES_MAX
from kv_types.errors import InvalidArgumentError
from tests.cache_l1.sides import POISON, HastySide, SlowDevice, SlowSide

PART_BYTES = 8
DEVICE = torch.device("cpu")
PACES = [0.0, 0.3, 0.8, 1.0]


def rows(count: int, *, first: int = 1) -> torch.Tensor:
    """uint8 [count, PART_BYTES], each row of one number of its own."""
    return (
        torch.arange(first, first + count, dtype=torch.uint8)[:, None].expand(count, PART_BYTES).contiguous()
    )


def put(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def loading(source: torch.Tensor, target: torch.Tensor) -> Iterator[Part]:
    for read, written in zip(source, target, strict=False):
        yield Part(PART_BYTES, host=partial(put, read), device=partial(_put_into, written))


def storing(source: torch.Tensor, target: torch.Tensor) -> Iterator[Part]:
    for read, written in zip(source, target, strict=False):
        yield Part(PART_BYTES, host=partial(_put_into, written), device=partial(put, read))


def _put_into(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


@pytest.mark.parametrize("eager", PACES)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_loads_arrive_whole_at_any_pace(buffers: int, eager: float) -> None:
    device = SlowDevice(seed=buffers, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side, buffers=buffers)
    source, target = rows(9), torch.zeros((9, PART_BYTES), dtype=torch.uint8)
    transfers.load(loading(source, target)).synchronize()
    assert torch.equal(source, target)
    assert len(device.sides[0].buffers) == buffers
    again = rows(4, first=90)
    transfers.load(loading(again, target)).synchronize()
    assert torch.equal(again, target[:4]), "buffers of the last load are waited for as well"


@pytest.mark.parametrize("eager", PACES)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_stores_arrive_whole_at_any_pace(buffers: int, eager: float) -> None:
    device = SlowDevice(seed=buffers, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side, buffers=buffers)
    source, target = rows(9), torch.full((9, PART_BYTES), POISON, dtype=torch.uint8)
    transfers.store(storing(source, target))
    assert torch.equal(source, target), "a store is over when it returns"


def test_a_buffer_that_is_used_again_too_soon_is_caught() -> None:
    """That these tests can fail: a transfer that takes no notice of events moves other bytes."""
    device = SlowDevice()

    def hasty(_: torch.device) -> SlowSide:
        device.sides.append(HastySide(device))
        return device.sides[-1]

    transfers = Transfers(DEVICE, make_side=hasty)
    source, target = rows(9), torch.zeros((9, PART_BYTES), dtype=torch.uint8)
    transfers.load(loading(source, target))
    side = device.sides[0]
    side.stream.run(len(side.stream.work))
    assert not torch.equal(source, target)
    brought = torch.zeros_like(source)
    transfers.store(storing(source, brought))
    assert (brought == POISON).any()


@pytest.mark.parametrize("eager", PACES)
def test_a_store_comes_behind_what_the_engine_was_given_before(eager: float) -> None:
    device = SlowDevice(seed=5, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    blocks, target = rows(3), torch.zeros((3, PART_BYTES), dtype=torch.uint8)
    device.engine.submit(partial(put, rows(3, first=50), blocks))
    transfers.store(storing(blocks, target))
    assert torch.equal(target, rows(3, first=50))


@pytest.mark.parametrize("eager", PACES)
def test_a_load_comes_between_what_the_engine_was_given_before_and_after(eager: float) -> None:
    device = SlowDevice(seed=6, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    blocks = torch.zeros((3, PART_BYTES), dtype=torch.uint8)
    before, after = torch.empty_like(blocks), torch.empty_like(blocks)
    device.engine.submit(partial(put, blocks, before))
    loaded = transfers.load(loading(rows(3), blocks))
    transfers.engine_waits(loaded)
    device.engine.submit(partial(put, blocks, after))
    device.engine.run(len(device.engine.work))
    assert torch.equal(before, torch.zeros_like(blocks))
    assert torch.equal(after, rows(3))


@pytest.mark.parametrize("direction", ["load", "store"])
@pytest.mark.parametrize("fault", ["host", "device"])
def test_an_error_comes_when_the_device_is_done_with_what_was_begun(direction: str, fault: str) -> None:
    device = SlowDevice(eager=0.2)
    transfers = Transfers(DEVICE, make_side=device.side)
    source, target = rows(6), torch.zeros((6, PART_BYTES), dtype=torch.uint8)
    good = loading if direction == "load" else storing

    def parts() -> Iterator[Part]:
        for at, part in enumerate(good(source, target)):
            if at != 4:
                yield part
            elif fault == "host":
                yield Part(part.size_bytes, partial(_fail), part.device)
            else:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        getattr(transfers, direction)(parts())
    assert device.pending() == 0, "memory that work names may be another's after this"
    getattr(transfers, direction)(good(source, target))
    transfers.load([]).synchronize()
    device.sides[0].stream.run(len(device.sides[0].stream.work))
    assert torch.equal(source, target)


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError


def test_loads_and_stores_of_many_threads_mix_nothing() -> None:
    transfers = Transfers(DEVICE, make_side=lambda device: HostSide())
    errors: list[str] = []

    def work(number: int) -> None:
        for turn in range(60):
            source = rows(5, first=1 + 10 * number)
            target = torch.zeros_like(source)
            if turn % 2:
                transfers.load(loading(source, target)).synchronize()
            else:
                transfers.store(storing(source, target))
            if not torch.equal(source, target):
                errors.append(f"thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors


def test_nothing_to_move_is_done_at_once() -> None:
    transfers = Transfers(DEVICE, make_side=SlowDevice().side)
    transfers.load([]).synchronize()
    transfers.store([])


def test_turns_fit_the_staging_memory() -> None:
    most = L1_STAGING_BYTES_MAX // L1_STAGING_BUFFERS
    assert list(batches(5, most // 2)) == [range(2), range(2, 4), range(4, 5)]
    assert list(batches(2, 2 * most)) == [range(1), range(1, 2)]
    assert list(batches(0, 1)) == []
    assert list(batches(3, 0)) == [range(3)]


def test_a_transfer_has_a_buffer() -> None:
    with pytest.raises(InvalidArgumentError, match="buffer"):
        Transfers(DEVICE, buffers=0)
