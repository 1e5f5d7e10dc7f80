"""Usual eviction policies in plain Python, to replay traces by: what the policy that the tiers run is measured against.

Each holds blocks of one size up to its capacity. A request asks for a chain of blocks; of a block that is resident only the
part of the chain from the root on is of use, so that a hit ends at the first block that is missing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kv_policy.trace import Trace
from kv_types.errors import InvalidArgumentError

_NEVER = 1 << 62
_NOT_BEFORE = -1


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a cache would have had: `hit` of the `requested` blocks, each behind all earlier ones of its request."""

    requested: int
    hit: int

    @property
    def ratio(self) -> float:
        """The prefix-hit ratio, 0 to 1."""
        return self.hit / self.requested if self.requested else 0.0


class ReplayPolicy(Protocol):
    """A cache of blocks in a replay."""

    def __contains__(self, block: int) -> bool:
        """Whether a block is resident."""
        ...

    def __len__(self) -> int:
        """Resident blocks: never more than the capacity after a request."""
        ...

    def request(self, blocks: Sequence[int]) -> None:
        """Touch or insert all blocks of a request, root first in `blocks`, and make the room that they need."""
        ...


def replay(trace: Trace, policy: ReplayPolicy, *, progress: Callable[[int], None] | None = None) -> Replayed:
    """Send all requests of a trace through a policy. `progress` hears how many requests are done, now and then."""
    hit, offsets = 0, trace.offsets.tolist()
    for request in range(trace.requests):
        blocks: list[int] = trace.blocks[offsets[request] : offsets[request + 1]].tolist()
        for block in blocks:
            if block not in policy:
                break
            hit += 1
        policy.request(blocks)
        if progress is not None and request % 1024 == 0:
            progress(request)
    return Replayed(len(trace.blocks), hit)


class TailFirstLruReplay:
    """Least recently used first, and of one request its tail before its head, so that what stays is closed under prefixes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = _checked(capacity)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def request(self, blocks: Sequence[int]) -> None:
        """See ReplayPolicy; blocks of the request are touched from its tail on."""
        order = self._blocks
        for block in reversed(blocks):
            order[block] = None
            order.move_to_end(block)
        while len(order) > self._capacity:
            order.popitem(last=False)


class Lru2Replay:
    """LRU-K for K = 2 (O'Neil, O'Neil, Weikum, SIGMOD 1993): the oldest access but one goes first, what had only one before all.

    The last access of evicted blocks is remembered, of as many as there are resident.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = _checked(capacity)
        self._accesses: dict[int, tuple[int, int]] = {}
        self._evicted: OrderedDict[int, int] = OrderedDict()
        self._queue: list[tuple[int, int, int]] = []
        self._now = 0

    def __contains__(self, block: int) -> bool:
        return block in self._accesses

    def __len__(self) -> int:
        return len(self._accesses)

    def request(self, blocks: Sequence[int]) -> None:
        """See ReplayPolicy; room is made block by block, from the request's tail on."""
        for block in reversed(blocks):
            self._now += 1
            known = self._accesses.get(block)
            if known is None:
                while len(self._accesses) >= self._capacity:
                    self._evict()
                before = self._evicted.pop(block, _NOT_BEFORE)
            else:
                before = known[1]
            self._accesses[block] = before, self._now
            heapq.heappush(self._queue, (before, self._now, block))

    def _evict(self) -> None:
        while True:
            before, last, block = heapq.heappop(self._queue)
            if self._accesses.get(block) == (before, last):
                break
        del self._accesses[block]
        self._evicted[block] = last
        if len(self._evicted) > self._capacity:
            self._evicted.popitem(last=False)


