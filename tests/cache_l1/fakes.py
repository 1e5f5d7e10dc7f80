"""A sidecar's header that tests write by hand, and page memory without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from kv_types.errors import BufferMismatchError
from kv_types.events import Event, encode_event
from kv_types.ids import NO_LIFE, LifeId, new_life_id

Row = tuple[int, bytes, int, int, bytes]


class FakeHeader:
    """Conforms to ValiditySource. `ring_records` events are kept; `on_look` runs each time the view is read,
    `on_events` before events are."""

    def __init__(self, *, ring_records: int = 1_000_000) -> None:
        self.life_now = new_life_id()
        self.view_now = 1
        self.freshness = 2**62
        self.applied: list[int] = []
        self.events: list[Row] = []
        self.ring_records = ring_records
        self.on_look: Callable[[], None] | None = None
        self.on_events: Callable[[], None] | None = None

    @property
    def life(self) -> LifeId:
        return self.life_now

    @property
    def view(self) -> int:
        if self.on_look is not None:
            self.on_look()
        return self.view_now

    @property
    def freshness_ns(self) -> int:
        return self.freshness

    def events_since(self, view: int) -> Sequence[Row] | None:
        if self.on_events is not None:
            self.on_events()
        latest_first = takewhile(lambda event: event[0] > view, reversed(self.events))
        wanted = list(latest_first)[::-1]
        return None if len(wanted) > self.ring_records else wanted

    def set_applied_view(self, view: int) -> None:
        self.applied.append(view)

    def publish(self, event: Event) -> None:
        kind, payload = encode_event(event)
        self.publish_raw(int(kind), payload)

    def publish_raw(self, kind: int, payload: bytes) -> None:
        self.events.append((self.view_now + 1, bytes(16), len(self.events) + 1, kind, payload))
        self.view_now += 1

    def restart(self) -> None:
        """Another life, whose views count from 1 again."""
        self.life_now = new_life_id()
        self.events.clear()
        self.view_now = 1

    def detach(self) -> None:
        self.life_now = NO_LIFE
        self.view_now = 0
        self.freshness = 0


class ByteMemory:
    """PageMemory over bytearrays. `on_write` runs before a page is filled, to let tests act in the middle of a copy."""

    def __init__(self, capacity: int, page_bytes: int) -> None:
        self._pages = [bytearray(page_bytes) for _ in range(capacity)]
        self._page_bytes = page_bytes
        self.on_write: Callable[[int], None] | None = None

    @property
    def capacity(self) -> int:
        return len(self._pages)

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def write(self, page: int, source: Any) -> None:
        if self.on_write is not None:
            self.on_write(page)
        if len(source) != self._page_bytes:
            raise BufferMismatchError(f"{len(source)} bytes for a page of {self._page_bytes}")
        self._pages[page][:] = source

    def read(self, page: int, destination: Any) -> None:
        if len(destination) != self._page_bytes:
            raise BufferMismatchError(f"{len(destination)} bytes for a page of {self._page_bytes}")
        destination[:] = self._pages[page]
