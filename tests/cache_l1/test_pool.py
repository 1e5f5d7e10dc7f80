"""PagePool against a naive twin: no page is ever free twice, referenced by nobody, or lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cache_l1.pool import PagePool
from kv_types.errors import InvalidArgumentError


@pytest.mark.parametrize("seed", range(8))
def test_it_counts_like_the_naive_twin(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    pool, twin = PagePool(17), [0] * 17
    for _ in range(3_000):
        page = draw.randrange(17)
        match draw.randrange(4):
            case 0:
                taken = pool.allocate()
                if taken is None:
                    assert 0 not in twin
                else:
                    assert twin[taken] == 0
                    twin[taken] = 1
            case 1 if twin[page]:
                pool.acquire(page)
                twin[page] += 1
            case 2 | 3 if twin[page]:
                twin[page] -= 1
                assert pool.release(page) == (twin[page] == 0)
            case _:
                for refused in (pool.acquire, pool.release):
                    if not twin[page]:
                        with pytest.raises(InvalidArgumentError, match="is free"):
                            refused(page)
        assert [pool.references(one) for one in range(17)] == twin
        assert pool.free_pages == twin.count(0)


def test_every_page_is_given_once() -> None:
    pool = PagePool(5)
    assert sorted(pool.allocate() for _ in range(5)) == [0, 1, 2, 3, 4]  # type: ignore[type-var]
    assert pool.allocate() is None
    assert (pool.capacity, pool.free_pages) == (5, 0)


@pytest.mark.parametrize("capacity", [0, -1, True, 2.0, None])
def test_a_pool_has_pages(capacity: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        PagePool(capacity)


@pytest.mark.parametrize("page", [-1, 3, True, 1.0, None])
def test_pages_of_no_pool_are_refused(page: Any) -> None:
    pool = PagePool(3)
    for call in (pool.acquire, pool.release, pool.references):
        with pytest.raises(InvalidArgumentError, match="of a pool"):
            call(page)
