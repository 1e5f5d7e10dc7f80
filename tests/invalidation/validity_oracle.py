"""A naive twin of Validity: it keeps every record for ever and evaluates each literally. Knows no product code of validity."""

from __future__ import annotations

from dataclasses import dataclass, field

from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.selectors import Origin, Selector
from tests.kv_types.selector_samples import literally_selects


@dataclass(frozen=True, slots=True)
class SomePage:
    """What is judged, but for its stamp."""

    space: Namespace
    chain: tuple[PageKey, ...]
    origin: Origin


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

    def newest(self, page: SomePage, position: int) -> int:
        """Newest record up to a position that selects the page, 0 for none: stamps from there on are valid."""
        for revision in range(position, 0, -1):
            selector = self.selectors[revision - 1]
            if selector is not None and self.is_selected(selector, page):
                return revision
        return 0
