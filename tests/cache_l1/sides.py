"""Streams of a device that is as slow as it may be: work is done when somebody waits for it, or at random moments."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cache_l1.transfer import Event

POISON = 0xEE
Work = Callable[[], None]


@dataclass
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


@dataclass
class Point:
    """An event: a place in a stream's work."""

    stream: Stream
    at: int

    def synchronize(self) -> None:
        self.stream.run(self.at)


class SlowDevice:
    """An engine's stream and the side streams of transfers. Staging memory begins poisoned."""

    def __init__(self, *, seed: int = 0, eager: float = 0.0) -> None:
        self.draw = random.Random(seed)
        self.eager = eager
        self.engine = Stream(self.draw, eager)
        self.sides: list[SlowSide] = []

    def side(self, device: torch.device) -> SlowSide:
        self.sides.append(SlowSide(self))
        return self.sides[-1]

    def pending(self) -> int:
        """Work of side streams that has not happened."""
        return sum(len(side.stream.work) - side.stream.done for side in self.sides)


class SlowSide:
    """Conforms to cache_l1.transfer.Side."""

    def __init__(self, device: SlowDevice) -> None:
        self.device = device
        self.stream = Stream(device.draw, device.eager)
        self.buffers: list[torch.Tensor] = []

    def staging(self, size_bytes: int) -> torch.Tensor:
        self.buffers.append(torch.full((size_bytes,), POISON, dtype=torch.uint8))
        return self.buffers[-1]

    def follow_engine(self) -> None:
        pass

    def wait_for_engine(self) -> None:
        engine = self.device.engine
        at = len(engine.work)
        self.stream.submit(lambda: engine.run(at))

    def submit(self, work: Work) -> None:
        self.stream.submit(work)

    def record(self) -> Event:
        return Point(self.stream, len(self.stream.work))

    def engine_waits(self, event: Event) -> None:
        self.device.engine.submit(event.synchronize)


class HastySide(SlowSide):
    """Says that work is done which is not: what a transfer would see that forgot to wait."""

    def record(self) -> Event:
        return Point(self.stream, 0)
