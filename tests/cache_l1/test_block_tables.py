"""Block tables against a model that keeps every request's tokens by itself: whatever is shared, each reads its own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from cache_l1.block_tables import BlockTable, Fragmentation, Growth, TailCopy
from cache_l1.pool import PagePool, runs
from kv_types.errors import ClosedError, InvalidArgumentError
from kv_types.limits import CHAIN_PAGES_MAX

CAPACITY = 12
PAGE_TOKENS = 3


def table_of(pool: PagePool, tokens: int, **settings_: Any) -> BlockTable:
    table = BlockTable(pool, page_tokens=PAGE_TOKENS, **settings_)
    assert table.append(tokens) is not None
    return table


class Twin(RuleBasedStateMachine):
    """A memory of tokens behind the pool, written as an engine would; the model keeps texts and nothing of pages."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(CAPACITY)
        self.memory = [[-1] * PAGE_TOKENS for _ in range(CAPACITY)]
        self.texts: dict[int, list[int]] = {}
        self.living: dict[int, BlockTable] = {}
        self.written = 0

    def _born(self, table: BlockTable, text: list[int]) -> int:
        number = len(self.texts)
        self.texts[number], self.living[number] = text, table
        return number

    @rule(target=tables)
    def begin(self) -> int:
        return self._born(BlockTable(self.pool, page_tokens=PAGE_TOKENS), [])

    @rule(number=tables, tokens=st.integers(0, 8))
    def append(self, number: int, tokens: int) -> None:
        table, text = self.living[number], self.texts[number]
        before, free = table.pages, self.pool.free_pages
        is_part = bool(tokens and len(text) % PAGE_TOKENS)
        copied = is_part and sum(before[-1] in one.pages for one in self.living.values()) > 1
        grown = table.append(tokens)
        needed = -(-(len(text) + tokens) // PAGE_TOKENS) - len(before) + copied
        if grown is None:
            assert needed > free
            assert table.pages == before
            return
        assert needed == len(grown.fresh) <= free
        assert (grown.tail is not None) == copied
        if grown.tail is not None:
            copy = grown.tail
            self.memory[copy.target][: copy.tokens] = self.memory[copy.source][: copy.tokens]
        for place in range(len(text), len(text) + tokens):
            page, within = table.locate(place)
            self.memory[page][within] = self.written
            text.append(self.written)
            self.written += 1

    @rule(target=tables, number=tables)
    def fork(self, number: int) -> int:
        return self._born(self.living[number].fork(), self.texts[number].copy())

    @rule(target=tables, number=tables, pages=st.integers(0, 4))
    def share_a_prefix(self, number: int, pages: int) -> int:
        full = len(self.texts[number]) // PAGE_TOKENS
        pages = min(pages, full)
        table = BlockTable(self.pool, page_tokens=PAGE_TOKENS)
        table.share(self.living[number].pages[:pages])
        return self._born(table, self.texts[number][: pages * PAGE_TOKENS])

    @rule(number=tables, share=st.floats(0, 1))
    def truncate(self, number: int, share: float) -> None:
        kept = int(len(self.texts[number]) * share)
        self.living[number].truncate(kept)
        del self.texts[number][kept:]

    @rule(number=consumes(tables))
    def end(self, number: int) -> None:
        table = self.living.pop(number)
        table.release()
        table.release()
        with pytest.raises(ClosedError):
            table.append(1)

    @invariant()
    def everybody_reads_what_they_wrote(self) -> None:
        for number, table in self.living.items():
            text = self.texts[number]
            assert table.tokens == len(text)
            places = [table.locate(at) for at in range(len(text))]
            assert [self.memory[page][within] for page, within in places] == text

    @invariant()
    def references_are_those_of_the_living(self) -> None:
        held = Counter(page for table in self.living.values() for page in table.pages)
        assert [self.pool.references(page) for page in range(CAPACITY)] == [
            held[at] for at in range(CAPACITY)
        ]
        counts = self.pool.statistics()
        assert (counts.used, counts.references) == (len(held), held.total())
        assert counts.shared == sum(count > 1 for count in held.values())

    def teardown(self) -> None:
        for table in self.living.values():
            table.release()
        assert self.pool.free_pages == CAPACITY


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


def test_a_shared_tail_is_copied_when_one_of_them_grows() -> None:
    pool = PagePool(8)
    one = table_of(pool, 4)
    other = one.fork()
    assert one.append(1) == Growth((2,), TailCopy(source=1, target=2, tokens=1))
    assert other.append(1) == Growth((), None), "nobody else has it any more"
    assert (one.pages, other.pages) == ((0, 2), (0, 1))
    third = other.fork()
    assert third.append(1) == Growth((3,), TailCopy(source=1, target=3, tokens=2))


def test_full_pages_are_shared_for_good() -> None:
    pool = PagePool(8)
    one = table_of(pool, 6)
    other = one.fork()
    assert other.append(2) == Growth((2,), None)
    assert pool.shared_pages == 2


def test_room_is_asked_for_and_what_is_refused_changes_nothing() -> None:
    pool = PagePool(4)
    others = [table_of(pool, 3) for _ in range(3)]
    asked: list[int] = []

    def make_room(pages: int) -> None:
        asked.append(pages)
        others.pop().release()

    table = table_of(pool, 3, make_room=make_room)
    assert table.append(9) is None
    assert (asked, table.tokens, pool.free_pages) == ([3], 3, 1)
    assert table.append(6) == Growth((1, 2), None)
    assert asked == [3, 1]


def test_a_tail_whose_other_owner_makes_room_is_not_copied() -> None:
    pool = PagePool(2)
    forks: list[BlockTable] = []
    table = table_of(pool, 4, make_room=lambda pages: forks.pop().release())
    forks.append(table.fork())
    assert table.append(1) == Growth((), None)
    assert (table.pages, pool.shared_pages) == ((0, 1), 0)


def test_only_full_pages_carry_others() -> None:
    pool = PagePool(4)
    table = table_of(pool, 4)
    with pytest.raises(InvalidArgumentError, match="2 more tokens"):
        table.share([0])
    whole = table_of(pool, 3)
    with pytest.raises(InvalidArgumentError, match="is free"):
        whole.share([0, 3])
    assert pool.references(0) == 1, "what was taken before the bad one is given back"


@pytest.mark.parametrize("page_tokens", [0, -1, True, 1.5, None])
def test_pages_hold_tokens(page_tokens: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="page_tokens"):
        BlockTable(PagePool(1), page_tokens=page_tokens)


def test_numbers_out_of_range_are_refused() -> None:
    table = table_of(PagePool(2), 4)
    for call, value in ((table.append, -1), (table.truncate, 5), (table.truncate, -1), (table.locate, 4)):
        with pytest.raises(InvalidArgumentError, match=str(value)):
            call(value)
    with pytest.raises(InvalidArgumentError, match="chain has at most"):
        table.append(PAGE_TOKENS * CHAIN_PAGES_MAX)
    assert table.tokens == 4


def test_fragmentation_is_of_tails_and_of_adjacency() -> None:
    pool = PagePool(8)
    tables = [table_of(pool, 7), table_of(pool, 3), BlockTable(pool, page_tokens=PAGE_TOKENS)]
    found = Fragmentation.of(tables, page_tokens=PAGE_TOKENS)
    assert (found.tables, found.pages, found.unused_tokens, found.page_runs) == (2, 4, 2, 2)
    assert found.internal == pytest.approx(2 / 12)
    assert found.external == 0.0
    tables[1].release()
    tables[0].append(6)  # the freed page lies behind it, then come others
    assert Fragmentation.of(tables[:1], page_tokens=PAGE_TOKENS).external == 0.0
    assert runs([3, 4, 5, 7, 6, 0, 1]) == 4
    assert runs([]) == 0
