"""PrefixIndex against a naive twin: always closed under prefixes, and no page under two keys."""

from __future__ import annotations

import random

import pytest

from cache_l1.prefix_index import PrefixIndex
from kv_types.errors import InvalidArgumentError
from kv_types.ids import PageKey


def key(*path: int) -> PageKey:
    """A key that says its place in the tree."""
    return PageKey(bytes(path).ljust(32, b"\xff"))


def chain(path: tuple[int, ...]) -> list[PageKey]:
    return [key(*path[: depth + 1]) for depth in range(len(path))]


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_what_the_naive_twin_finds(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    index, twin, free = PrefixIndex(), dict[tuple[int, ...], int](), list(range(300))
    for _ in range(1_200):
        path = tuple(draw.randrange(3) for _ in range(draw.randint(1, 5)))
        above = [one for one in twin if one[: len(path)] == path]
        match draw.randrange(5):
            case 0 | 1:
                if path in twin or (len(path) > 1 and path[:-1] not in twin):
                    with pytest.raises(InvalidArgumentError):
                        index.insert(key(*path), 299, parent=key(*path[:-1]) if len(path) > 1 else None)
                else:
                    twin[path] = free.pop(0)
                    index.insert(key(*path), twin[path], parent=key(*path[:-1]) if len(path) > 1 else None)
            case 2 if path in twin and len(above) == 1:
                assert index.remove_page(twin[path]) == key(*path)
                free.append(twin.pop(path))
            case 3 if draw.random() < 0.3:
                removed = index.remove_subtree(key(*path))
                depth_of = {twin[one]: len(one) for one in above}
                assert sorted(removed) == sorted(depth_of)
                depths = [depth_of[page] for page in removed]
                assert depths == sorted(depths, reverse=True), "children go before parents"
                free += [twin.pop(one) for one in above]
            case _ if path in twin and len(above) > 1:
                with pytest.raises(InvalidArgumentError, match="carries"):
                    index.remove_page(twin[path])
        keys = chain(tuple(draw.randrange(3) for _ in range(6)))
        expected = []
        for depth in range(6):
            page = twin.get(tuple(keys[depth][: depth + 1]))
            if page is None:
                break
            expected.append(page)
        assert index.longest_prefix(keys) == expected
        assert len(index) == len(twin)
        assert all(key(*one) in index and index.find(key(*one)) == page for one, page in twin.items())


def test_clearing_names_every_page() -> None:
    index = PrefixIndex()
    index.insert(key(1), 4, parent=None)
    index.insert(key(1, 2), 7, parent=key(1))
    assert sorted(index.clear()) == [4, 7]
    assert len(index) == 0
    assert index.find(key(1)) is None
    index.insert(key(1), 7, parent=None)


def test_misuse_is_refused() -> None:
    index = PrefixIndex()
    index.insert(key(1), 4, parent=None)
    with pytest.raises(InvalidArgumentError, match="page 4 is indexed already"):
        index.insert(key(2), 4, parent=None)
    with pytest.raises(InvalidArgumentError, match="not indexed"):
        index.insert(key(2, 2), 5, parent=key(2))
    with pytest.raises(InvalidArgumentError, match="not indexed"):
        index.remove_page(5)
    assert index.remove_subtree(key(9)) == []
    assert key(2) not in index
