"""A simulated tier and worker: what load-or-recompute costs against loading always and loading never, seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from kv_policy.load_or_recompute import LoadOrRecompute
from kv_types.loading import ComputeCost

_PAGE_TOKENS = 64
_FLIGHT_PAGES = 64
"""Pages that a sidecar has on their way at a time: those of a load that is given up come still, and are paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One tier and one worker. `bandwidth` tells bytes a second by the part of the requests that are over."""

    name: str
    bandwidth: Callable[[float], float]
    latency_s: float
    page_bytes: int
    tokens_per_s: float
    noise: float = 0.2
    """Standard deviation of the logarithm of each transfer's time."""
    requests: int = 1000


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds until all requests had their prefixes, by strategy; `chosen` is ours."""

    chosen: float
    always: float
    never: float

    @property
    def regret(self) -> float:
        """By which part ours is worse than the better of the others; below 0 where it beats both."""
        return self.chosen / min(self.always, self.never) - 1.0


def constant(bytes_per_s: float) -> Callable[[float], float]:
    """A bandwidth that stays."""
    return lambda done: bytes_per_s


def steps(*bandwidths: float) -> Callable[[float], float]:
    """One bandwidth after another, each for an equal part of the requests."""
    return lambda done: bandwidths[min(int(done * len(bandwidths)), len(bandwidths) - 1)]


def simulate(scenario: Scenario, *, seed: int) -> Costs:
    """Run the requests of a scenario, one after another; equal seeds give equal costs."""
    draw = random.Random(f"{scenario.name} {seed}")
    tier = LoadOrRecompute()
    a_page = _PAGE_TOKENS / scenario.tokens_per_s
    now_s = chosen = always = never = 0.0
    for number in range(scenario.requests):
        pages = min(512, max(1, round(draw.lognormvariate(math.log(48), 1.0))))
        depth = draw.randrange(64)
        # Attention doubles the cost of a token at position 32,768.
        growth = a_page * _PAGE_TOKENS / 32_768
        cost = ComputeCost(a_page + depth * growth, growth)
        factor = math.exp(draw.gauss(0.0, scenario.noise))
        bandwidth = scenario.bandwidth(number / scenario.requests)

        def load_s(count: int, bandwidth: float = bandwidth, factor: float = factor) -> float:
            return (scenario.latency_s + count * scenario.page_bytes / bandwidth) * factor if count else 0.0

        took_s = _chosen_s(tier, scenario, cost, pages, now_s, load_s)
        chosen += took_s
        now_s += took_s + draw.expovariate(20.0)
        always += load_s(pages)
        never += cost.seconds(pages)
    return Costs(chosen, always, never)


def _chosen_s(
    tier: LoadOrRecompute,
    scenario: Scenario,
    cost: ComputeCost,
    pages: int,
    began_s: float,
    load_s: Callable[[int], float],
) -> float:
    """Time of one request as the course of its load has it: loading in steps, then computing the rest."""
    if tier.rules_out(pages, scenario.page_bytes, cost) is not None:
        return cost.seconds(pages)
    course = tier.course(pages, scenario.page_bytes, cost, left_s=math.inf, now_s=began_s)
    now_s, came = began_s, 0
    begun, base = began_s, 0
    step = course.look(0, now_s)
    while step is not None:
        whole_s = load_s(step.upto - base)
        if begun + whole_s <= now_s + step.look_s:
            now_s, came = begun + whole_s, step.upto
        else:
            now_s += step.look_s
            part = (now_s - begun - load_s(0)) / whole_s
            came = max(came, base + int(part * (step.upto - base)))
        upto = step.upto
        step = course.look(came, now_s)
        if step is not None and came >= upto:
            begun, base = now_s, came
    return now_s - began_s + cost.seconds(pages - came, start=came)
