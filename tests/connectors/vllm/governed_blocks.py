"""A fake pool of cached blocks, each with what its KV was really computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kv_types.ids import PageKey
from kv_types.namespace import Namespace
from kv_types.page_keys import KeyChain

BLOCK = 2

Place = tuple[str, tuple[int, ...]]
"""Tenant, and all tokens up to the end of a block: what a block is, and what the engine hashes."""


@dataclass(frozen=True)
class Atom:
    """KV of one block, computed (or loaded) in a step that began when `began` records had been published in all."""

    place: Place
    began: int


@dataclass(eq=False)
class Block:
    number: int
    block_hash: bytes | None = None
    users: int = 0
    atoms: frozenset[Atom] = frozenset()


@dataclass(frozen=True)
class Record:
    """What a fence promises, in the order of all lives: `number` of 1…; takes says of a page, by tenant and tokens."""

    number: int
    takes: Callable[[Place], bool]


class FakePool:
    """Conforms to governed.BlockPool."""

    def __init__(self, blocks: int) -> None:
        self.blocks = [Block(number) for number in range(blocks)]
        self.evicted: set[bytes] = set()

    def of(self, block_hash: bytes) -> list[Block]:
        return [block for block in self.blocks if block.block_hash == block_hash]

    def has(self, block_hash: bytes) -> bool:
        return bool(self.of(block_hash))

    def evict(self, block_hashes: Iterable[bytes]) -> int:
        hit = [block for block in self.blocks if block.block_hash in set(block_hashes)]
        self.evicted |= {block.block_hash for block in hit if block.block_hash is not None}
        for block in hit:
            block.block_hash = None
        return len(hit)

    def evict_all(self) -> int:
        return self.evict({block.block_hash for block in self.blocks if block.block_hash is not None})

    def take(self) -> Block | None:
        free = [block for block in self.blocks if not block.users]
        free.sort(key=lambda block: block.block_hash is not None)
        if not free:
            return None
        free[0].block_hash, free[0].atoms, free[0].users = None, frozenset(), 1
        return free[0]


def hash_of(place: Place) -> bytes:
    return repr(place).encode()


def keys_of(name: Namespace, tokens: Sequence[int], page_tokens: int) -> list[PageKey]:
    chain = KeyChain(name.id, page_tokens)
    chain.extend(list(tokens))
    return chain.keys
