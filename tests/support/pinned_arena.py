"""A fake arena for pins: every pinned key is charged one slot, and held if the test says that its page is there."""

from __future__ import annotations

from collections import Counter

from kv_types.ids import KEY_BYTES

SLOT = 4096


class FakePinnedArena:
    """Counts who names which key. `quota_bytes` is None until it is set."""

    def __init__(self) -> None:
        self.named: Counter[bytes] = Counter()
        self.resident: set[bytes] = set()
        self.quota_bytes: int | None = None

    def set_pin_quota(self, quota_bytes: int) -> None:
        self.quota_bytes = quota_bytes

    def pin_cost(self, *, keys: bytes, payload_bytes: int) -> int:
        del payload_bytes
        return SLOT * sum(not self.named[key] for key in _split(keys))

    def pin(self, *, keys: bytes, payload_bytes: int) -> bool:
        assert self.quota_bytes is not None
        if SLOT * len(+self.named) + self.pin_cost(keys=keys, payload_bytes=payload_bytes) > self.quota_bytes:
            return False
        self.named.update(_split(keys))
        return True

    def unpin(self, *, keys: bytes) -> None:
        self.named.subtract(_split(keys))
        self.named = +self.named

    def held_among(self, *, keys: bytes) -> tuple[int, int]:
        held = sum(key in self.resident and self.named[key] > 0 for key in _split(keys))
        return held, held * 1000

    def pin_statistics(self) -> dict[str, int]:
        keys = +self.named
        held = len(keys.keys() & self.resident)
        return {
            "keys": len(keys), "held_pages": held, "held_bytes": held * SLOT, "charged_bytes": len(keys) * SLOT,
            "quota_bytes": self.quota_bytes or 0, "beyond_quota": 0,
        }  # fmt: skip


def _split(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
