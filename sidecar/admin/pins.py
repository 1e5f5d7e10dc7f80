"""Pins through this sidecar: made, loaded, listed, ended, and kept over a restart. No gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from cache_l2.inspection import PageFacts
from cache_l2.namespaces import NamespaceRecord
from cache_l2.pins import Pin, PinBoard, PinnedChain
from kv_types.clock import Clock
from kv_types.errors import InvalidArgumentError, LimitExceededError, ProtocolError, UnknownNamespaceError
from kv_types.ids import KEY_BYTES, NamespaceId, PageKey, page_key
from kv_types.limits import LOAD_KEYS_MAX, LOAD_ROWS_MAX
from kv_types.operator_limits import PIN_LOAD_S_DEFAULT, PIN_PAGES_MAX, PIN_S_MAX, PIN_S_MIN
from sidecar.kept_files import in_thread_to_its_end
from sidecar.l3.loads import LoadRow, Loads
from sidecar.logs import logger
from sidecar.pin_file import read_pins, write_pins
from sidecar.units import format_duration

_SECOND_NS = 1_000_000_000
_NS_PER_MS = 1_000_000

_log = logger("pins")


class PinnedStore(Protocol):
    """What pins need of the node's pages."""

    @property
    def pins(self) -> PinBoard:
        """What is pinned."""
        ...

    def namespace(self, namespace: NamespaceId) -> NamespaceRecord:
        """Look up a namespace; raises UnknownNamespaceError."""
        ...

    def inspect(self, key: PageKey) -> PageFacts | None:
        """What is visible under a key; None: nothing."""
        ...

    def chain(self, key: PageKey, *, pages_max: int) -> Sequence[PageKey] | None:
        """Keys from the root to a visible page; None: more than `pages_max`."""
        ...


@dataclass(frozen=True, slots=True)
class PinTold:
    """A pin, how much of it is resident and held, and how long it lasts from now on."""

    pin: Pin
    held_pages: int
    held_bytes: int
    remaining_ms: int


