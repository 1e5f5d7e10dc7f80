"""Loads from L3 into the arena, as those see them who ask for pages: the attach socket and gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_types.ids import NamespaceId, PageKey
from kv_types.loading import ComputeCost, LoadDecision
from kv_types.outcomes import MissReason


@dataclass(frozen=True, slots=True)
class LoadRow:
    """Consecutive pages of one chain that are wanted in the arena.

    `keys` (n × 32 bytes, n ≥ 1) follow `parent`; None: they begin the chain. Whatever stands before them must be
    resident already: a page can be published on its parent only.
    """

    namespace: NamespaceId
    parent: PageKey | None
    keys: bytes


@dataclass(frozen=True, slots=True)
class RowLoaded:
    """What is staged of a row. `pages` + what misses for `reason` are all of its keys, those pending among the latter."""

    pages: int
    """Pages of the row, from its first on, that are in the arena now."""
    from_l3: int
    """Index in the row of the first page that this load brought from L3; all after it are L3's. `pages` when none is."""
    reason: MissReason
    """Why the row ends there; NONE when it doesn't."""
    pending: int = 0
    """Pages after those that are asked of L3 still: they may come or not."""


class Load(Protocol):
    """One request under way, with a waiter or without."""

    @property
    def decision(self) -> LoadDecision | None:
        """What was chosen between loading and computing, once it is answered; None where L3 had nothing to load."""
        ...

    async def wait(self) -> list[RowLoaded]:
        """Return what is staged when all is decided, at the latest at the deadline: one answer a row, in order.

        Never raises for what L3 does; a wait that is cancelled is the load's end, as `cancel` is.
        """
        ...

    def so_far(self) -> list[RowLoaded]:
        """Return what is staged now and what is pending, without waiting: for prefetches. Changes nothing."""
        ...

    def cancel(self) -> None:
        """Nobody waits for this any more: what nobody else waits for and is not in flight yet is not fetched. Idempotent."""
        ...


class Loads(Protocol):
    """Brings pages that the arena lacks from L3, each once however many ask."""

    @property
    def is_available(self) -> bool:
        """Whether there is an L3 at all; without one nobody needs to ask."""
        ...

    def begin(
        self,
        rows: Sequence[LoadRow],
        *,
        deadline_ns: int,
        group: bool = False,
        compute: ComputeCost | None = None,
    ) -> Load:
        """Begin to load what the arena lacks of the rows, until `deadline_ns` of CLOCK_BOOTTIME.

        `compute` is what the worker needs to compute each row's pages, from its first key on: then rows are loaded only as far
        as that takes longer, and end with COMPUTE_IS_FASTER.

        With `group` the rows are shards of one tensor-parallel group: every row's answer is the length that is common to
        all, and no more than that is loaded for any.

        Raises InvalidArgumentError (no rows, torn or no keys), LimitExceededError (LOOK_UP_ROWS_MAX rows, CHAIN_PAGES_MAX
        pages in all). A namespace that is unknown here is a reason in its row, and so is everything else.
        """
        ...
