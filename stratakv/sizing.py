"""What a trace says about sizes: capacities as people write them, curves, what of Belady's gap is closed, and how much is enough."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kv_policy.baselines import Replayed
from kv_policy.trace import Trace
from kv_types.errors import ConfigError
from kv_types.limits import ARENA_PAGES_MAX
from sidecar.units import parse_size

ENOUGH = 0.9
"""The part of the hits that a cache without bounds has, which is worth its memory: what is left costs ever more."""
_GAP_LEAST = 0.01
"""Between LRU and Belady; where there is less, nothing is to be won."""
_PLAIN = re.compile(r"(\d+)\s*(pages?)?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_NARROWED = 1.02
"""How exactly the advice is looked for: two parts in a hundred."""

Run = Callable[[str, int], Replayed]
"""Replays the trace through a policy of this name and of so many pages."""


@dataclass(frozen=True, slots=True)
class PageBytes:
    """Bytes of one page of a trace, where they can be told."""

    page_bytes: int | None = None
    bytes_per_token: int | None = None
    page_tokens: int | None = None

    def of(self, trace: Trace) -> int | None:
        """Bytes of a page; None when nobody has said."""
        if self.page_bytes is not None:
            return self.page_bytes
        tokens = self.tokens(trace)
        return None if self.bytes_per_token is None or tokens is None else self.bytes_per_token * tokens

    def tokens(self, trace: Trace) -> int | None:
        """Tokens of a page: as given, or as the trace's own lengths tell."""
        return self.page_tokens if self.page_tokens is not None else trace.block_tokens


def capacities(text: str, trace: Trace, sizes: PageBytes) -> list[int]:
    """Pages of "1%,2%,64GiB,5000", smallest first, each once. Raises ConfigError that says what to write."""
    found = {_capacity(part.strip(), trace, sizes) for part in text.split(",")}
    return sorted(found)


def _capacity(text: str, trace: Trace, sizes: PageBytes) -> int:
    share, plain = _SHARE.fullmatch(text), _PLAIN.fullmatch(text)
    if share is not None:
        part = float(share[1])
        if not 0 < part <= 100:
            raise ConfigError(f"--capacity: {text} is no part of a trace's pages; write 1% to 100%")
        return max(1, int(trace.distinct * part / 100))
    if plain is not None:
        pages = int(plain[1])
        if not 1 <= pages <= ARENA_PAGES_MAX:
            raise ConfigError(f"--capacity: a cache has 1 to {ARENA_PAGES_MAX:,} pages; got {text}")
        return pages
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError(
            f"--capacity: {text!r} is no capacity: write a share of the trace's pages (5%), pages (5000) or a size (64GiB)"
        ) from error
    page_bytes = sizes.of(trace)
    if page_bytes is None:
        needed = "" if sizes.bytes_per_token is None else " and --page-tokens, for the trace doesn't tell"
        raise ConfigError(f"--capacity: {text} is a size; say how large a page is, by --page-bytes or --bytes-per-token{needed}")
    if not 1 <= size // page_bytes <= ARENA_PAGES_MAX:
        raise ConfigError(f"--capacity: {text} is {size // page_bytes:,} pages; 1 to {ARENA_PAGES_MAX:,} can be replayed")
    return size // page_bytes


@dataclass(frozen=True, slots=True)
class Advice:
    """The smallest capacity with ENOUGH of what a cache without bounds hits, by one policy; `pages` None: nothing to hit."""

    policy: str
    pages: int | None
    hit: int
    achievable: int


@dataclass(frozen=True, slots=True)
class Curves:
    """A trace's outcome: by policy a Replayed for each capacity."""

    trace: Trace
    capacities: Sequence[int]
    points: Mapping[str, Sequence[Replayed]]
    advice: Advice | None = None

    @property
    def achievable(self) -> float:
        """The prefix-hit ratio of a cache without bounds."""
        return self.trace.reused / len(self.trace.blocks) if len(self.trace.blocks) else 0.0

    def closed(self, policy: str) -> list[float | None]:
        """What part of the gap between LRU and Belady a policy closes, a capacity; None where there is no gap to speak of."""
        if "lru" not in self.points or "belady" not in self.points:
            return [None] * len(self.capacities)
        parts: list[float | None] = []
        for one, lru, best in zip(
            self.points[policy], self.points["lru"], self.points["belady"], strict=True
        ):
            gap = best.ratio - lru.ratio
            parts.append((one.ratio - lru.ratio) / gap if gap > _GAP_LEAST else None)
        return parts


def mean_closed(curves: Sequence[Curves], policy: str) -> float | None:
    """The mean over all capacities of all traces at which there is a gap; None: there is none."""
    parts = [part for one in curves if policy in one.points for part in one.closed(policy) if part is not None]
    return math.fsum(parts) / len(parts) if parts else None


def advise(trace: Trace, policy: str, known: Mapping[int, Replayed], run: Run) -> Advice:
    """Narrow down, between the capacities that are known, the smallest that is enough. Hits are taken to grow with memory."""
    wanted = math.ceil(trace.reused * ENOUGH)
    if not trace.reused:
        return Advice(policy, None, 0, 0)
    enough, hit = trace.distinct, trace.reused
    too_few = 0
    for pages, one in sorted(known.items()):
        if one.hit >= wanted and pages < enough:
            enough, hit = pages, one.hit
        elif one.hit < wanted and pages < enough:
            too_few = pages
    while enough - too_few > 1 and enough > too_few * _NARROWED:
        middle = max(too_few + 1, min(enough - 1, math.isqrt(max(1, too_few) * enough)))
        got = run(policy, middle)
        if got.hit >= wanted:
            enough, hit = middle, got.hit
        else:
            too_few = middle
    return Advice(policy, enough, hit, trace.reused)
