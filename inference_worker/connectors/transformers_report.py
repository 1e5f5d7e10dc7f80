"""What reuse did for one call: tokens and pages a row and tier, bytes, outcomes and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_types.namespace import Uncacheable
from kv_types.outcomes import MissReason, PutOutcome, Refused, Stored


@dataclass(slots=True)
class RowReuse:
    """One row: `tokens` real ones, of which `reused` needed no computation.

    Pages found may cover more than was reused: a batch computes from one column on in all rows, and the
    last token of a row is always computed. `ended_by` says why the look-up found no more pages.
    """

    tokens: int
    reused: int = 0
    pages_l1: int = 0
    pages_l2: int = 0
    pages_l3: int = 0
    ended_by: MissReason = MissReason.NONE


@dataclass(slots=True)
class ReuseReport:
    """What one prefill or generate reused and stored.

    `off` says why nothing was looked up or why nothing was stored, empty when reuse was on. Bytes are those
    of whole pages; those over host memory are what L2 and L3 gave and what they were offered, none of L1.
    `refused` counts pages by reason's name.
    """

    rows: list[RowReuse]
    off: str = ""
    uncacheable: Uncacheable | None = None
    bytes_from_l1: int = 0
    bytes_from_l2: int = 0
    bytes_from_l3: int = 0
    bytes_stored: int = 0
    bytes_over_host: int = 0
    pages_stored: int = 0
    pages_known: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    look_up_s: float = 0.0
    store_s: float = 0.0

    @classmethod
    def of(
        cls, lengths: Sequence[int], *, off: str = "", uncacheable: Uncacheable | None = None
    ) -> ReuseReport:
        """Start a report on rows of so many real tokens."""
        return cls([RowReuse(length) for length in lengths], off=off, uncacheable=uncacheable)

    @property
    def tokens(self) -> int:
        """Real tokens of all rows."""
        return sum(row.tokens for row in self.rows)

    @property
    def reused(self) -> int:
        """Tokens of all rows that needed no computation."""
        return sum(row.reused for row in self.rows)

    def add_puts(self, outcomes: Sequence[PutOutcome], *, page_bytes: int) -> None:
        """Count what became of the pages of one put."""
        for outcome in outcomes:
            if isinstance(outcome, Stored):
                self.pages_stored += 1
                self.bytes_stored += page_bytes
            elif isinstance(outcome, Refused):
                self.refused[outcome.reason.name.lower()] += 1
            else:
                self.pages_known += 1
