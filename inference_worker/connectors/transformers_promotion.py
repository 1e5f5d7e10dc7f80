"""Promotion: which of the pages that L2 gave a call are kept in L1, by what was counted of them here. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kv_policy.admission import L1Promotion, Uses, is_promoted_to_l1
from kv_types.engine_limits import L1_USES_COUNTED_MAX
from kv_types.errors import InvalidArgumentError
from kv_types.ids import KEY_BYTES, PageKey


def l1_promotion_named(name: L1Promotion | str | None, *, device: str) -> L1Promotion:
    """The promotion of that name; None: what suits the kind of device. Raises InvalidArgumentError."""
    if name is None:
        return L1Promotion.SECOND_USE if device == "cpu" else L1Promotion.ALWAYS
    try:
        return L1Promotion(name)
    except ValueError:
        known = ", ".join(repr(one.value) for one in L1Promotion)
        raise InvalidArgumentError(
            f"l1_promotion is one of {known}, or None for what suits the device; got {name!r}"
        ) from None


class Promotions:
    """Asked once for each row of a call."""

    def __init__(self, promotion: L1Promotion) -> None:
        self.promotion = promotion
        self._lock = threading.Lock()
        self._uses = Uses(L1_USES_COUNTED_MAX)
        self._kept = self._left = 0

    def kept(self, keys: bytes, *, start: int, end: int, free_pages: int) -> int:
        """Up to where pages [start, end) of a chain, which L2 gave, are kept in L1; behind that nothing of it can be.

        `keys`: of the whole chain, with what was computed behind those. `free_pages`: places that L1 has without an eviction.
        """
        is_full = free_pages < len(keys) // KEY_BYTES - start
        with self._lock:
            uses = [self._uses.add(_key(keys, index)) for index in range(start, end)]
            kept = end
            for index, count in enumerate(uses, start):
                if not is_promoted_to_l1(self.promotion, uses=count, is_l1_full=is_full):
                    kept = index
                    break
            self._kept += kept - start
            self._left += end - kept
        return kept

    def statistics(self) -> Mapping[str, int]:
        """Pages that L2 gave, by whether L1 was to keep them."""
        return {"promoted_pages": self._kept, "left_in_l2_pages": self._left}


def _key(keys: bytes, index: int) -> PageKey:
    return PageKey(keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])
