"""Numbers that callers give, checked: no bool counts as one, and nothing is NaN or endless. The argument is named."""

from __future__ import annotations

import math

from kv_types.errors import InvalidArgumentError


def check_integer(value: int, what: str, *, low: int, high: int) -> None:
    """Raise InvalidArgumentError unless `value` is an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentError(f"{what} must be an integer; got {value!r}")
    if not low <= value <= high:
        raise InvalidArgumentError(f"{what} must be between {low} and {high}; got {value}")


def check_word(value: int, what: str) -> None:
    """Raise InvalidArgumentError unless `value` is an integer of 64 bits without a sign."""
    check_integer(value, what, low=0, high=2**64 - 1)


def check_seconds(value: float, what: str, *, most: float, may_be_0: bool = False) -> None:
    """Raise InvalidArgumentError unless `value` is a number of seconds above 0, or 0 where that is allowed, to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgumentError(f"{what} must be a number of seconds; got {value!r}")
    if not 0 <= value <= most or (value == 0 and not may_be_0):
        bounds = f"between 0 and {most:g}" if may_be_0 else f"above 0 and at most {most:g}"
        raise InvalidArgumentError(f"{what} must be {bounds} seconds; got {value}")


def check_rate(value: float, what: str) -> None:
    """Raise InvalidArgumentError unless `value` is a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidArgumentError(f"{what} must be a number, 0 or more; got {value!r}")
