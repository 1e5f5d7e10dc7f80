"""A naive twin of Validity: it keeps every record for ever and evaluates each literally. Knows no product code of validity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.selectors import Origin, Selector
from tests.kv_types.selector_samples import literally_selects


@dataclass(frozen=True, slots=True)
class SomePage:
    """What is judged. `revision` is that of its stamp."""

    space: Namespace
    chain: tuple[PageKey, ...]
    origin: Origin
    revision: int


@dataclass(slots=True)
class NaiveLog:
    """All records of one incarnation; record n at selectors[n − 1]. None stands for one that selects nothing."""

    skew_ms: int
    selectors: list[Selector | None] = field(default_factory=list)

    def is_selected(self, selector: Selector, page: SomePage) -> bool:
        """Whether a selector means this page."""
        return (selector.key is None or selector.key in page.chain) and literally_selects(
            selector, page.space, page.origin, skew_ms=self.skew_ms
        )

    def is_valid(self, page: SomePage, position: int) -> bool:
        """Whether none of the records after the page's stamp, up to a position, selects it."""
        later: Sequence[Selector | None] = self.selectors[page.revision : position]
        return not any(selector is not None and self.is_selected(selector, page) for selector in later)
