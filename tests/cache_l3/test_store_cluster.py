"""A record store on a real Cluster whose slots move and whose primaries fail over, under load."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cache_l3.key_space import slot_of
from cache_l3.record_store import LoadedRecord
from cache_l3.redis_store import RedisRecordStore
from kv_types.outcomes import STORED, MissReason, PutOutcome, Refused
from kv_types.record import RecordHeader
from tests.support.record_stores import KEYS, load, opened, put, until
from tests.support.records import name, within
from tests.support.redis_cluster import ClusterNode, RedisCluster, redis_cluster
from tests.support.redis_guard import Certificates, Guard

pytestmark = pytest.mark.timeout(90)
PAGES = 60


@pytest.fixture(scope="module")
def cluster_of_module() -> Iterator[RedisCluster]:
    with redis_cluster() as made:
        yield made


@pytest.fixture
def cluster(cluster_of_module: RedisCluster) -> RedisCluster:
    """All well and empty before each test."""
    cluster_of_module.wait_ok()
    cluster_of_module.flush()
    return cluster_of_module


@pytest_asyncio.fixture
async def store(cluster: RedisCluster) -> AsyncIterator[RedisRecordStore]:
    async with opened(cluster.urls) as made:
        yield made


def slot(number: int) -> int:
    """The slot of a page."""
    return slot_of(KEYS.key(name(number)))


def another(cluster: RedisCluster, node: ClusterNode) -> ClusterNode:
    return next(other for other in cluster.primaries if other is not node)


class Load:
    """Pages that are stored, probed and loaded all the time, and what came of it."""

    def __init__(self, store: RedisRecordStore, *, seconds: float) -> None:
        self.stored: list[PutOutcome] = []
        self.loaded: list[LoadedRecord | MissReason] = []
        self._store = store
        self._seconds = seconds
        self._ended = asyncio.Event()
        self._tasks = [asyncio.create_task(self._work(first)) for first in range(4)]

    async def _work(self, number: int) -> None:
        while not self._ended.is_set():
            number = (number + 7) % PAGES
            self.stored.append(await put(self._store, number, seconds=self._seconds))
            self.loaded.append(await load(self._store, number, seconds=self._seconds))
            names = [name(one) for one in range(PAGES)]
            await self._store.probe(names, deadline_ns=within(self._seconds))

    async def more(self, count: int = 50) -> None:
        """Wait until it has come on a good bit."""
        before = len(self.loaded)
        await until(lambda: len(self.loaded) >= before + count, what="progress", seconds=30.0)

    async def end(self) -> None:
        self._ended.set()
        await asyncio.gather(*self._tasks)


@pytest.mark.asyncio
async def test_pages_lie_on_all_primaries(cluster: RedisCluster, store: RedisRecordStore) -> None:
    assert await asyncio.gather(*(put(store, number) for number in range(PAGES))) == [STORED] * PAGES
    assert min(node.client.dbsize() for node in cluster.primaries) > 5
    picture = store.describe()
    assert (picture.kind, picture.trouble) == ("cluster", "")
    assert {server.server for server in picture.servers} == {
        f"redis://127.0.0.1:{node.port}" for node in cluster.primaries
    }
    assert store.statistics()["redirected"] == 0, "the table was right"


@pytest.mark.asyncio
async def test_a_slot_that_has_moved_costs_one_redirection(
    cluster: RedisCluster, store: RedisRecordStore
) -> None:
    await put(store, 1)
    owner = cluster.owner(slot(1))
    cluster.move_slot(slot(1), another(cluster, owner))
    assert isinstance(await load(store, 1), LoadedRecord)
    assert store.statistics()["redirected"] == 1
    for _ in range(3):
        assert isinstance(await load(store, 1), LoadedRecord)
        assert await put(store, 1) is STORED
    assert store.statistics()["redirected"] == 1, "it has learnt"


@pytest.mark.asyncio
async def test_pages_of_a_slot_on_its_way_are_found_on_either_side(
    cluster: RedisCluster, store: RedisRecordStore
) -> None:
    """ASK for what has gone already, and for what is new; the table stays as it is until the move is over."""
    first = next(one for one in itertools.count(6) if slot(one) == slot(5))  # another page of the same slot
    await put(store, 5)
    await put(store, first)
    source = cluster.owner(slot(5))
    with cluster.moving(slot(5), another(cluster, source)) as move:
        assert isinstance(await load(store, 5), LoadedRecord), "still there"
        assert move.keys(1) == 1
        for number in (5, first):
            assert isinstance(await load(store, number), LoadedRecord)
        headers = await store.probe([name(5), name(first)], deadline_ns=within(5.0))
        assert all(isinstance(header, RecordHeader) for header in headers)
        move.keys()
        assert await put(store, 5) is STORED, "written where the slot goes"
        assert move.target.cluster("COUNTKEYSINSLOT", slot(5)) == 2
        assert await store.refresh({name(5): 500}, deadline_ns=within(5.0)) == 1
        assert await store.remove([name(first)], deadline_ns=within(5.0)) == 1
    assert isinstance(await load(store, 5), LoadedRecord)
    assert await load(store, first) is MissReason.ABSENT


@pytest.mark.asyncio
async def test_slots_move_under_load_and_nobody_notices(
    cluster: RedisCluster, store: RedisRecordStore
) -> None:
    work = Load(store, seconds=5.0)
    await work.more()
    for number in range(12):
        source = cluster.owner(slot(number))
        await asyncio.to_thread(cluster.move_slot, slot(number), another(cluster, source))
        await work.more(5)
    await work.end()
    assert set(work.stored) == {STORED}
    assert all(isinstance(end, LoadedRecord) for end in work.loaded)
    told = store.statistics()
    assert told["redirected"] > 0
    assert (told["breaker_opened"], told["corrupt"]) == (0, 0)


@pytest.mark.asyncio
async def test_c19_a_failover_in_good_order_fails_nobody(
    cluster: RedisCluster, store: RedisRecordStore
) -> None:
    work = Load(store, seconds=5.0)
    await work.more()
    old = cluster.primaries[0]
    await asyncio.to_thread(cluster.failover, old)
    await work.more(200)
    await work.end()
    assert set(work.stored) == {STORED}
    assert set(work.loaded) - {MissReason.ABSENT} == {
        end for end in work.loaded if isinstance(end, LoadedRecord)
    }


@pytest.mark.asyncio
async def test_a_server_that_is_no_primary_any_more_is_let_go_and_its_counts_stay(
    cluster: RedisCluster, store: RedisRecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache_l3.router.L3_SHARD_IDLE_S", 0.0)
    await asyncio.gather(*(put(store, number) for number in range(PAGES)))
    old = cluster.primaries[0]
    shard = store._router._shards[f"redis://127.0.0.1:{old.port}"]
    shard.is_down()  # so that there is something to count
    opened_before = store.statistics()["breaker_opened"]
    await asyncio.to_thread(cluster.failover, old)
    await healed(store)
    shard.renew()
    shard._on_suspect(shard)
    primaries = {f"redis://127.0.0.1:{node.port}" for node in cluster.primaries}
    await until(
        lambda: {server.server for server in store.describe().servers} == primaries, what="its leaving"
    )
    assert store.statistics()["breaker_opened"] >= opened_before >= 1
    await healed(store)


@pytest.mark.asyncio
async def test_a_primary_that_dies_costs_misses_of_its_own_and_heals(
    cluster: RedisCluster, store: RedisRecordStore
) -> None:
    work = Load(store, seconds=1.0)
    await work.more()
    dead = cluster.primaries[0]
    await asyncio.to_thread(dead.kill)
    await work.more(100)
    await asyncio.to_thread(cluster.wait_for_failover, dead)
    await healed(store)
    await work.end()
    assert any(end is MissReason.L3_UNAVAILABLE for end in work.loaded)
    assert STORED in work.stored
    assert {type(end) for end in work.stored} <= {type(STORED), Refused}
    assert {server.breaker for server in store.describe().servers if str(dead.port) not in server.server} == {
        "closed"
    }
    cluster.restart(dead)  # by this thread: servers end with the thread that started them


@pytest.mark.asyncio
async def test_c18_a_stopped_primary_costs_its_pages_alone(
    cluster: RedisCluster, store: RedisRecordStore
) -> None:
    await asyncio.gather(*(put(store, number) for number in range(PAGES)))
    stopped = cluster.primaries[0]
    of_stopped = [number for number in range(PAGES) if cluster.owner(slot(number)) is stopped]
    stopped.freeze()
    found = await store.probe([name(number) for number in range(PAGES)], deadline_ns=within(0.5))
    assert [number for number, one in enumerate(found) if not isinstance(one, RecordHeader)] == of_stopped
    for number in of_stopped[:6]:
        assert await load(store, number, seconds=0.2) in (MissReason.DEADLINE, MissReason.L3_UNAVAILABLE)
    for number in range(PAGES):
        if number not in of_stopped:
            assert isinstance(await load(store, number, seconds=2.0), LoadedRecord)
    stopped.thaw()
    await healed(store)


async def healed(store: RedisRecordStore) -> None:
    """Wait until every page can be stored again."""
    for _ in range(200):
        if set(await asyncio.gather(*(put(store, number, seconds=0.5) for number in range(PAGES)))) == {
            STORED
        }:
            return
        await asyncio.wait([asyncio.ensure_future(load(store, 0, seconds=0.5))])
    raise AssertionError(f"it does not heal: {store.describe()}")


@pytest.mark.asyncio
async def test_a_cluster_behind_tls_lets_in_a_user_with_no_more_rights_than_the_documents_say(
    tmp_path: Path,
) -> None:
    may = "~stratakv:* +get +set +getrange +expire +unlink +ping +info +select +asking +cluster|slots"
    guard = Guard(certificates=Certificates.make(tmp_path), user="pages", may=may)
    with redis_cluster(replicas=0, guard=guard) as cluster:
        async with opened(cluster.urls) as store:
            await asyncio.gather(*(put(store, number) for number in range(12)))
            target = another(cluster, cluster.owner(slot(5)))
            with cluster.moving(slot(5), target) as move:
                move.keys()
                assert isinstance(await load(store, 5), LoadedRecord), store.describe()
            ends = [await load(store, number) for number in range(12)]
            assert all(isinstance(end, LoadedRecord) for end in ends), store.describe()
            assert not any("NOPERM" in server.last_error for server in store.describe().servers)


@pytest.mark.asyncio
async def test_one_address_of_a_cluster_under_a_url_of_none_is_told(cluster: RedisCluster) -> None:
    async with opened(f"redis://127.0.0.1:{cluster.primaries[0].port}") as store:
        ends = [await load(store, number, seconds=1.0) for number in range(20)]
        assert MissReason.L3_UNAVAILABLE in ends
        assert "redis+cluster://" in store.describe().trouble


@pytest.mark.asyncio
async def test_a_server_that_is_no_cluster_under_a_url_of_one_is_told(cluster: RedisCluster) -> None:
    async with opened("redis+cluster://127.0.0.1:1") as store:
        assert await load(store, 1, seconds=1.0) is MissReason.L3_UNAVAILABLE
        assert store.describe().trouble != ""
