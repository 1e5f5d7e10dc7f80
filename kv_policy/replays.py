"""Replays of a trace by the name of a policy: the one that the tiers run, natively, and the usual ones beside it."""

from __future__ import annotations

from kv_policy import _native
from kv_policy.baselines import BASELINES, Replayed, replay
from kv_policy.trace import Trace
from kv_types.errors import InvalidArgumentError

LEARNED = "learned"
POLICIES = (LEARNED, *BASELINES)
"""Names of policies, ours first."""


def replay_named(policy: str, trace: Trace, capacity: int) -> Replayed:
    """Replay a trace through a cache of `capacity` blocks. Raises InvalidArgumentError for a name that there is not."""
    if capacity < 1:
        raise InvalidArgumentError(f"a cache has room for one block at least; got {capacity}")
    if policy == LEARNED:
        requested, hit, *_ = _native.replay(
            trace.times_ns, trace.offsets, trace.blocks, capacity_blocks=min(capacity, max(1, trace.distinct))
        )
        return Replayed(requested, hit)
    if policy not in BASELINES:
        raise InvalidArgumentError(f"{policy!r} is no policy; there are {', '.join(POLICIES)}")
    return replay(trace, BASELINES[policy](capacity, trace))