class S3FifoReplay:
    """S3-FIFO (Yang et al., SOSP 2023): a small queue for what is new, a main one, and a memory of what the small one lost.

    A tenth of the capacity is small; two accesses there lead to the main queue; frequencies count to three.
    """

    _FREQUENCY = 3
    _PROMOTED = 2
    _SMALL_PART = 10

    def __init__(self, capacity: int) -> None:
        self._capacity = _checked(capacity)
        self._small_room = max(1, capacity // self._SMALL_PART)
        self._main_room = capacity - self._small_room
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        self._lost: OrderedDict[int, None] = OrderedDict()
        self._has_evicted = False

    def __contains__(self, block: int) -> bool:
        return block in self._small or block in self._main

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def request(self, blocks: Sequence[int]) -> None:
        """See ReplayPolicy; what is resident is touched first, then what is missing comes in from the request's tail on."""
        missing = [block for block in blocks if block not in self]
        for block in blocks:
            for queue in (self._small, self._main):
                if block in queue:
                    queue[block] = min(self._FREQUENCY, queue[block] + 1)
        for block in reversed(missing):
            self._insert(block)

    def _insert(self, block: int) -> None:
        was_lost = self._lost.pop(block, _NEVER) is None
        while len(self) >= self._capacity:
            self._evict()
        is_filling = not self._has_evicted and len(self._small) >= self._small_room
        (self._main if was_lost or is_filling else self._small)[block] = 0

    def _evict(self) -> None:
        self._has_evicted = True
        if len(self._main) > self._main_room or not self._small:
            self._evict_main()
        else:
            self._evict_small()

    def _evict_main(self) -> None:
        while self._main:
            block, frequency = self._main.popitem(last=False)
            if not frequency:
                return
            self._main[block] = frequency - 1

    def _evict_small(self) -> None:
        while self._small:
            block, frequency = self._small.popitem(last=False)
            if frequency >= self._PROMOTED:
                self._main[block] = 0
                continue
            self._lost[block] = None
            if len(self._lost) > max(1, self._main_room):
                self._lost.popitem(last=False)
            return


class BeladyReplay:
    """Belady's optimum among what is closed under prefixes: of the tails, the one goes whose next use is farthest away.

    It knows the future: `nexts` has, for each block of each request in turn, the number of the request that asks for it next.
    """

    def __init__(self, capacity: int, nexts: Iterable[Sequence[int]]) -> None:
        self._capacity = _checked(capacity)
        self._nexts = iter(nexts)
        self._next: dict[int, int] = {}
        self._parent: dict[int, int] = {}
        self._children: dict[int, int] = {}
        self._tails: list[tuple[int, int]] = []

    def __contains__(self, block: int) -> bool:
        return block in self._next

    def __len__(self) -> int:
        return len(self._next)

    def request(self, blocks: Sequence[int]) -> None:
        """See ReplayPolicy."""
        parent = _NOT_BEFORE
        for block, following in zip(blocks, next(self._nexts), strict=True):
            if block not in self._next:
                self._parent[block], self._children[block] = parent, 0
                if parent != _NOT_BEFORE:
                    self._children[parent] += 1
            self._next[block] = following
            parent = block
        if blocks:
            self._offer(blocks[-1])
        while len(self._next) > self._capacity:
            self._evict()

    def _offer(self, block: int) -> None:
        if not self._children[block]:
            heapq.heappush(self._tails, (-self._next[block], block))

    def _evict(self) -> None:
        while True:
            following, block = heapq.heappop(self._tails)
            if self._next.get(block) == -following and not self._children[block]:
                break
        del self._next[block], self._children[block]
        parent = self._parent.pop(block)
        if parent != _NOT_BEFORE:
            self._children[parent] -= 1
            self._offer(parent)


def belady(capacity: int, trace: Trace) -> BeladyReplay:
    """Belady's optimum for one trace."""
    nexts = _next_uses(trace)
    offsets = trace.offsets.tolist()
    return BeladyReplay(
        capacity, (nexts[begin:end].tolist() for begin, end in zip(offsets, offsets[1:], strict=False))
    )


def _next_uses(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each block of each request, the next request that asks for it; _NEVER where none does."""
    requests = np.repeat(np.arange(trace.requests), np.diff(trace.offsets.astype(np.int64)))
    order = np.argsort(trace.blocks, kind="stable")
    ordered = trace.blocks[order]
    nexts = np.full(len(ordered), _NEVER, dtype=np.int64)
    is_again = ordered[1:] == ordered[:-1]
    nexts[order[:-1][is_again]] = requests[order[1:][is_again]]
    return nexts


BASELINES: Mapping[str, Callable[[int, Trace], ReplayPolicy]] = {
    "lru": lambda capacity, _: TailFirstLruReplay(capacity),
    "lru2": lambda capacity, _: Lru2Replay(capacity),
    "s3fifo": lambda capacity, _: S3FifoReplay(capacity),
    "belady": belady,
}
"""The policies by name, each made for a capacity in blocks and the trace that is to be replayed."""


def _checked(capacity: int) -> int:
    if capacity < 1:
        raise InvalidArgumentError(f"a cache has room for one block at least; got {capacity}")
    return capacity
