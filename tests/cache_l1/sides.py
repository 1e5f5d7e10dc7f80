"""Streams of a device that is as slow as it may be: work is done when somebody waits for it, or at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cache_l1.transfer_streams import Event, StreamSide

POISON = 0xEE
Work = Callable[[], None]


@dataclass(eq=False)
class Stream:
    """Work in order, of which the first `done` has happened. `eager`: how likely it is that some happens by itself."""

    draw: random.Random
    eager: float
    work: list[Work] = field(default_factory=list)
    done: int = 0

    def submit(self, work: Work) -> None:
        self.work.append(work)
        while self.done < len(self.work) and self.draw.random() < self.eager:
            self.run(self.done + 1)

    def run(self, upto: int) -> None:
        while self.done < upto:
            self.done += 1
            self.work[self.done - 1]()

    def run_all(self) -> None:
        self.run(len(self.work))

    def record_event(self) -> Point:
        return Point(self, len(self.work))

    def wait_event(self, event: Point) -> None:
        self.submit(event.synchronize)


@dataclass
class Point:
    """An event: a place in a stream's work."""

    stream: Stream
    at: int

    def synchronize(self) -> None:
        self.stream.run(self.at)


class SlowDevice:
    """An engine's stream, more that it may change to, and the side streams of transfers. Staging memory begins poisoned.

    Conforms to cache_l1.transfer_streams.Streams.
    """

    def __init__(self, *, seed: int = 0, eager: float = 0.0) -> None:
        self.draw = random.Random(seed)
        self.eager = eager
        self.engine = self.make()
        self.now = self.engine
        """What whoever calls gives work to."""
        self.sides: list[SlowSide] = []

    def make(self) -> Stream:
        return Stream(self.draw, self.eager)

    def current(self) -> Stream:
        return self.now

    @contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def staging(self, size_bytes: int) -> torch.Tensor:
        return torch.full((size_bytes,), POISON, dtype=torch.uint8)

    def side(self, device: torch.device) -> SlowSide:
        self.sides.append(SlowSide(self))
        return self.sides[-1]

    def pending(self) -> int:
        """Work of side streams that has not happened."""
        return sum(len(side.stream.work) - side.stream.done for side in self.sides)


class SlowSide(StreamSide):
    """What is submitted happens when the stream comes to it."""

    def __init__(self, device: SlowDevice) -> None:
        super().__init__(device)
        assert isinstance(self._stream, Stream)
        self.stream = self._stream
        self.buffers: list[torch.Tensor] = []

    def staging(self, size_bytes: int) -> torch.Tensor:
        self.buffers.append(super().staging(size_bytes))
        return self.buffers[-1]

    def submit(self, work: Work) -> None:
        self.stream.submit(work)


class HastySide(SlowSide):
    """Says that work is done which is not: what a transfer would see that forgot to wait."""

    def record(self) -> Event:
        return Point(self.stream, 0)
