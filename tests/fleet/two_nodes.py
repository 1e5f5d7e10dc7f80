"""Two nodes that share pages through one Redis behind a relay: what one computes the other fetches, byte for byte."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cache_l3.key_space import KeySpace
from cache_l3.record_store import RecordName
from kv_types.ids import KEY_BYTES, PageKey
from kv_types.namespace import Namespace
from kv_types.outcomes import Hit, Miss, MissReason, Stored
from tests.fleet.fleet import Fleet, fleet_of
from tests.fleet.l3_fleets import status_of
from tests.fleet.station import Station
from tests.support.fault_relay import FaultRelay
from tests.support.pages import namespace_of
from tests.support.polling import wait_until
from tests.support.records import split_record
from tests.support.redis_servers import RedisServer
from tests.support.timing import timed

UNITS = 8
SPACE = namespace_of("shared", units=UNITS)
PAGE_TOKENS = SPACE.page_tokens
_KEYS = KeySpace("default")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a look-up with a deadline got, by tier, and why no more; `took_s` on the caller's clock."""

    l2: int
    l3: int
    reason: MissReason
    took_s: float

    @property
    def pages(self) -> int:
        return self.l2 + self.l3


def fetch(station: Station, keys: bytes, *, deadline_s: float) -> Fetched:
    """Look a chain up, checking that the answer came in time, that each byte is right, and that each page is counted once."""
    sources = station.pages(keys)
    room = [bytearray(station.page_bytes) for _ in sources]
    before, began_s = station.client.statistics(), time.monotonic()
    outcome = timed(
        partial(station.client.get, station.namespace, keys, room, deadline_s=deadline_s),
        deadline_s=deadline_s,
    )
    took_s, after = time.monotonic() - began_s, station.client.statistics()
    match outcome:
        case Hit(pages=count, ended_by=reason):
            assert [bytes(page) for page in room[:count]] == sources[:count]
        case Miss(reason=reason):
            count = 0
    l2, l3, asked = (
        int(after[name]) - int(before[name]) for name in ("l2_pages", "l3_pages", "requested_pages")
    )
    assert (l2 + l3, asked) == (count, len(sources))
    return Fetched(l2, l3, reason, took_s)


class Records:
    """The page records of a server, as they lie there."""

    def __init__(self, server: RedisServer, space: Namespace) -> None:
        self._server = server
        self._space = space

    def name(self, key: bytes) -> bytes:
        """Under which name a page's record lies."""
        return _KEYS.key(RecordName(self._space.id, PageKey(key)))

    def read(self, key: bytes) -> bytes:
        """A record, header and payload; b"" where there is none."""
        record: bytes = self._server.command("GET", self.name(key)) or b""
        return record

    def write(self, key: bytes, record: bytes) -> None:
        """Put other bytes in a record's place; it lives on as long as it would have."""
        assert self._server.client.set(self.name(key), record, keepttl=True)

    def lives_s(self, key: bytes) -> int:
        """Seconds that a record has to live; -1: for ever, -2: there is none."""
        return int(self._server.client.ttl(self.name(key)))

    def wait(self, keys: bytes, *, timeout_s: float = 10.0) -> None:
        """Wait until all pages of a chain are there."""
        names = [self.name(key) for key in split(keys)]
        wait_until(
            lambda: self._server.client.exists(*names) == len(names), timeout_s=timeout_s,
            what=f"{len(names)} records",
        )  # fmt: skip

    def check_all(self) -> int:
        """Every key of the server is one whole record with a time to live; returns how many there are."""
        count = 0
        for name in self._server.client.scan_iter(count=1000):
            record = self._server.command("GET", name)
            if record is None:
                continue  # evicted meanwhile
            header, _ = split_record(record)
            assert name == _KEYS.key(RecordName(header.page.namespace, header.page.key))
            assert self._server.client.ttl(name) > 0, name
            count += 1
        return count


def split(keys: bytes) -> list[bytes]:
    """Packed keys, one by one."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


@dataclass(slots=True)
class TwoNodes:
    """Node 0 and node 1, a log of their own kind, and `pages` behind `relay`."""

    fleet: Fleet
    pages: RedisServer
    relay: FaultRelay
    _prompts: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextlib.contextmanager
    def stations(self, space: Namespace = SPACE) -> Iterator[tuple[Station, Station]]:
        """One worker on each node."""
        with (
            Station(self.fleet.sidecars[0].runtime, space, name="first") as first,
            Station(self.fleet.sidecars[1].runtime, space, name="second") as second,
        ):
            yield first, second

    def fresh_chain(self, station: Station, pages: int) -> bytes:
        """Keys of a prompt that nobody had before."""
        return station.chain([next(self._prompts)] * (pages * PAGE_TOKENS))

    def records(self, space: Namespace = SPACE) -> Records:
        return Records(self.pages, space)

    def share(self, station: Station, pages: int) -> bytes:
        """Compute a fresh chain on a node, and wait until it is in Redis."""
        keys = self.fresh_chain(station, pages)
        assert all(isinstance(one, Stored) for one in station.compute(keys))
        self.records(station.space).wait(keys)
        return keys

    def corrupt(self, node: int) -> int:
        """Corrupt records that a node has met."""
        return int(status_of(self.fleet, node)["l3"]["records"]["corrupt"])

    def heals(self, writer: Station, reader: Station, *, timeout_s: float = 15.0) -> None:
        """Wait until what one node computes comes to the other through L3 again."""

        def is_shared() -> bool:
            keys = self.fresh_chain(writer, 2)
            if not all(isinstance(one, Stored) for one in writer.compute(keys)):
                return False
            with contextlib.suppress(AssertionError):
                self.records(writer.space).wait(keys, timeout_s=1.0)
                return fetch(reader, keys, deadline_s=0.5).l3 == 2
            return False

        wait_until(is_shared, timeout_s=timeout_s, what="pages to be shared again")


@contextlib.contextmanager
def two_nodes(
    *, flags: Sequence[str] = (), pages: Callable[[Fleet], RedisServer] | None = None, **changed: Any
) -> Iterator[TwoNodes]:
    """The nodes without any worker. `pages` starts what holds the pages, None: a server with nothing else in it."""
    made: list[TwoNodes] = []
    with contextlib.ExitStack() as held:

        def url(fleet: Fleet) -> str:
            server = fleet.servers.start() if pages is None else pages(fleet)
            relay = held.enter_context(FaultRelay(("127.0.0.1", server.port)))
            made.append(TwoNodes(fleet, server, relay))
            return relay.url

        held.enter_context(fleet_of(sidecars=2, workers=0, l3=url, flags=tuple(flags), **changed))
        yield made[0]
