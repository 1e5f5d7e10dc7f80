"""The record stores against a dict, in any order that Hypothesis thinks of: the one in memory, and Redis raw and compressed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

from cache_l3.key_space import KeySpace
from cache_l3.record_store import RecordName, RecordStore
from kv_types.record import Codec
from tests.conformance.record_store_machine import RecordStoreMachine
from tests.support.fault_relay import FaultRelay
from tests.support.manual_time import SECOND_NS, ManualTime
from tests.support.memory_records import MemoryRecords, MemoryShelf
from tests.support.record_stores import OpenStore, open_store, until
from tests.support.records import within
from tests.support.redis_servers import RedisServer

pytestmark = pytest.mark.timeout(120)
_FLEETS = itertools.count()


class MemoryMachine(RecordStoreMachine):
    """In memory."""

    async def open(self) -> RecordStore:
        self.time = ManualTime()
        self.shelf = MemoryShelf(clock=self.time)
        return MemoryRecords(self.shelf, clock=self.time, pause=self.time.pause)

    async def close(self) -> None:
        await self.store.close()

    def within(self, seconds: float) -> int:
        return self.time.now_ns() + int(seconds * SECOND_NS)

    def read(self, name: RecordName) -> bytes | None:
        return self.shelf.get(name)

    def write(self, name: RecordName, data: bytes | None) -> None:
        if data is None:
            self.shelf.remove(name)
        else:
            self.shelf.put(name, data)

    async def settled(self, name: RecordName) -> None:
        assert self.shelf.get(name) is None


class RedisMachine(RecordStoreMachine):
    """On a server behind a relay that cuts connections now and then; each run in a fleet of its own."""

    server: ClassVar[RedisServer]
    relay: ClassVar[FaultRelay]
    codec: ClassVar[Codec] = Codec.RAW

    async def open(self) -> RecordStore:
        fleet = f"machine-{next(_FLEETS)}"
        self.keys = KeySpace(fleet)
        self.opened: OpenStore = await open_store(
            self.relay.url, fleet=fleet, codec=self.codec, connections=2
        )
        return self.opened.store

    async def close(self) -> None:
        await self.opened.close()

    def within(self, seconds: float) -> int:
        return within(seconds)

    def read(self, name: RecordName) -> bytes | None:
        found: Any = self.server.client.get(self.keys.key(name))
        assert found is None or isinstance(found, bytes)
        return found

    def write(self, name: RecordName, data: bytes | None) -> None:
        if data is None:
            self.server.client.delete(self.keys.key(name))
        else:
            self.server.client.set(self.keys.key(name), data, ex=60)

    async def settled(self, name: RecordName) -> None:
        await until(lambda: self.read(name) is None, what="its removal")

    @rule()
    def connections_are_cut(self) -> None:
        servers = self.opened.store.describe
        self.run(until(lambda: servers().servers[0].connections > 0, what="a connection"))
        self.relay.cut_all()


class CompressedRedisMachine(RedisMachine):
    """The same, with a codec."""

    codec = Codec.PLANES


@pytest.fixture(scope="module")
def relay(shared_redis: RedisServer) -> Iterator[FaultRelay]:
    with FaultRelay(("127.0.0.1", shared_redis.port)) as made:
        yield made


def test_the_store_in_memory_is_a_dict() -> None:
    run_state_machine_as_test(
        MemoryMachine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )


@pytest.mark.parametrize("machine", [RedisMachine, CompressedRedisMachine])
def test_the_store_on_redis_is_a_dict(
    machine: type[RedisMachine], shared_redis: RedisServer, relay: FaultRelay
) -> None:
    machine.server, machine.relay = shared_redis, relay
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
    )
