"""In which form attention reads a prefix of L1, by the length of the context: a pure function of what was measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kv_types.errors import InvalidArgumentError


class Layout(StrEnum):
    """How a context lies while it is read."""

    CONTIGUOUS = "contiguous"
    """Gathered once into the engine's contiguous cache."""
    PAGED = "paged"
    """Where its pages lie, through a block table at each step; nothing is copied."""
    COMPRESSED = "compressed"
    """Kept in fewer bytes, and expanded once into the engine's contiguous cache. Not exact where it rounds."""


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """Seconds of one layout for a context of so many tokens: once before the first step, then at each step."""

    tokens: int
    bring_s: float
    read_s: float


def choose_layout(
    tokens: int,
    *,
    steps: int,
    measured: Mapping[Layout, Sequence[LayoutCost]],
    is_exact: bool = True,
) -> Layout:
    """The layout in which a context of `tokens` tokens costs least when `steps` steps read it.

    `measured`: each layout's costs at ascending lengths; between two lengths, and beyond the last, cost is taken for linear
    in tokens. `is_exact` leaves out what rounds. Ties go to the layout that is named first in Layout. Raises
    InvalidArgumentError for a negative number and where nothing was measured.
    """
    if tokens < 0 or steps < 0:
        raise InvalidArgumentError(f"{steps} steps over {tokens} tokens: neither can be negative")
    allowed = [
        layout for layout in Layout if measured.get(layout) and not (is_exact and layout is Layout.COMPRESSED)
    ]
    if not allowed:
        raise InvalidArgumentError("no layout that may be used was measured")
    return min(allowed, key=lambda layout: cost_s(tokens, steps=steps, measured=measured[layout]))


def cost_s(tokens: int, *, steps: int, measured: Sequence[LayoutCost]) -> float:
    """Seconds of one layout, by straight lines through what was measured; below the shortest length, those of that length.

    Raises InvalidArgumentError where nothing was measured, or not at ascending lengths.
    """
    lengths = [one.tokens for one in measured]
    if not lengths or lengths != sorted(set(lengths)) or lengths[0] < 1:
        raise InvalidArgumentError(
            f"costs are measured at ascending lengths of at least one token; got {lengths}"
        )
    totals = [one.bring_s + steps * one.read_s for one in measured]
    at = bisect_left(lengths, tokens)
    if at == 0:
        return totals[0]
    if at == len(lengths):
        return totals[-1] * tokens / lengths[-1]
    share = (tokens - lengths[at - 1]) / (lengths[at] - lengths[at - 1])
    return totals[at - 1] + share * (totals[at] - totals[at - 1])
