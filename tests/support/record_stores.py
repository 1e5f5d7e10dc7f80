"""Record stores on real servers for tests: opened with their data paths, and closed with all that they opened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, fields
from typing import Any

from redis import Redis

from cache_l3.address import parse_servers
from cache_l3.data_path import DataPath
from cache_l3.key_space import KeySpace
from cache_l3.opening import open_data_path
from cache_l3.record_store import LoadedRecord, RecordName, RecordStore
from cache_l3.redis_store import RecordStoreSettings, RedisRecordStore
from cache_l3.shard import ShardTerms
from kv_types.outcomes import MissReason, PutOutcome
from tests.support.records import CLOCK, describe, name, payload, place, within

FLEET = "tests"
KEYS = KeySpace(FLEET)


@dataclass(slots=True)
class OpenStore:
    """A store and what moves its bytes."""

    store: RedisRecordStore
    path: DataPath

    async def close(self) -> None:
        await self.store.close()
        self.path.close()


async def open_store(urls: str, **settings: Any) -> OpenStore:
    """Open one; settings are those of ShardTerms and of RecordStoreSettings."""
    servers = parse_servers(urls)
    terms = {one.name: settings.pop(one.name) for one in fields(ShardTerms) if one.name in settings}
    wanted: dict[str, Any] = {"fleet": FLEET, "terms": ShardTerms(**terms)} | settings
    path = open_data_path(servers)
    store = RedisRecordStore(RecordStoreSettings(servers=servers, **wanted), path=path, clock=CLOCK)
    await store.start()
    return OpenStore(store, path)


@contextlib.asynccontextmanager
async def opened(urls: str, **settings: Any) -> AsyncIterator[RedisRecordStore]:
    """The same for the length of a block."""
    one = await open_store(urls, **settings)
    try:
        yield one.store
    finally:
        await one.close()


async def put(store: RecordStore, number: int = 1, *, seconds: float = 5.0, size: int = 4096) -> PutOutcome:
    """Store a page of tests.support.records."""
    page, data = describe(number, size=size), payload(number, size=size)
    return await store.store(page, data, ttl_s=60, deadline_ns=within(seconds))


async def load(store: RecordStore, number: int = 1, *, seconds: float = 5.0) -> LoadedRecord | MissReason:
    """Load one of 4096 bytes; whatever says that it was loaded is the page that was asked for."""
    where = place()
    loaded = await store.load(name(number), where, deadline_ns=within(seconds))
    if isinstance(loaded, LoadedRecord):
        assert loaded.header.page == describe(number)
        assert where == payload(number)
    return loaded


async def until(condition: Callable[[], bool], *, what: str = "it", seconds: float = 10.0) -> None:
    """Let the loop run until something holds; fails after so long."""
    deadline_ns = within(seconds)
    moved = asyncio.Event()
    while not condition():
        assert CLOCK.now_ns() < deadline_ns, f"{what} did not come"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(moved.wait(), 0.002)


class Around:
    """A way to records that goes around the stores, by redis-py; `client_of` gives the one of a key's server."""

    def __init__(self, client_of: Callable[[bytes], Redis]) -> None:
        self._client_of = client_of

    def read(self, name: RecordName) -> bytes | None:
        key = KEYS.key(name)
        found = self._client_of(key).get(key)
        assert found is None or isinstance(found, bytes)
        return found

    def write(self, name: RecordName, data: bytes) -> None:
        key = KEYS.key(name)
        self._client_of(key).set(key, data, ex=60)

    def ttl_s(self, name: RecordName) -> float:
        key = KEYS.key(name)
        return float(str(self._client_of(key).pttl(key))) / 1000
