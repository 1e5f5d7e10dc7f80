"""Made-up request traces of the kinds that fleets see: chats, agents, shared prompts, documents, batches, scans, by seed.

The policy is tuned on real traces. Of these, seeds 1 and 2 were looked at when its guard was set; tests use others.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SECOND_NS = 1_000_000_000

Request = tuple[int, list[int]]
"""Time in ns, and the numbers of the blocks asked for; a block's number stands for its whole prefix."""
Source = Iterator[Request]


@dataclass
class _Blocks:
    """Numbers of blocks that nobody had before."""

    next: int = 0

    def new(self, count: int) -> list[int]:
        first, self.next = self.next, self.next + count
        return list(range(first, self.next))


def _zipf(draw: random.Random, count: int, skew: float) -> Callable[[], int]:
    sums = list(itertools.accumulate((rank + 1) ** -skew for rank in range(count)))
    return lambda: draw.choices(range(count), cum_weights=sums)[0]


def _gap_ns(draw: random.Random, median_s: float, spread: float) -> int:
    return int(median_s * math.exp(draw.gauss(0, spread)) * SECOND_NS)


def _length(draw: random.Random, mean: float) -> int:
    return 1 + int(draw.expovariate(1 / mean))


def _sessions(
    draw: random.Random, blocks: _Blocks, *, every_s: float, prompts: int, prompt_blocks: float, turns: float,
    first_blocks: float, turn_blocks: float, think_s: float, spread: float,
) -> Source:  # fmt: skip
    """Sessions that begin at random and grow by turns; each request asks for all of its session so far."""
    systems = [blocks.new(_length(draw, prompt_blocks)) for _ in range(prompts)]
    choose = _zipf(draw, prompts, 1.0)
    serial = itertools.count()
    begins = int(draw.expovariate(1 / every_s) * SECOND_NS)
    due: list[tuple[int, int, list[int], int]] = []
    while True:
        while not due or begins <= due[0][0]:
            path = systems[choose()] + blocks.new(_length(draw, first_blocks))
            heapq.heappush(due, (begins, next(serial), path, _length(draw, turns)))
            begins += int(draw.expovariate(1 / every_s) * SECOND_NS) + 1
        now, _, path, left = heapq.heappop(due)
        yield now, path
        if left > 1:
            grown = path + blocks.new(_length(draw, turn_blocks))
            heapq.heappush(due, (now + _gap_ns(draw, think_s, spread), next(serial), grown, left - 1))


def chat(draw: random.Random, blocks: _Blocks) -> Source:
    """People who think for about a minute between turns."""
    return _sessions(
        draw, blocks, every_s=2.0, prompts=12, prompt_blocks=3, turns=4, first_blocks=3, turn_blocks=3,
        think_s=50, spread=0.9,
    )  # fmt: skip


def agents(draw: random.Random, blocks: _Blocks) -> Source:
    """Programs that come back after some seconds of running a tool, many times."""
    return _sessions(
        draw, blocks, every_s=9.0, prompts=4, prompt_blocks=12, turns=18, first_blocks=6, turn_blocks=2,
        think_s=6, spread=1.2,
    )  # fmt: skip


def shared_prompts(draw: random.Random, blocks: _Blocks) -> Source:
    """Single questions on top of one of many long prompts, a few of them much used."""
    return _sessions(
        draw, blocks, every_s=0.5, prompts=150, prompt_blocks=20, turns=1, first_blocks=2, turn_blocks=1,
        think_s=1, spread=0.1,
    )  # fmt: skip


def documents(draw: random.Random, blocks: _Blocks) -> Source:
    """One instruction, then one to three documents by popularity, then a question; the popular ones change slowly."""
    instruction = blocks.new(2)
    pages = [blocks.new(1)[0] for _ in range(400)]
    choose = _zipf(draw, len(pages), 0.9)
    paths: dict[tuple[int, ...], list[int]] = {}
    now = 0
    for turn in itertools.count():
        now += int(draw.expovariate(1.5) * SECOND_NS)
        drift = turn // 40
        path = list(instruction)
        named: tuple[int, ...] = ()
        for _ in range(draw.choice([1, 1, 2, 3])):
            named = (*named, pages[(choose() + drift) % len(pages)])
            if named not in paths:
                paths[named] = blocks.new(8)
            path += paths[named]
        yield now, path + blocks.new(1)


def batches(draw: random.Random, blocks: _Blocks) -> Source:
    """Jobs that ask several questions about one long text each, in quick succession, and never again."""
    now = 0
    while True:
        now += int(draw.expovariate(0.05) * SECOND_NS)
        text = blocks.new(_length(draw, 30))
        at = now
        for _ in range(_length(draw, 6)):
            yield at, text + blocks.new(2)
            at += _gap_ns(draw, 1.0, 0.5)
        now = at


def loops(draw: random.Random, blocks: _Blocks) -> Source:
    """The same prompts in the same order again and again, as evaluations do."""
    prompts = [blocks.new(_length(draw, 12)) for _ in range(200)]
    now = 0
    for prompt in itertools.cycle(prompts):
        now += SECOND_NS
        yield now, prompt + blocks.new(1)


def scans(draw: random.Random, blocks: _Blocks) -> Source:
    """Prompts of which nothing is ever asked for again."""
    now = 0
    while True:
        now += int(draw.expovariate(0.7) * SECOND_NS)
        yield now, blocks.new(_length(draw, 15))


KINDS: dict[str, tuple[Callable[[random.Random, _Blocks], Source], ...]] = {
    "chat": (chat,),
    "agents": (agents,),
    "shared prompts": (shared_prompts,),
    "documents": (documents,),
    "batches": (batches,),
    "loops": (loops,),
    "chat and scans": (chat, scans),
    "agents and batches": (agents, batches),
    "everything": (chat, agents, shared_prompts, documents, batches, scans),
}


def made_up(kind: str, seed: int, requests: int) -> list[Request]:
    """So many requests of a kind in order of time. Raises KeyError for a kind that is not among KINDS."""
    draw, blocks = random.Random(seed), _Blocks()
    merged = heapq.merge(*(source(draw, blocks) for source in KINDS[kind]), key=lambda request: request[0])
    return list(itertools.islice(merged, requests))
