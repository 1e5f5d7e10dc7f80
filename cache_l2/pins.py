"""Pins: chains that an operator has named, kept from capacity eviction until an end, within a quota of the arena."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from cache_l2.namespaces import NamespaceRecord
from kv_types.errors import InvalidArgumentError, LimitExceededError
from kv_types.ids import KEY_BYTES, NamespaceId
from kv_types.operator_limits import (
    PIN_CHAINS_MAX,
    PIN_NAME_BYTES_MAX,
    PIN_PAGES_MAX,
    PIN_STEP_KEYS,
    PINNED_PAGES_MAX,
    PINS_MAX,
)

_STEP_BYTES = PIN_STEP_KEYS * KEY_BYTES
_NOTHING = dict.fromkeys(("keys", "held_pages", "held_bytes", "charged_bytes", "beyond_quota"), 0)


class PinningArena(Protocol):
    """What pins need of the arena."""

    def set_pin_quota(self, quota_bytes: int) -> None:
        """Bytes of slots that pinned keys may be charged together."""
        ...

    def pin(self, *, keys: bytes, payload_bytes: int) -> bool:
        """Name each of these keys once more; False, and nothing has changed, beyond the quota."""
        ...

    def pin_cost(self, *, keys: bytes, payload_bytes: int) -> int:
        """Bytes that pinning these would charge beyond what is charged already."""
        ...

    def unpin(self, *, keys: bytes) -> None:
        """Name each of these keys once less."""
        ...

    def held_among(self, *, keys: bytes) -> tuple[int, int]:
        """(pages, payload bytes) of these keys that are resident and held."""
        ...

    def pin_statistics(self) -> dict[str, int]:
        """keys, held_pages, held_bytes, charged_bytes, quota_bytes, beyond_quota."""
        ...


@dataclass(frozen=True, slots=True)
class PinnedChain:
    """Keys of one chain, root first (n × 32 bytes), the namespace that they are of, and a page's payload (0: unknown)."""

    namespace: NamespaceId
    keys: bytes
    page_bytes: int = 0

    @property
    def pages(self) -> int:
        """Keys of it."""
        return len(self.keys) // KEY_BYTES

    def runs(self) -> Iterator[bytes]:
        """Its keys, PIN_STEP_KEYS at a time."""
        for begin in range(0, len(self.keys), _STEP_BYTES):
            yield self.keys[begin : begin + _STEP_BYTES]


@dataclass(frozen=True, slots=True)
class Pin:
    """What one name keeps, until `ends_ns` of CLOCK_BOOTTIME. Raises InvalidArgumentError, LimitExceededError."""

    name: str
    chains: tuple[PinnedChain, ...]
    ends_ns: int

    def __post_init__(self) -> None:
        size = len(self.name.encode())
        if not 1 <= size <= PIN_NAME_BYTES_MAX or not self.name.isprintable():
            raise InvalidArgumentError(
                f"a pin's name is 1 to {PIN_NAME_BYTES_MAX} bytes of printable text; got {self.name[:80]!r}"
            )
        if not 1 <= len(self.chains) <= PIN_CHAINS_MAX:
            raise LimitExceededError(
                f"a pin names 1 to {PIN_CHAINS_MAX} chains, one a namespace; got {len(self.chains)}"
            )
        for chain in self.chains:
            if not chain.keys or len(chain.keys) % KEY_BYTES:
                raise InvalidArgumentError(
                    f"a pinned chain is n × {KEY_BYTES} bytes of keys, n ≥ 1; got {len(chain.keys)} bytes"
                )
        if self.pages > PIN_PAGES_MAX:
            raise LimitExceededError(
                f"a pin has {PIN_PAGES_MAX} pages at most; got {self.pages}: pin a shorter prefix, or by several names"
            )

    @property
    def pages(self) -> int:
        """Keys of all its chains."""
        return sum(chain.pages for chain in self.chains)


