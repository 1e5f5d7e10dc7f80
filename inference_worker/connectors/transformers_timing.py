"""How long forward passes take: measured around them, on the host's clock or the device's own, and told once they are over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TOKENS_LEAST = 256
"""Shorter passes take as long as the weights take to be read, which says nothing of a prompt's pages."""


class PassTimer:
    """Times one pass over `tokens` tokens of prompts behind `start` others."""

    def __init__(self, device: torch.device, *, tokens: int, start: int) -> None:
        self.tokens, self.start = tokens, start
        self._device = device
        self._seconds = 0.0
        self._events: tuple[Any, ...] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The pass is what happens in here; on a CUDA device nothing waits for it."""
        if self._device.type == "cuda":
            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            stream = torch.cuda.current_stream(self._device)
            self._events[0].record(stream)
            yield
            self._events[1].record(stream)
        else:
            began = time.perf_counter()
            yield
            self._seconds = time.perf_counter() - began

    def seconds(self) -> float | None:
        """How long it took; None where that says nothing, or is not known yet."""
        if self.tokens < _TOKENS_LEAST:
            return None
        if self._events is not None:
            return self._events[0].elapsed_time(self._events[1]) / 1000 if self._events[1].query() else None
        return self._seconds if self._seconds > 0.0 else None