class PinAdministration:
    """The verbs of an operator about pins. All calls run on the store's own thread."""

    def __init__(self, store: PinnedStore, loads: Loads, *, clock: Clock, file: Path | None = None) -> None:
        """`loads` brings what the node lacks; `file` keeps pins over a restart, None: nothing does."""
        self._store = store
        self._loads = loads
        self._clock = clock
        self._file = file
        self._changing = asyncio.Lock()

    @property
    def figures(self) -> Mapping[str, int]:
        """Of all pins together."""
        return self._store.pins.figures()

    async def pin(
        self, name: str, chains: Sequence[PinnedChain], *, lasting_s: float, load: bool = False
    ) -> PinTold:
        """Pin chains for a time, in the place of what has that name, and load what is missing of them.

        Raises InvalidArgumentError, LimitExceededError; nothing has changed then.
        """
        if not PIN_S_MIN <= lasting_s <= PIN_S_MAX:
            raise LimitExceededError(
                f"a pin lasts {format_duration(PIN_S_MIN)} to {format_duration(PIN_S_MAX)}; got {lasting_s:g} s: pin again "
                "before it ends"
            )
        sized = tuple(self._sized(chain) for chain in chains)
        pin = Pin(name, sized, self._clock.now_ns() + int(lasting_s * _SECOND_NS))
        async with self._changing:
            await self._take(pin)
            # At once: a caller that goes away now leaves a pin, which a restart must not end.
            await self._save()
            await self._settled()
        _log.info("pinned", name=name, pages=pin.pages, chains=len(pin.chains), lasting_s=lasting_s)
        if load and self._loads.is_available:
            await self._load(pin)
        return await self._told(pin)

    async def pin_key(self, name: str, key: PageKey, *, lasting_s: float) -> PinTold:
        """Pin a page of this node with all that it stands on. Raises InvalidArgumentError where it isn't here."""
        facts = self._store.inspect(key)
        if facts is None:
            raise InvalidArgumentError(
                f"no page {key.hex()} is on this node, so that nobody knows what it stands on: pin it by its prefix"
            )
        keys = self._store.chain(key, pages_max=PIN_PAGES_MAX)
        if keys is None:
            raise LimitExceededError(
                f"the page stands on more than {PIN_PAGES_MAX - 1} others: pin one below it"
            )
        chain = PinnedChain(facts.namespace.id, b"".join(keys), facts.payload_bytes)
        return await self.pin(name, [chain], lasting_s=lasting_s)

    async def unpin(self, name: str) -> None:
        """End a pin. Raises InvalidArgumentError where there is none of this name."""
        async with self._changing:
            if not self._store.pins.end(name):
                raise InvalidArgumentError(
                    f"no pin is called {name!r}; `stratakv pins` lists those there are"
                )
            await self._save()
            await self._settled()
        _log.info("unpinned", name=name)

    async def pins(self) -> list[PinTold]:
        """Every pin that lasts."""
        return [await self._told(pin) for pin in list(self._store.pins.pins.values())]

    async def restore(self) -> None:
        """Take up what the sidecar before kept. What can't be read or taken is logged, and no reason not to start."""
        if self._file is None:
            return
        try:
            kept = await asyncio.to_thread(read_pins, self._file)
        except (ProtocolError, InvalidArgumentError, OSError) as error:
            _log.warning("pins of the sidecar before are lost", file=str(self._file), reason=str(error))
            return
        for pin in kept:
            if pin.ends_ns <= self._clock.now_ns():
                continue
            try:
                await self._take(pin)
            except LimitExceededError as error:
                _log.warning("a pin of the sidecar before was not taken", name=pin.name, reason=str(error))
        if kept:
            _log.info("pins taken up", pins=len(self._store.pins.pins))
            await self._save()  # without those that are over

    def _sized(self, chain: PinnedChain) -> PinnedChain:
        try:
            return replace(chain, page_bytes=self._store.namespace(chain.namespace).page_bytes)
        except UnknownNamespaceError:  # of another node's, so far
            return chain

    async def _take(self, pin: Pin) -> None:
        with contextlib.closing(
            self._store.pins.pinning(pin)
        ) as steps:  # a call that is cancelled leaves nothing
            for _ in steps:
                await asyncio.sleep(0)

    async def _load(self, pin: Pin) -> None:
        deadline_ns = self._clock.now_ns() + int(PIN_LOAD_S_DEFAULT * _SECOND_NS)
        for rows in loads_of(pin.chains):
            if self._clock.now_ns() >= deadline_ns:
                break
            await self._loads.begin(rows, deadline_ns=deadline_ns).wait()

    async def _settled(self) -> None:
        while self._store.pins.settle():
            await asyncio.sleep(0)

    async def _save(self) -> None:
        if self._file is not None:
            pins = list(self._store.pins.pins.values())
            await in_thread_to_its_end(partial(_write, self._file, pins))

    async def _told(self, pin: Pin) -> PinTold:
        pages = size = 0
        for more_pages, more_bytes in self._store.pins.holding(pin):
            pages, size = pages + more_pages, size + more_bytes
            await asyncio.sleep(0)
        remaining_ms = max(0, pin.ends_ns - self._clock.now_ns()) // _NS_PER_MS
        return PinTold(pin, pages, size, remaining_ms)


def _write(file: Path, pins: Sequence[Pin]) -> None:
    try:
        write_pins(file, pins)
    except OSError as error:  # the pins themselves hold all the same
        _log.warning("pins can't be kept over a restart", file=str(file), reason=str(error))


def loads_of(chains: Iterable[PinnedChain]) -> Iterator[list[LoadRow]]:
    """Loads that bring chains one after another, each no larger than a client's: one of all would take others' room."""
    rows: list[LoadRow] = []
    pages = 0
    for chain in chains:
        at = 0
        parent: PageKey | None = None
        while at < len(chain.keys):
            keys = chain.keys[at : at + (LOAD_KEYS_MAX - pages) * KEY_BYTES]
            rows.append(LoadRow(chain.namespace, parent, keys))
            at, parent, pages = at + len(keys), page_key(keys[-KEY_BYTES:]), pages + len(keys) // KEY_BYTES
            if pages == LOAD_KEYS_MAX or len(rows) == LOAD_ROWS_MAX:
                yield rows
                rows, pages = [], 0
    if rows:
        yield rows