class PinBoard:
    """The pins of one arena. What takes long is a generator that stops after PIN_STEP_KEYS keys to let others run."""

    def __init__(
        self,
        arena: PinningArena,
        *,
        quota_bytes: int,
        find: Callable[[NamespaceId], NamespaceRecord | None],
    ) -> None:
        """`quota_bytes` are of slots; `find` gives the namespace of an id where it is registered here."""
        self._arena = arena
        self._find = find
        self.quota_bytes = quota_bytes
        self._is_used = False
        self._pins: dict[str, Pin] = {}
        self._ending: deque[bytes] = deque()
        """Runs of keys that are still to be let go."""

    @property
    def pins(self) -> Mapping[str, Pin]:
        """Those that last, by name, in the order in which they were made."""
        return self._pins

    def pinning(self, pin: Pin) -> Generator[None, None, None]:
        """Take a pin, in the place of one that has its name. Nothing of it is left where that fails, or is given up.

        Raises LimitExceededError: too many pins or pages, or more than the quota leaves.
        """
        self._check(pin)
        if not self._is_used:
            self._arena.set_pin_quota(self.quota_bytes)
            self._is_used = True
        cost = 0
        for keys, page_bytes in self._runs(pin):
            cost += self._arena.pin_cost(keys=keys, payload_bytes=page_bytes)
            yield
        charged = self.figures()["charged_bytes"]
        if charged + cost > self.quota_bytes:
            raise self._too_much(pin, cost, charged)
        done: list[bytes] = []
        try:
            for keys, page_bytes in self._runs(pin):
                if not self._arena.pin(keys=keys, payload_bytes=page_bytes):
                    raise self._too_much(pin, cost, charged)  # noqa: TRY301 - given back as whatever else fails
                done.append(keys)
                yield
            self._check(pin)  # others may have pinned meanwhile
        except BaseException:
            self._ending.extend(done)
            raise
        self.end(pin.name)
        self._pins[pin.name] = pin

    def end(self, name: str) -> bool:
        """A pin lasts no longer; `settle` lets its pages go. False: there is none of this name."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        self._ending.extend(keys for chain in pin.chains for keys in chain.runs())
        return True

    def expire(self, now_ns: int) -> list[str]:
        """End what is over by `now_ns`, and let go of some of what has ended; returns the names."""
        over = [name for name, pin in self._pins.items() if pin.ends_ns <= now_ns]
        for name in over:
            self.end(name)
        self.settle()
        return over

    def settle(self) -> bool:
        """Let go of some of what has ended; returns whether there is more."""
        if self._ending:
            self._arena.unpin(keys=self._ending.popleft())
        return bool(self._ending)

    def holding(self, pin: Pin) -> Iterator[tuple[int, int]]:
        """(pages, payload bytes) of a pin that are resident and held, in steps."""
        for chain in pin.chains:
            for keys in chain.runs():
                yield self._arena.held_among(keys=keys)

    def figures(self) -> dict[str, int]:
        """Pins, and of all of them together: see Arena.pin_statistics."""
        told = self._arena.pin_statistics() if self._is_used else _NOTHING
        return {**told, "pins": len(self._pins), "quota_bytes": self.quota_bytes}

    def _runs(self, pin: Pin) -> Iterator[tuple[bytes, int]]:
        for chain in pin.chains:
            record = self._find(chain.namespace)
            for keys in chain.runs():
                yield keys, chain.page_bytes if record is None else record.page_bytes

    def _check(self, pin: Pin) -> None:
        others = [other for other in self._pins.values() if other.name != pin.name]
        if len(others) >= PINS_MAX:
            raise LimitExceededError(f"a sidecar has {PINS_MAX} pins at most: unpin some")
        pages = sum(other.pages for other in others)
        if pages + pin.pages > PINNED_PAGES_MAX:
            raise LimitExceededError(
                f"a sidecar pins {PINNED_PAGES_MAX} pages at most, {pages} are pinned and {pin.pages} would come to them: "
                "unpin some"
            )

    def _too_much(self, pin: Pin, cost: int, charged: int) -> LimitExceededError:
        return LimitExceededError(
            f"pin {pin.name!r} takes {cost} bytes more and {charged} of the quota of {self.quota_bytes} are taken: unpin "
            "something, pin a shorter prefix, or raise pin_quota"
        )
