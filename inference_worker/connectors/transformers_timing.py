"""How long forward passes take: measured around them, on the host's clock or the device's own, and told once they are over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

_TOKENS_LEAST = 256
"""Shorter passes take as long as the weights take to be read, which says nothing of a prompt's pages."""


class PrefillObserver(Protocol):
    """Who learns how fast prompts are computed: a client, or a call."""

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        """Take note of how long a pass over so many tokens of prompts, behind `start` others, took."""
        ...


class PassTimer:
    """Times one pass over `tokens` tokens of prompts behind `start` others."""

    def __init__(self, device: torch.device, *, tokens: int, start: int) -> None:
        self.tokens, self.start = tokens, start
        self._device = device
        self._has_begun = False
        self._began_s = self._seconds = 0.0
        self._events: tuple[Any, ...] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The pass is what happens in here; on a CUDA device nothing waits for it."""
        self._begin()
        yield
        self._end()

    @contextmanager
    def first_pass(self, module: Any) -> Iterator[None]:
        """The pass is the first one of `module` that this thread makes in here, if it is over just these tokens."""
        own, passes = threading.get_ident(), 0

        def before(called: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            nonlocal passes
            if threading.get_ident() != own:  # the model may serve other threads meanwhile
                return
            passes += 1
            given = named.get("input_ids", args[0] if args else None)
            if passes == 1 and isinstance(given, torch.Tensor) and given.numel() == self.tokens:
                self._begin()

        def after(called: Any, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == own and passes == 1 and self._has_begun:
                self._end()

        hooks = (
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self) -> None:
        self._has_begun = True
        if self._device.type == "cuda":
            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._events[0].record(torch.cuda.current_stream(self._device))
        self._began_s = time.perf_counter()

    def _end(self) -> None:
        if self._events is not None:
            self._events[1].record(torch.cuda.current_stream(self._device))
        self._seconds = time.perf_counter() - self._began_s

    def tell(self, observer: PrefillObserver) -> None:
        """Tell how long it took, where that says something."""
        if (seconds := self.seconds()) is not None:
            observer.observe_prefill(self.tokens, start=self.start, seconds=seconds)

    def seconds(self) -> float | None:
        """How long it took; None where that says nothing, or is not known yet."""
        if self.tokens < _TOKENS_LEAST or self._seconds <= 0.0:
            return None
        if self._events is not None:
            return self._events[0].elapsed_time(self._events[1]) / 1000 if self._events[1].query() else None
        return self._seconds
