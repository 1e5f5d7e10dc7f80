"""Capacity: whether a server has room for pages, by what it says of its memory and by what was written since.

Pages of a server that evicts nothing, or that holds the log and would evict it, must leave a reserve: the log's scripts fail
in a full one, and with them every hit of the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kv_types.limits import L3_RESERVE_BYTES_MIN, L3_RESERVE_FRACTION

_KEY_BYTES = 384
"""Key, time to live and entries of the tables, about."""


class Room(StrEnum):
    """Whether pages may be written."""

    YES = "yes"
    FULL = "full"
    REFUSED = "refused"
    """It has room, but refused the last page for another reason: its user may not write, it is a replica. It is tried again."""
    UNKNOWN = "unknown"
    """It has not said yet, or may not be asked. Pages are written, and it refuses them where it must."""


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """What a server says of its memory. `used_bytes` is what counts towards `bytes_max`; 0 is no limit."""

    used_bytes: int
    bytes_max: int
    policy: str


class Capacity:
    """What is known of one server's memory. `holds_log`: the fleet's log lies there too. `reserve`: the part left free."""

    def __init__(self, *, holds_log: bool, reserve: float = L3_RESERVE_FRACTION) -> None:
        self._holds_log = holds_log
        self._reserve = reserve
        self._picture: MemoryPicture | None = None
        self._written_bytes = 0
        self._was_refused = False
        self._is_denied = False

    @property
    def picture(self) -> MemoryPicture | None:
        """What it said last."""
        return self._picture

    @property
    def room(self) -> Room:
        """Whether a page may be written now."""
        if self._was_refused:
            return Room.FULL
        if self._picture is None:
            return Room.REFUSED if self._is_denied else Room.UNKNOWN
        limit = self.limit_bytes
        if limit is not None and self._picture.used_bytes + self._written_bytes >= limit:
            return Room.FULL
        return Room.REFUSED if self._is_denied else Room.YES

    @property
    def limit_bytes(self) -> int | None:
        """Memory above which nothing is written; None: there is no such limit, or the server makes room by itself."""
        picture = self._picture
        if picture is None or picture.bytes_max == 0 or self._makes_room(picture.policy):
            return None
        return picture.bytes_max - reserve_bytes(picture.bytes_max, self._reserve)

    def told(self, picture: MemoryPicture | None) -> None:
        """It has been asked again; None: it does not say."""
        self._picture = picture
        self._written_bytes = 0
        self._was_refused = False

    def wrote(self, record_bytes: int) -> None:
        """A record is on its way there."""
        self._written_bytes += allocated_bytes(record_bytes)

    def refused(self) -> None:
        """It has no room; the next answer to the question decides anew."""
        self._was_refused = True

    def denied(self) -> None:
        """It answered a page by an error that says nothing of room; holds until it takes one."""
        self._is_denied = True

    def took(self) -> None:
        """It has stored a page."""
        self._is_denied = False

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
