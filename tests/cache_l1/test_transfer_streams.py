"""Transfers beside an engine that changes its stream: whatever the device's pace, each is ordered with all streams it has had."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_l1.transfer import Transfers
from cache_l1.transfer_streams import StreamOrder
from kv_types.engine_limits import L1_STREAMS_MAX
from tests.cache_l1.sides import POISON, SlowDevice, Stream
from tests.cache_l1.test_transfer import DEVICE, PACES, PART_BYTES, loading, put, rows, storing


def blank(count: int = 3) -> torch.Tensor:
    return torch.full((count, PART_BYTES), POISON, dtype=torch.uint8)


@pytest.mark.parametrize("eager", PACES)
@pytest.mark.parametrize("is_told", [True, False], ids=["followed", "current"])
def test_a_store_comes_behind_all_streams_that_the_engine_has_had(eager: float, is_told: bool) -> None:
    """What the first stream was given counts after the change too, though nothing makes the second wait for it."""
    device = SlowDevice(seed=5, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    old, new = rows(3), rows(3)
    device.engine.submit(partial(put, rows(3, first=50), old))
    device.now = device.make()
    if is_told:
        transfers.follow_engine()
    device.now.submit(partial(put, rows(3, first=90), new))
    targets = blank(), blank()
    for source, target in zip((old, new), targets, strict=True):
        transfers.store(storing(source, target))
    assert torch.equal(targets[0], rows(3, first=50))
    assert torch.equal(targets[1], rows(3, first=90))


@pytest.mark.parametrize("eager", PACES)
def test_a_load_comes_behind_what_a_stream_read_that_the_engine_has_left(eager: float) -> None:
    device = SlowDevice(seed=6, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    blocks, read = rows(3, first=20), blank()
    device.engine.submit(partial(put, blocks, read))
    device.now = device.make()
    transfers.follow_engine()
    transfers.load(loading(rows(3), blocks)).synchronize()
    device.engine.run_all()
    assert torch.equal(read, rows(3, first=20)), "the load came before the reader was done"


@pytest.mark.parametrize("eager", PACES)
def test_a_stream_that_the_engine_changes_to_waits_for_loads_too(eager: float) -> None:
    device = SlowDevice(seed=7, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    blocks, seen = blank(), blank()
    transfers.engine_waits(transfers.load(loading(rows(3), blocks)))
    device.now = device.make()
    transfers.follow_engine()
    device.now.submit(partial(put, blocks, seen))
    device.now.run_all()
    assert torch.equal(seen, rows(3))


@pytest.mark.parametrize("eager", PACES)
def test_another_threads_calls_go_by_the_stream_that_is_followed(eager: float) -> None:
    """As vLLM's: the engine's thread says what its stream is, and threads of ours load and store."""
    device = SlowDevice(seed=8, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    engine = device.now = device.make()
    transfers.follow_engine()
    blocks, target = rows(3), blank()
    engine.submit(partial(put, rows(3, first=50), blocks))
    device.now = device.make()  # the other thread's own, which has nothing to do with it
    transfers.store(storing(blocks, target))
    assert torch.equal(target, rows(3, first=50))
    seen = blank()
    transfers.engine_waits(transfers.load(loading(rows(3), blocks)))
    engine.submit(partial(put, blocks, seen))
    engine.run_all()
    assert torch.equal(seen, rows(3))


def test_nothing_to_load_is_a_point_of_the_device_too() -> None:
    device = SlowDevice()
    transfers = Transfers(DEVICE, make_side=device.side)
    transfers.engine_waits(transfers.load([]))
    device.engine.run_all()


def test_an_engine_that_stays_on_its_stream_costs_no_waits_when_it_says_so() -> None:
    device = SlowDevice()
    transfers = Transfers(DEVICE, make_side=device.side)
    for _ in range(100):
        transfers.follow_engine()
    assert not any(side.stream.work for side in device.sides)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["write", "store", "load", "check"]), st.integers(0, 3)), max_size=30
    ),
    eager=st.sampled_from(PACES),
    seed=st.integers(0, 999),
)
def test_an_engine_on_many_streams_sees_what_one_on_a_single_stream_would(
    steps: list[tuple[str, int]], eager: float, seed: int
) -> None:
    """Blocks that streams write by turns, each behind the one before only through transfers between them."""
    device = SlowDevice(seed=seed, eager=eager)
    transfers = Transfers(DEVICE, make_side=device.side)
    streams = [device.make() for _ in range(4)]
    blocks, wanted = rows(2), rows(2)
    checks: list[tuple[torch.Tensor, torch.Tensor]] = []
    for at, (what, number) in enumerate(steps):
        device.now = streams[number]
        transfers.follow_engine()
        fresh = rows(2, first=1 + 2 * at)
        if what == "write":
            # An engine orders its own streams: here, by a store that is over before.
            transfers.store(storing(blocks, blank(2)))
            device.now.submit(partial(put, fresh, blocks))
            wanted = fresh
        elif what == "store":
            target = blank(2)
            transfers.store(storing(blocks, target))
            assert torch.equal(target, wanted)
        elif what == "load":
            transfers.engine_waits(transfers.load(loading(fresh, blocks)))
            wanted = fresh
        else:
            seen = blank(2)
            transfers.engine_waits(transfers.load([]))
            device.now.submit(partial(put, blocks, seen))
            checks.append((seen, wanted))
    for stream in streams:
        stream.run_all()
    for side in device.sides:
        side.stream.run_all()
    assert all(torch.equal(seen, told) for seen, told in checks)


# --- memory that several streams share -----------------------------------------------------------------------------


@pytest.mark.parametrize("eager", PACES)
@pytest.mark.parametrize("streams", [1, 2, L1_STREAMS_MAX, 3 * L1_STREAMS_MAX])
def test_who_enters_comes_behind_all_who_have_left(streams: int, eager: float) -> None:
    device = SlowDevice(seed=streams, eager=eager)
    order = StreamOrder(device)
    memory = blank(1)
    used = [device.make() for _ in range(streams)]
    for at, stream in enumerate(used):
        device.now = stream
        order.enter()
        stream.submit(partial(put, rows(1, first=at + 1), memory))
        order.leave()
    assert len(order._left) <= L1_STREAMS_MAX
    device.now = device.make()
    order.enter()
    seen = blank(1)
    device.now.submit(partial(put, memory, seen))
    device.now.run_all()
    assert torch.equal(seen, rows(1, first=streams))
    for stream in used:
        stream.run_all()
    assert torch.equal(memory, seen), "nobody was late"


@pytest.mark.parametrize("readers", [2, L1_STREAMS_MAX + 5])
def test_who_writes_comes_behind_readers_side_by_side(readers: int) -> None:
    device = SlowDevice()
    order = StreamOrder(device)
    memory = rows(1)
    reading: list[tuple[Stream, torch.Tensor]] = []
    for _ in range(readers):
        device.now = device.make()
        order.enter()
        seen = blank(1)
        device.now.submit(partial(put, memory, seen))
        reading.append((device.now, seen))
    for stream, _ in reading:
        device.now = stream
        order.leave()
    device.now = device.make()
    order.enter()
    device.now.submit(partial(put, rows(1, first=90), memory))
    device.now.run_all()
    for stream, _ in reading:
        stream.run_all()
    assert all(torch.equal(seen, rows(1)) for _, seen in reading)


def test_who_fails_inside_has_left() -> None:
    device = SlowDevice()
    order = StreamOrder(device)
    with pytest.raises(ZeroDivisionError), order.entered():
        raise ZeroDivisionError
    assert [stream for stream, _ in order._left] == [device.engine]


def test_one_stream_alone_waits_for_nothing() -> None:
    device = SlowDevice()
    order = StreamOrder(device)
    for _ in range(100):
        order.enter()
        order.leave()
    assert not device.engine.work


def test_a_device_without_streams_has_no_order_to_keep() -> None:
    order = StreamOrder(None)
    order.enter()
    order.leave()


def test_many_threads_enter_and_leave() -> None:
    """No point that is kept is one that a later one has replaced."""
    device = SlowDevice()
    order = StreamOrder(device)
    threads = [threading.Thread(target=_come_and_go, args=(order,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [stream for stream, _ in order._left] == [device.engine]


def _come_and_go(order: StreamOrder) -> None:
    for _ in range(200):
        order.enter()
        order.leave()
