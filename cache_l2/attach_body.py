"""Reading the body of one attach message field by field: never past its end, and nothing may be left over."""

from __future__ import annotations

import struct

from kv_types.errors import ProtocolError

COUNT = struct.Struct("<H")


class Body:
    """Bounded reading of one body: never past its end, and nothing may be left over."""

    __slots__ = ("_at", "_bytes")

    def __init__(self, body: memoryview) -> None:
        self._bytes = body
        self._at = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Take what `layout` describes. Raises ProtocolError past the end, as all of these do."""
        return layout.unpack(self.take(layout.size))

    def take(self, size: int) -> memoryview:
        """Take `size` bytes."""
        end = self._at + size
        if end > len(self._bytes):
            raise ProtocolError(f"a message body ends at byte {len(self._bytes)}, inside a field up to {end}")
        part = self._bytes[self._at : end]
        self._at = end
        return part

    def counted(self, layout: struct.Struct, limit: int, what: str) -> int:
        """Take a count of at most `limit`; `what` is counted, for the error."""
        (count,) = self.unpack(layout)
        if count > limit:
            raise ProtocolError(f"{what}: {count} is more than the limit of {limit}")
        return count

    def short_bytes(self, limit: int, what: str) -> bytes:
        """Take at most `limit` bytes behind their count."""
        return bytes(self.take(self.counted(COUNT, limit, what)))

    def text(self, limit: int, what: str) -> str:
        """Take UTF-8 of at most `limit` bytes behind their count."""
        try:
            return self.short_bytes(limit, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{what} is not UTF-8: {error}") from error

    def numbers(self, count: int) -> tuple[int, ...]:
        """Take `count` unsigned numbers of 64 bits."""
        return struct.unpack(f"<{count}Q", self.take(8 * count))

    def done(self) -> None:
        """Check that nothing is left over."""
        if self._at != len(self._bytes):
            raise ProtocolError(f"{len(self._bytes) - self._at} bytes are left over after the last field")
