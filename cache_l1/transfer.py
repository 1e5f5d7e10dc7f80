"""Copies between host memory and a device, both ways, through pinned staging on side streams whose events order them.

Bytes that a device fetches from ordinary memory go through a buffer of the driver's, one at a time, while the engine waits.
Here they go through pinned buffers of our own: while the device moves one, the host fills or empties the other. Each
direction has buffers and a stream of its own. On a device without streams the same code runs in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from cache_l1.transfer_streams import Event, Side, side_of
from kv_types.engine_limits import L1_STAGING_BUFFERS, L1_STAGING_BYTES_MAX
from kv_types.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Part:
    """What fits one staging buffer: `host` fills or empties it, `device` moves it, either given uint8 [size_bytes].

    `device` runs on the side stream and may only submit work there.
    """

    size_bytes: int
    host: Callable[[torch.Tensor], None]
    device: Callable[[torch.Tensor], None]


def batches(pages: int, page_bytes: int) -> Iterator[range]:
    """Pages in turns, each of which fits one staging buffer; a larger page goes alone."""
    most = max(1, L1_STAGING_BYTES_MAX // L1_STAGING_BUFFERS // max(1, page_bytes))
    for first in range(0, pages, most):
        yield range(first, min(first + most, pages))


@dataclass(slots=True)
class _Buffer:
    memory: torch.Tensor | None = None
    busy: Event | None = None
    """The device reads or writes the memory until then."""
    awaited: Part | None = None
    """Whose bytes are to be taken out once the device has brought them."""


class _Lane:
    """One direction: its stream and buffers, used in turns. One transfer at a time."""

    def __init__(self, side: Side, *, buffers: int) -> None:
        self.side = side
        self.lock = threading.Lock()
        self._buffers = [_Buffer() for _ in range(buffers)]
        self._next = 0

    def take(self, size_bytes: int) -> tuple[_Buffer, torch.Tensor]:
        """The buffer that was given to the device longest ago, once the device is done with it."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        self.settle(buffer)
        if buffer.memory is None or buffer.memory.numel() < size_bytes:
            buffer.memory = self.side.staging(size_bytes)
        return buffer, buffer.memory[:size_bytes]

    def give(self, buffer: _Buffer, part: Part, *, awaited: bool) -> Event:
        """Have the device move it."""
        assert buffer.memory is not None, "it was taken"
        memory = buffer.memory[: part.size_bytes]
        try:
            self.side.submit(lambda: part.device(memory))
        finally:  # what was submitted before an error is waited for too
            buffer.busy = self.side.record()
        buffer.awaited = part if awaited else None
        return buffer.busy

    def settle(self, buffer: _Buffer) -> None:
        """Wait for the device, and take out what it has brought."""
        busy, part = buffer.busy, buffer.awaited
        buffer.busy = buffer.awaited = None
        if busy is not None:
            busy.synchronize()
        if part is not None and buffer.memory is not None:
            part.host(buffer.memory[: part.size_bytes])

    def settle_all(self) -> None:
        """Likewise of all, in the order in which they were given to the device."""
        for at in range(len(self._buffers)):
            self.settle(self._buffers[(self._next + at) % len(self._buffers)])

    def abandon(self) -> None:
        """After an error: wait for the device, whose work names memory of the caller's, and forget what it has brought."""
        for buffer in self._buffers:
            buffer.awaited = None
        self.settle_all()


class Transfers:
    """Loads and stores of one device. Thread-safe; a load and a store run side by side."""

    def __init__(
        self,
        device: torch.device,
        *,
        make_side: Callable[[torch.device], Side] = side_of,
        buffers: int = L1_STAGING_BUFFERS,
    ) -> None:
        """`buffers` of each direction, each as large as the largest part that it has held. Raises InvalidArgumentError."""
        if buffers < 1:
            raise InvalidArgumentError(f"a transfer needs at least one staging buffer; got {buffers}")
        self.device = device
        self._in = _Lane(make_side(device), buffers=buffers)
        self._out = _Lane(make_side(device), buffers=buffers)

    def follow_engine(self) -> None:
        """The engine's stream is the one that the calling thread has now, for loads and stores of other threads too.

        Who calls for itself needs not say so: its own current stream counts in any case.
        """
        self._in.side.follow_engine()
        self._out.side.follow_engine()

    def load(self, parts: Iterable[Part]) -> Event:
        """Host to device: `host` fills the buffer, then `device` moves it, behind what the engine was given before.

        Returns when everything is given to the device; the event is reached when it is in place. An error of `host` or
        `device` is raised once the device is done with the parts before.
        """
        lane = self._in
        with lane.lock:
            lane.side.wait_for_engine()
            event = lane.side.record()
            try:
                for part in parts:
                    buffer, memory = lane.take(part.size_bytes)
                    part.host(memory)
                    event = lane.give(buffer, part, awaited=False)
            except BaseException:
                lane.abandon()
                raise
        return event

    def store(self, parts: Iterable[Part]) -> None:
        """Device to host: `device` moves into the buffer, behind what the engine was given before; then `host` empties it.

        Returns when everything is out. An error of either is raised once the device is done with all parts before.
        """
        lane = self._out
        with lane.lock:
            lane.side.wait_for_engine()
            try:
                for part in parts:
                    buffer, _ = lane.take(part.size_bytes)
                    lane.give(buffer, part, awaited=True)
                lane.settle_all()
            except BaseException:
                lane.abandon()
                raise

    def load_straight(self, work: Callable[[], None]) -> Event:
        """Host to device without staging: `work` submits copies out of memory that the device reaches by itself.

        It comes behind what the engine was given before. What it names must stay until the event is reached, or, after an
        error, until this raises.
        """
        lane = self._in
        with lane.lock:
            lane.side.wait_for_engine()
            try:
                lane.side.submit(work)
            except BaseException:
                lane.side.record().synchronize()
                raise
            return lane.side.record()

    def engine_waits(self, event: Event) -> None:
        """What the engine is given from now on comes behind a load; the host doesn't wait."""
        self._in.side.engine_waits(event)
