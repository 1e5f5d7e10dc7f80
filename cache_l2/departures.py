"""Attachments of this process that were closed: their sidecars are told of them with the next attach."""

from __future__ import annotations

import threading
from typing import NamedTuple

from cache_l2._native import Reader
from kv_types.limits import ATTACHMENTS_GONE_MAX


class _Departure(NamedTuple):
    path: str
    attachment: int
    reader: Reader


class Departures:
    """Closed attachments of this process whose sidecars may still keep a row for them. Thread-safe; bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Departure] = []

    def add(self, path: str, attachment: int, reader: Reader) -> None:
        """Remember one; the oldest makes room, its row then lasts as long as this process."""
        with self._lock:
            self._waiting.append(_Departure(path, attachment, reader))
            del self._waiting[:-ATTACHMENTS_GONE_MAX]

    def gone(self, path: str) -> tuple[int, ...]:
        """Those of one socket path that are unmapped by now."""
        with self._lock:
            return tuple(one.attachment for one in self._waiting if one.path == path and one.reader.close())

    def forget(self, attachments: tuple[int, ...]) -> None:
        """Their sidecar was told, or is no more."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.attachment not in attachments]
