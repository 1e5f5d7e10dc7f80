"""Interleaved timing: every scenario runs once a round, so that noise of the machine falls on all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

SEED = 11


@dataclass
class Samples:
    """Seconds of one scenario, one sample a round; `inner` calls were timed together."""

    seconds: list[float] = field(default_factory=list)
    inner: int = 1

    @property
    def p50_s(self) -> float:
        """Median seconds of one call."""
        return float(np.percentile(self.seconds, 50)) / self.inner

    @property
    def p99_s(self) -> float:
        """99th percentile of the seconds of one call."""
        return float(np.percentile(self.seconds, 99)) / self.inner


@dataclass(frozen=True)
class Scenario:
    """Something to time. `prepare(round)` is not timed; `run(round)` is, and calls the thing `inner` times."""

    name: str
    run: Callable[[int], None]
    prepare: Callable[[int], None] | None = None
    inner: int = 1


def interleave(scenarios: list[Scenario], *, rounds: int, warm_up: int = 2) -> dict[str, Samples]:
    """Run each scenario once a round, in an order drawn anew from SEED, and return the samples by name."""
    if len({scenario.name for scenario in scenarios}) < len(scenarios):
        raise ValueError("scenarios of one run need different names")
    samples = {scenario.name: Samples(inner=scenario.inner) for scenario in scenarios}
    shuffle = random.Random(SEED)
    for number in range(warm_up + rounds):
        # Shuffled: what a scenario leaves in caches and write buffers must not always meet the same successor.
        for scenario in shuffle.sample(scenarios, len(scenarios)):
            if scenario.prepare is not None:
                scenario.prepare(number)
            began = time.perf_counter()
            scenario.run(number)
            ended = time.perf_counter()
            if number >= warm_up:
                samples[scenario.name].seconds.append(ended - began)
    return samples


def ratio_p50(numerator: Samples, *denominators: Samples) -> float:
    """Median over rounds of numerator ÷ the denominator that has the lowest median (the better of the copies)."""
    best = min(denominators, key=lambda samples: samples.p50_s)
    pairs = np.asarray(numerator.seconds) / numerator.inner / (np.asarray(best.seconds) / best.inner)
    return float(np.median(pairs))
