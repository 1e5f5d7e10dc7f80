"""How long the engine's steps take that compute prompts: told from when they were made and when their outcome came."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from inference_worker.connectors.vllm.plan import StepPlan
from inference_worker.connectors.vllm.requests import RequestState

_TOKENS_LEAST = 256
"""Shorter steps take as long as the weights take to be read, which says nothing of a prompt's pages."""
_PROMPT_SHARE_LEAST = 0.9
"""Of a step's tokens: the others are decoded, each for a row of its own."""
_STEPS_HELD = 3
"""So many are needed before any is told; the one before them, in which an engine gets ready, never is."""
_STEPS_KEPT = 64
"""Steps that are made and not over; of more, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a step computes of one request: `tokens` behind `start` others, of a prompt of `prompt_tokens`."""

    tokens: int
    start: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """A step computed so many tokens, which stand behind `start` others (of several rows: in the mean), in so long."""

    tokens: int
    start: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    made_s: float
    tokens: int
    """0: its time says nothing."""
    start: int


class PrefillSteps:
    """Pure. Follows an engine's steps, which end in the order in which they were made, one or several of them at a time.

    A step begins when it is made or, if that is later, when the one before it has ended. So where steps overlap, as in a
    pipeline of ranks, it is what a step adds that counts: the engine's throughput.
    """

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=_STEPS_KEPT)
        self._ended_s = 0.0
        self._has_begun = False
        self._held: list[PrefillSample] | None = []

    def made(self, number: int, parts: Iterable[Part], *, loads: bool, now_s: float) -> None:
        """A step was made. `loads`: it copies into the engine's blocks too, so that its time is not of computing alone."""
        parts = list(parts)
        prompt = [one for one in parts if one.start < one.prompt_tokens]
        tokens = sum(one.tokens for one in prompt)
        decoded = sum(one.tokens for one in parts) - tokens
        is_of_prompts = tokens >= _TOKENS_LEAST and tokens >= _PROMPT_SHARE_LEAST * (tokens + decoded)
        if loads or not is_of_prompts:
            self._steps.append(_Step(number, now_s, 0, 0))
            return
        # The start of one row for which attention is as much work: Σ nᵢ·(sᵢ + (nᵢ − 1)/2) = n·(s + (n − 1)/2).
        work = sum(one.tokens * (one.start + (one.tokens - 1) / 2) for one in prompt)
        start = max(0, round(work / tokens - (tokens - 1) / 2))
        self._steps.append(_Step(number, now_s, tokens, start))

    def ended(self, number: int, now_s: float) -> list[PrefillSample]:
        """The outcome of a step has come; returns what is known of prompts' speed now and was not told yet."""
        found = None
        while self._steps and self._steps[0].number <= number:
            step = self._steps.popleft()
            seconds = now_s - max(step.made_s, self._ended_s)
            if step.number == number and step.tokens and seconds > 0.0:
                found = PrefillSample(step.tokens, step.start, seconds)
        self._ended_s = max(self._ended_s, now_s)
        return [] if found is None else self._told(found)

    def _told(self, sample: PrefillSample) -> list[PrefillSample]:
        if self._held is None:
            return [sample]
        if not self._has_begun:
            self._has_begun = True
            return []
        self._held.append(sample)
        if len(self._held) < _STEPS_HELD:
            return []
        told, self._held = self._held, None
        return told


class Observer(Protocol):
    """Who is told: a client."""

    def observe_prefill(self, tokens: int, *, start: int, seconds: float) -> None:
        """Take note of it."""
        ...


class PrefillWatch:
    """The same with a clock, for the scheduler's side: reads the engine's requests, tells an observer."""

    def __init__(self, observer: Observer, now_s: Callable[[], float] = time.monotonic) -> None:
        self._observer = observer
        self._now_s = now_s
        self._steps = PrefillSteps()

    def made(self, plan: StepPlan, scheduled: Mapping[str, int], states: Mapping[str, RequestState]) -> None:
        """A step was made, and the engine has not yet counted its tokens as computed."""
        requests = {name: states[name].request for name in scheduled if name in states}
        parts = [
            Part(scheduled[name], request.num_computed_tokens, request.num_prompt_tokens)
            for name, request in requests.items()
        ]
        is_strange = len(parts) < len(scheduled)  # it computes something that isn't known here
        loads = is_strange or any(not job.is_async for job in plan.loads)
        self._steps.made(plan.step, parts, loads=loads, now_s=self._now_s())

    def ended(self, number: int) -> None:
        """The outcome of a step has come."""
        for sample in self._steps.ended(number, self._now_s()):
            self._observer.observe_prefill(sample.tokens, start=sample.start, seconds=sample.seconds)
