"""Invalidations of a fleet under test: what they select, by rules of the test's own, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kv_types.ids import PageKey
from kv_types.selectors import Selector
from tests.fleet.stamped import Part, StampedPage, chain_keys, producer_name, tag_name, tenant_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """What an invalidation names; fields that are None don't restrict it. `chain` and `page` go with `tenant`."""

    tenant: int | None = None
    chain: int | None = None
    page: int = 0
    producer: int | None = None
    tag: int | None = None

    def selects(self, page: StampedPage) -> bool:
        """Whether it names this page, or one that the page was computed from; its computation's time left aside."""
        return any(self.selects_part(page, part) for part in page.lineage)

    def selects_part(self, page: StampedPage, part: Part) -> bool:
        """Whether it names what one part of a page's lineage was computed as."""
        if self.tenant not in (None, page.place.tenant):
            return False
        if self.chain is not None and (page.place.chain != self.chain or part.index < self.page):
            return False
        return self.producer in (None, part.producer) and self.tag in (None, part.tag)

    def selector(self) -> Selector:
        """The same for the product."""
        return Selector(
            tenant=None if self.tenant is None else tenant_name(self.tenant),
            key=None if self.chain is None else self._key(),
            producer=None if self.producer is None else producer_name(self.producer),
            tag=None if self.tag is None else tag_name(self.tag),
        )

    def arguments(self) -> list[str]:
        """The same for the command line."""
        told: list[str] = []
        if self.tenant is not None:
            told += ["--tenant", tenant_name(self.tenant)]
        if self.chain is not None:
            told += ["--key", self._key().hex()]
        if self.producer is not None:
            told += ["--producer", producer_name(self.producer).decode()]
        if self.tag is not None:
            told += ["--tag", tag_name(self.tag).decode()]
        return [*(told or ["--all"]), "--yes"]

    def _key(self) -> PageKey:
        assert self.tenant is not None
        assert self.chain is not None
        return chain_keys(self.tenant, self.chain, self.page + 1)[self.page]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """One invalidation that was tried: when (CLOCK_BOOTTIME ns), its exit code and the reason that it gave.

    Exit code 0: what was waited for holds since `ended_ns`. `missing` and `gone` are pids of sidecars.
    """

    purge: Purge
    invoked_ns: int
    ended_ns: int
    exit_code: int
    reason: str = ""
    missing: Sequence[int] = ()
    gone: Sequence[int] = ()

    @property
    def is_confirmed(self) -> bool:
        return self.exit_code == 0

    def forbids(self, page: StampedPage) -> bool:
        """Whether no look-up after it may get this page: something in it was begun before and is named."""
        return any(
            part.begun_ns < self.invoked_ns and self.purge.selects_part(page, part) for part in page.lineage
        )

    def may_take(self, page: StampedPage, *, lineage_known: bool) -> bool:
        """Whether it may rightly have cost somebody this page: something in it was begun before it was over.

        One that was not confirmed may be carried out at any time later.
        """
        named = self.purge if lineage_known else replace(self.purge, producer=None, tag=None)
        return any(
            (not self.is_confirmed or part.begun_ns <= self.ended_ns) and named.selects_part(page, part)
            for part in page.lineage
        )
