"""Used pages are offered coldest first, then round the arena, so many at a time, and each once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from cache_l2.store import ArenaStore
from kv_policy.admission import L3Admission
from kv_policy.load_or_recompute import LoadOrRecompute
from sidecar.l3.admission import Admission
from sidecar.l3.used_pages import UsedPages


@dataclass
class Page:
    key: bytes
    payload_bytes: int = 4096


@dataclass
class Store:
    """Tells of pages by number; so many parts are all of the arena."""

    cold: list[int] = field(default_factory=list)
    parts: list[list[int]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    turns: list[int] = field(default_factory=list)

    def cold_used_pages(self, *, turn: int, count: int) -> list[int]:
        self.turns.append(turn)
        return self.cold[:count]

    def used_pages(self, *, begin: int, count: int) -> tuple[int, list[int]]:
        return (begin + 1) % len(self.parts), self.parts[begin]

    def describe(self, instance: int) -> Page | None:
        return None if instance in self.gone else Page(instance.to_bytes(32, "little"))


def watching(store: Store) -> tuple[UsedPages, list[int]]:
    offered: list[int] = []
    admission = Admission(L3Admission.SECOND_USE, LoadOrRecompute())
    any_store: Any = store
    return UsedPages(cast("ArenaStore", any_store), admission, lambda one, size: offered.append(one)), offered


def test_what_is_coldest_comes_first_and_nothing_twice() -> None:
    store = Store(cold=[7, 3, 9], parts=[[1, 2, 3], [4, 7]], gone={9, 2})
    used, offered = watching(store)
    assert [used.look(0.0) for _ in range(3)] == [3, 1, 0]
    assert offered == [7, 3, 1, 4]
    assert store.turns == [0, 1, 2], "each time something else is looked at"


def test_so_many_at_a_time_and_the_rest_of_a_part_later() -> None:
    store = Store(cold=list(range(100)), parts=[list(range(50, 200)), [500]])
    used, offered = watching(store)
    assert used.look(0.0) == 64
    assert offered == list(range(64))
    assert used.look(0.0) == 64
    assert offered[64:] == [*range(64, 100), *range(100, 128)]
    assert [used.look(0.0) for _ in range(3)] == [64, 8, 1]
    assert sorted(offered) == [*range(200), 500]
