"""RecentKeys: keys that were noted a short while ago, in two plain sets, since there are many. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kv_types.errors import InvalidArgumentError
from kv_types.ids import PageKey


class RecentKeys:
    """Each key for `age_ns_max` at most and half of that at least, unless more than half of `keys_max` are noted in that time."""

    def __init__(self, *, keys_max: int, age_ns_max: int) -> None:
        """Raise InvalidArgumentError for bounds below two."""
        if keys_max < 2 or age_ns_max < 2:
            raise InvalidArgumentError(f"both bounds are two or more; got {keys_max} keys, {age_ns_max} ns")
        self._half = keys_max // 2
        self._half_ns = age_ns_max // 2
        self._young: set[PageKey] = set()
        self._old: set[PageKey] = set()
        self._since_ns = 0

    def __len__(self) -> int:
        return len(self._young | self._old)

    def note(self, keys: Iterable[PageKey], *, now_ns: int) -> None:
        """These are known now."""
        for key in keys:
            self._turn(now_ns)
            self._young.add(key)

    def has(self, key: PageKey, *, now_ns: int) -> bool:
        """Whether it was noted a short while ago."""
        self._turn(now_ns)
        return key in self._young or key in self._old

    def _turn(self, now_ns: int) -> None:
        """Forget the old ones when the young ones are as many, or as old, as half of the bounds allow."""
        age_ns = now_ns - self._since_ns
        if age_ns >= 2 * self._half_ns:
            self._young, self._old, self._since_ns = set(), set(), now_ns
        elif age_ns >= self._half_ns:
            self._young, self._old, self._since_ns = set(), self._young, self._since_ns + self._half_ns
        elif len(self._young) >= self._half:
            self._young, self._old, self._since_ns = set(), self._young, now_ns
