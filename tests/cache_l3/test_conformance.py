"""Every record store keeps the contract: in memory, over TCP, Unix sockets, TLS and ACL, on a Cluster, raw and compressed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from redis import Redis

from kv_types.record import Codec
from tests.conformance.record_store import RecordBed, RecordStoreConformance
from tests.support.manual_time import SECOND_NS, ManualTime, until
from tests.support.memory_records import MemoryRecords, MemoryShelf
from tests.support.record_stores import Around, open_store
from tests.support.record_stores import until as until_really
from tests.support.records import within
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_guard import Certificates, Guard
from tests.support.redis_servers import RedisServer, RedisServers

pytestmark = pytest.mark.timeout(60)


class TestMemoryRecords(RecordStoreConformance):
    """The store of other pieces' tests."""

    @pytest.fixture
    def bed(self) -> RecordBed:
        time = ManualTime()
        shelf = MemoryShelf(clock=time)
        first, second = (MemoryRecords(shelf, clock=time, pause=time.pause) for _ in range(2))
        return RecordBed(
            store=first, neighbour=second, read=shelf.get,
            write=shelf.put, ttl_s=shelf.ttl_s,
            within=lambda seconds: time.now_ns() + int(seconds * SECOND_NS),
            settle=lambda condition: until(condition, what="its end"),
        )  # fmt: skip


@dataclass(slots=True)
class Place:
    """Where an L3 lies: its URL, its codec, and clients of the test's own."""

    urls: str
    codec: Codec
    client_of: Callable[[bytes], Redis]
    flush: Callable[[], object]


def _on(server: RedisServer, urls: str, codec: Codec) -> Place:
    return Place(urls, codec, lambda key: server.client, server.client.flushall)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster(replicas=0) as made:
        yield made


@pytest.fixture(
    scope="module", params=["unix", "tcp-zstd", "acl", "tls", "tls-zstd", "cluster", "cluster-zstd"]
)
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    kind, _, codec = request.param.partition("-")
    packing = Codec.PLANES if codec else Codec.RAW
    if kind == "cluster":
        cluster: RedisCluster = request.getfixturevalue("cluster")
        return Place(cluster.urls, packing, lambda key: cluster.owner_of(key).client, cluster.flush)
    made: RedisServers = request.getfixturevalue("servers")
    if kind == "tls":
        guard = Guard(certificates=Certificates.make(tmp_path_factory.mktemp("tls")))
        server = made.start(guard=guard)
    elif kind == "acl":
        may = "~stratakv:* +get +set +getrange +expire +unlink +ping +info"
        server = made.start(guard=Guard(user="pages", may=may))
    else:
        server = made.start()
    return _on(server, server.url if kind == "unix" else server.tcp_url, packing)


class TestRedisRecordStore(RecordStoreConformance):
    """The store of the product."""

    @pytest_asyncio.fixture
    async def bed(self, where: Place) -> AsyncIterator[RecordBed]:
        where.flush()
        around = Around(where.client_of)
        pair = [await open_store(where.urls, codec=where.codec) for _ in range(2)]
        yield RecordBed(
            store=pair[0].store, neighbour=pair[1].store, read=around.read, write=around.write,
            ttl_s=around.ttl_s, within=within,
            settle=lambda condition: until_really(condition, what="its end"),
        )  # fmt: skip
        for one in pair:
            await one.close()
