"""Sizes and durations as people write them: "4GiB", "250ms"; parsing and the way back."""

from __future__ import annotations

import math
import re

_NUMBER_UNIT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-zµ]*)\s*")
SIZE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
DURATION_UNITS: dict[str, float] = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_SIZE_EXAMPLES = "4GiB, 512MiB or a number of bytes"


def parse_size(text: str | float) -> int:
    """Bytes of "4GiB", "512 MB" or a bare number of bytes; raises ValueError saying what to write."""
    number, unit = _split(text, "size", _SIZE_EXAMPLES)
    if unit.lower() not in SIZE_UNITS:
        raise ValueError(
            f"{text!r} has the unknown unit {unit!r}; sizes take B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"
        )
    size = number * SIZE_UNITS[unit.lower()]
    if not math.isfinite(size):
        raise ValueError(f"{text!r} is not a size that a machine could have; write {_SIZE_EXAMPLES}")
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_duration(text: str | float) -> float:
    """Seconds of "3s", "250ms", "1.5h" or a bare number of seconds; raises ValueError saying what to write."""
    number, unit = _split(text, "duration", "3s, 250ms or a number of seconds")
    if unit.lower() not in DURATION_UNITS:
        raise ValueError(f"{text!r} has the unknown unit {unit!r}; durations take ms, s, m, h, d")
    return number * DURATION_UNITS[unit.lower()]


def format_size(size: int) -> str:
    """Write bytes in the largest binary unit that stays exact, else rounded to three digits."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size // factor}{unit}" if size % factor == 0 else f"{size / factor:.3g}{unit}"
    return f"{size}B"


def format_duration(duration_s: float) -> str:
    """Write seconds the way `parse_duration` reads them."""
    if 0 < duration_s < 1:
        return f"{duration_s * 1000:g}ms"
    for unit, factor in (("d", 86_400), ("h", 3600), ("m", 60)):
        if duration_s >= factor and duration_s % factor == 0:
            return f"{duration_s / factor:g}{unit}"
    return f"{duration_s:g}s"


def rough_duration(duration_s: float) -> str:
    """Whole seconds as people tell them, by their two largest units: 6d 23h, 29m 59s, 0s."""
    left = round(duration_s)
    told: list[tuple[int, str]] = []
    for unit, factor in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, factor)
        if told or count:
            told.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in told[:2] if count) or "0s"


def _split(text: str | float, what: str, examples: str) -> tuple[float, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"a {what} is text or a number, not {type(text).__name__}; write {examples}")  # noqa: TRY004
    unit = ""
    if isinstance(text, str):
        match = _NUMBER_UNIT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a {what}; write {examples}")
        text, unit = match["number"], match["unit"]
    try:
        number = float(text)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{text!r} is not a {what}; write {examples}")
    return number, unit
