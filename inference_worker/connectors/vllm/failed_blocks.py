"""Blocks that a load left without their bytes: until the engine has computed them anew, nobody who shares them goes by them.

vLLM lets the first request that holds such a block compute it anew, and takes it for computed in all others that share it.
That is right as long as the first one gets as far in the same step. What it doesn't see to is seen to here: nothing is stored
out of such blocks, and where the first one ends, is preempted, or doesn't get there, the next one computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference_worker.connectors.vllm.requests import RequestState

BlocksOf = Callable[[str], Sequence[int]]


@dataclass(slots=True, eq=False)
class _Failed:
    """Blocks from index `first` of a chain on; in place again once `owner` has confirmed `until` tokens. No owner: nobody yet."""

    owner: RequestState | None
    first: int
    blocks: tuple[int, ...]
    until: int


class FailedBlocks:
    """Not thread-safe: the scheduler is one thread. Costs nothing where nothing has failed."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._failed: list[_Failed] = []

    def add(self, state: RequestState, first: int, blocks: Sequence[int]) -> None:
        """A load failed: of `blocks`, all that its request has, those from `first` on are computed anew."""
        until = min(state.request.num_tokens, len(blocks) * self._block_tokens)
        if first < len(blocks):
            self._failed.append(_Failed(state, first, tuple(blocks[first:]), until))

    def are_held(self, blocks: Sequence[int], state: RequestState) -> bool:
        """Whether blocks of a request are being computed anew by another one."""
        return any(one.owner is not state and _shares(one, blocks) for one in self._failed)

    def review(
        self, scheduled: Mapping[str, int], states: Mapping[str, RequestState], blocks_of: BlocksOf
    ) -> set[int]:
        """A step was made: the blocks that are to be reported as failed in it once more."""
        again: set[int] = set()
        for one in list(self._failed):
            if one.owner is not None and one.owner.confirmed_tokens >= one.until:
                self._failed.remove(one)
                continue
            sharers = [
                states[name]
                for name in scheduled
                if name in states and states[name] is not one.owner and _shares(one, blocks_of(name))
            ]
            index = self._first_missing(one, scheduled, states, blocks_of)
            if index < one.first + len(one.blocks):
                if sharers:
                    again.update(one.blocks[index - one.first :])
                    self._hand_over(one, index, sharers[0])
                elif one.owner is None and not any(_shares(one, blocks_of(name)) for name in states):
                    self._failed.remove(one)
        return again

    def _first_missing(
        self,
        one: _Failed,
        scheduled: Mapping[str, int],
        states: Mapping[str, RequestState],
        blocks_of: BlocksOf,
    ) -> int:
        """Index of the first block that the owner will not have computed when this step is over."""
        owner = one.owner
        if owner is not None and not (
            states.get(owner.request_id) is owner and _shares(one, blocks_of(owner.request_id))
        ):
            one.owner = owner = None
        if owner is None:
            return one.first
        reached = owner.request.num_computed_tokens + scheduled.get(owner.request_id, 0)
        if reached >= one.until:
            return one.first + len(one.blocks)
        return max(one.first, reached // self._block_tokens)

    def _hand_over(self, one: _Failed, index: int, owner: RequestState) -> None:
        """From this index on another request computes them anew."""
        at = index - one.first
        self._failed.append(_Failed(owner, index, one.blocks[at:], one.until))
        one.blocks, one.until = one.blocks[:at], index * self._block_tokens
        if not one.blocks:
            self._failed.remove(one)


def _shares(one: _Failed, blocks: Sequence[int]) -> bool:
    """Requests that share blocks share them at the same place of their chains."""
    return len(blocks) > one.first and bool(one.blocks) and blocks[one.first] == one.blocks[0]
