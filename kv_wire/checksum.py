"""The page checksum of the wire: XXH3-64, seed 0, in one go or piece by piece."""

from __future__ import annotations

import xxhash
from typing_extensions import Buffer


def checksum(data: Buffer) -> int:
    """XXH3-64 of a contiguous buffer, as an unsigned 64-bit integer."""
    return int(xxhash.xxh3_64_intdigest(data))


class Checksum:
    """XXH3-64 of a page that arrives or leaves in pieces."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = xxhash.xxh3_64()

    def update(self, data: Buffer) -> None:
        """Take in the next bytes of the page."""
        self._state.update(data)

    @property
    def value(self) -> int:
        """The checksum of everything taken in so far."""
        return int(self._state.intdigest())
