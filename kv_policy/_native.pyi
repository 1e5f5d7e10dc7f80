"""Types of the native eviction policy. Errors are ValueError; the callers in kv_policy turn them into kv_types.errors."""

from collections.abc import Callable, Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt

@final
class PrefixPolicy:
    """The policy that all tiers run (kv_policy/native/prefix_policy.hpp), with holds that count. Not thread-safe.

    Pages are numbers below `pages`; times are ns of one clock that never steps; a digest is 32 bits of a page's key, 0: unknown.
    """

    def __init__(
        self,
        *,
        pages: int,
        policy: Literal["learned", "lru"] = "learned",
        attention_pages: int = 0,
        seed: int = 1,
    ) -> None:
        """`attention_pages`: the depth at which a page costs twice what the first one costs to compute; 0: all cost the same."""

    def looked(
        self,
        deepest: int | None,
        resident_pages: int,
        missing_pages: int,
        now_ns: int,
        first_missing: int = 0,
    ) -> None:
        """A request asked for a chain: so many pages were there, the last of them `deepest`, and so many were not."""

    def insert(
        self,
        pages: Sequence[int],
        parent: int | None,
        digests: Sequence[int],
        now_ns: int,
        expires_ns: int = 0,
        queue: int = 0,
    ) -> None:
        """Pages became resident, each on top of the one before."""

    def touched(self, page: int, now_ns: int) -> None:
        """A page was used with all that it stands on."""

    def hold(self, page: int) -> None: ...
    def release(self, page: int) -> None: ...
    def remove(self, page: int, evicted: bool = False) -> None:
        """A leaf is resident no more, held or not."""

    def evict(
        self,
        count: int,
        now_ns: int,
        queue: int = 0,
        last_access: Callable[[int], int] | None = None,
        is_elsewhere: Callable[[int], bool] | None = None,
    ) -> list[int]:
        """Up to `count` victims in the order they may go, removed already.

        `last_access` tells of a page when its owner knows that it was used last, 0: no more than the policy. `is_elsewhere` is
        asked of victims that are thought to be elsewhere, up to 256 that are not. Neither may raise.
        """

    def set_cost(self, page: int, cost: float) -> None:
        """What it costs to lose a page, against computing it anew (1)."""

    def set_elsewhere(self, page: int, is_elsewhere: bool) -> None:
        """Whether a slower tier holds the page too."""

    def set_losing_costs(self, *, elsewhere: float, attention_pages: int) -> None:
        """`elsewhere`, in (0, 1]: of a page that a slower tier holds, against computing it; `attention_pages`: as above."""

    def resident(self, page: int) -> bool: ...
    def is_leaf(self, page: int) -> bool: ...
    def is_held(self, page: int) -> bool: ...
    def export_state(self) -> bytes:
        """What was learned, not what is resident."""

    def import_state(self, state: bytes, now_ns: int) -> None:
        """Raises ValueError, with nothing changed, when the bytes are damaged or of another version."""

    def bytes(self) -> int:
        """Memory that it takes."""

    def is_learned(self) -> bool:
        """Whether it chooses by what it has learned; if not, least recently used tails go first."""

    def counts(self) -> dict[str, int]: ...
    def __len__(self) -> int: ...

def replay(
    times_ns: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.uint64],
    blocks: npt.NDArray[np.uint64],
    *,
    capacity_blocks: int,
    policy: Literal["learned", "lru"] = "learned",
    piece_blocks: int = 0,
    seed: int = 1,
    processor_time: bool = False,
    attention_blocks: int = 0,
    elsewhere_cost: float = 1.0,
) -> tuple[int, int, int, int, int, int]:
    """(blocks requested, hit, evicted, ns spent in the policy, the most of them on one request, ns of them on choosing victims
    and removing them) of a trace. Times are of the clock, or of this thread's processor. `elsewhere_cost` below 1: a slower tier
    holds every block that was put too, and to load one costs so much of what computing it does.

    Request i is blocks[offsets[i]:offsets[i + 1]]. A hit counts only when every earlier block is resident on arrival.
    Runs without the GIL. Raises ValueError.
    """
