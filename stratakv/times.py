"""Times as people write them for selectors: ISO 8601, or how long ago; always a time of this machine's wall clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from kv_types.errors import ConfigError
from sidecar.units import parse_duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AGO = re.compile(r"(?P<span>\d+(?:\.\d+)?\s*(?:ms|s|m|h|d))(?:\s+ago)?")


def parse_time(text: str, *, option: str, now: datetime) -> int:
    """Unix ms of "2026-08-01T12:00:00Z", "2026-08-01 12:00" (local time), "10m ago", "10m" or "now". Raises ConfigError."""
    text = text.strip()
    if text == "now":
        return _unix_ms(now)
    try:
        span = _AGO.fullmatch(text)
        when = (
            datetime.fromisoformat(text).astimezone()
            if span is None
            else now - timedelta(seconds=parse_duration(span["span"]))
        )
        return _unix_ms(when)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{option}: {text!r} is no time since 1970; write ISO 8601 (2026-08-01T12:00:00Z; without a zone it is "
            'local time), or how long ago ("10m", "2h ago")'
        ) from error


def exact_time(unix_ms: int) -> str:
    """Write a time as `parse_time` reads it back to the ms."""
    return (_EPOCH + timedelta(milliseconds=unix_ms)).isoformat(timespec="milliseconds")


def _unix_ms(when: datetime) -> int:
    number = (when - _EPOCH) // timedelta(milliseconds=1)
    if number < 0:
        raise ValueError("before 1970")
    return number
