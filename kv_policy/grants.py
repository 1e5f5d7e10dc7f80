"""How many slots a writer gets in advance: enough for its next puts, and never much of the arena."""

from __future__ import annotations

from kv_types.limits import GRANTS_PER_CLIENT_MAX

_OFFERED_MIN = 4
"""Puts of one page in a row overtake the sidecar by so many."""
_CLIENT_SHARE = 32
_ALL_SHARE = 16
"""One writer has a 32nd part of the arena at most, all together a 16th."""


def slots_to_offer(*, arena_bytes: int, slot_bytes: int, put_pages: int) -> int:
    """Slots to keep on offer to a writer whose last put had `put_pages` pages; 0 when such a put would never fit.

    Twice a put, so that the next one finds slots before the sidecar has seen the last.
    """
    most = min(GRANTS_PER_CLIENT_MAX, arena_bytes // _CLIENT_SHARE // slot_bytes)
    return min(most, max(_OFFERED_MIN, 2 * put_pages)) if put_pages <= most else 0


def granted_bytes_max(arena_bytes: int) -> int:
    """Bytes of slots that all writers together may have in advance."""
    return arena_bytes // _ALL_SHARE
