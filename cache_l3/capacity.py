"""Capacity: whether a server has room for pages, by what it says of its memory and by what was written since.

Pages of a server that evicts nothing, or that holds the log and would evict it, must leave a reserve: the log's scripts fail
in a full one, and with them every hit of the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kv_types.limits import L3_CAPACITY_KNOWN_S, L3_RESERVE_BYTES_MIN, L3_RESERVE_FRACTION

_KNOWN_NS = int(L3_CAPACITY_KNOWN_S * 1e9)
_KEY_BYTES = 384
"""Key, time to live and entries of the tables, about."""


class Room(StrEnum):
    """Whether pages may be written."""

    YES = "yes"
    FULL = "full"
    UNKNOWN = "unknown"
    """It has not said yet, or may not be asked. Pages are written, and it refuses them where it must."""


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """What a server says of its memory. `used_bytes` is what counts towards `bytes_max`; 0 is no limit."""

    used_bytes: int
    bytes_max: int
    policy: str


class Capacity:
    """What is known of one server's room, by times that it is told. `holds_log`: the fleet's log lies there too.

    Whatever it said or refused counts for L3_CAPACITY_KNOWN_S, then it is asked, or tried, anew. `reserve`: the part left free.
    """

    def __init__(self, *, holds_log: bool, reserve: float = L3_RESERVE_FRACTION) -> None:
        self._holds_log = holds_log
        self._reserve = reserve
        self._picture: MemoryPicture | None = None
        self._known_until_ns = 0
        self._written_bytes = 0
        self._full_until_ns = 0
        self._refused_bytes = 0
        self._too_large_until_ns = 0

    def room(self, now_ns: int) -> Room:
        """Whether a page may be written now."""
        if now_ns < self._full_until_ns:
            return Room.FULL
        if self._picture is None or now_ns >= self._known_until_ns:
            return Room.UNKNOWN
        limit = self.limit_bytes
        if limit is None or self._picture.used_bytes + self._written_bytes < limit:
            return Room.YES
        return Room.FULL

    def is_too_large(self, record_bytes: int, *, now_ns: int) -> bool:
        """Whether it has just refused a record for its size that was not larger than this one."""
        return now_ns < self._too_large_until_ns and record_bytes >= self._refused_bytes

    @property
    def limit_bytes(self) -> int | None:
        """Memory above which nothing is written; None: there is no such limit, or the server makes room by itself."""
        picture = self._picture
        if picture is None or picture.bytes_max == 0 or self._makes_room(picture.policy):
            return None
        return picture.bytes_max - reserve_bytes(picture.bytes_max, self._reserve)

    def told(self, picture: MemoryPicture | None, *, now_ns: int) -> None:
        """It has been asked again; None: it does not say."""
        self._picture = picture
        self._known_until_ns = now_ns + _KNOWN_NS
        self._written_bytes = 0
        self._full_until_ns = 0

    def wrote(self, record_bytes: int) -> None:
        """A record is on its way there."""
        self._written_bytes += allocated_bytes(record_bytes)

    def refused_room(self, *, now_ns: int) -> None:
        """It has refused a page for want of room; its next answer decides anew."""
        self._full_until_ns = now_ns + _KNOWN_NS

    def refused_size(self, record_bytes: int, *, now_ns: int) -> None:
        """It has refused a record for its size, at the price of a connection."""
        self._refused_bytes = record_bytes
        self._too_large_until_ns = now_ns + _KNOWN_NS

    def _makes_room(self, policy: str) -> bool:
        return policy.startswith("volatile-") or (policy.startswith("allkeys-") and not self._holds_log)


def allocated_bytes(record_bytes: int) -> int:
    """What a server's allocator gives for a record and its key: sizes come in four steps for each power of two."""
    step = 1 << max(4, (record_bytes - 1).bit_length() - 3)
    return -(-record_bytes // step) * step + _KEY_BYTES


def reserve_bytes(bytes_max: int, reserve: float = L3_RESERVE_FRACTION) -> int:
    """What pages leave free of so much memory: a part of it, L3_RESERVE_BYTES_MIN at least, half of it at most."""
    return min(max(int(bytes_max * reserve), L3_RESERVE_BYTES_MIN), bytes_max // 2)


def read_memory(info: Mapping[str, str]) -> MemoryPicture | None:
    """Read INFO's section `memory`; None where it does not say what is needed."""
    used, most = _number(info.get("used_memory")), _number(info.get("maxmemory"))
    if used is None or most is None:
        return None
    apart = _number(info.get("mem_not_counted_for_evict")) or 0
    return MemoryPicture(max(0, used - apart), most, info.get("maxmemory_policy", "noeviction"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
