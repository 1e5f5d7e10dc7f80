"""The fake is a PageStore like any other: the suite runs on it, and the suite's own power is shown by broken fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from kv_types.ids import NamespaceId, PageKey, Stamp
from kv_types.outcomes import Hit, LookUpOutcome, MissReason, PutOutcome, Refused, RefuseReason, Tier
from tests.conformance.fake_store import FakePageStore
from tests.conformance.harness import StoreHarness, chain, fresh_salt, namespace, sources
from tests.conformance.page_store import PageStoreConformance
from tests.conformance.page_store_machine import run_page_store_machine


def _harness(store: FakePageStore) -> StoreHarness:
    return StoreHarness(store, store.register, hide=store.hide)


class TestFakePageStore(PageStoreConformance):
    @pytest.fixture
    def harness(self) -> StoreHarness:
        return _harness(FakePageStore())


class _SwapsTwoPages(FakePageStore):
    def get(
        self, namespace: NamespaceId, keys: Sequence[PageKey], destinations: Sequence[memoryview]
    ) -> LookUpOutcome:
        swapped = list(destinations)
        swapped[:2] = swapped[:2][::-1]
        return super().get(namespace, keys, swapped)


class _KeepsOrphans(FakePageStore):
    def hide(self, namespace: NamespaceId, key: PageKey) -> None:
        self._pages.pop((namespace, key), None)


class _ServesBeyondAHole(_KeepsOrphans):
    def _prefix(self, namespace: NamespaceId, keys: Sequence[PageKey]) -> int:
        return sum((namespace, key) in self._pages for key in keys)


class _LosesAMiss(FakePageStore):
    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), "missed_pages_absent": 0}


class _OverwritesKnownPages(FakePageStore):
    def put(
        self,
        namespace: NamespaceId,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        *,
        stamp: Stamp | None,
        start: int = 0,
    ) -> list[PutOutcome]:
        outcomes = super().put(namespace, keys, sources, start=start, stamp=stamp)
        for key, source in zip(keys[start:], sources, strict=True):
            if page := self._pages.get((namespace, key)):
                self._pages[namespace, key] = type(page)(page.parent, bytes(source))
        return outcomes


BROKEN: list[Callable[[], FakePageStore]] = [
    _SwapsTwoPages,
    _ServesBeyondAHole,
    _KeepsOrphans,
    _LosesAMiss,
    _OverwritesKnownPages,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_the_machine_finds_each_broken_store(broken: Callable[[], FakePageStore]) -> None:
    store = broken()
    space = store.register(namespace())
    with pytest.raises((AssertionError, KeyError)):
        run_page_store_machine(
            _harness(store), space, examples=600, steps=30, shrink=False, same_each_time=True
        )


def test_a_full_fake_refuses_and_keeps_the_head() -> None:
    store = FakePageStore(tier=Tier.L3, capacity_pages=2)
    space = store.register(namespace())
    keys = chain(space, 4, salt=fresh_salt())
    outcomes = store.put(space, keys, sources(keys), stamp=store.stamp())
    assert outcomes[2:] == [Refused(RefuseReason.FULL), Refused(RefuseReason.PARENT_ABSENT)]
    assert store.look_up(space, keys) == Hit(2, Tier.L3, MissReason.ABSENT)
