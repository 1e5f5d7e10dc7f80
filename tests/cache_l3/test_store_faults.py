"""A record store whose server is slow, stopped, killed, swapped with its replica or full: nobody waits longer than they said."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from cache_l3.breaker import BreakerTerms
from cache_l3.record_store import LoadedRecord, RecordStore
from cache_l3.redis_store import RedisRecordStore
from kv_types.limits import L3_CONNECTIONS_PER_SHARD_DEFAULT
from kv_types.outcomes import STORED, MissReason, PutOutcome, Refused, RefuseReason
from tests.support.fault_relay import TO_CLIENT, TO_SERVER, FaultRelay
from tests.support.record_stores import KEYS, Around, load, opened, put, until
from tests.support.records import describe, name, payload, place, within
from tests.support.redis_guard import Certificates, Guard
from tests.support.redis_servers import RedisServer, RedisServers
from tests.support.timing import run_queue_s
from tests.support.timing import within as at_most

pytestmark = pytest.mark.timeout(60)
DEADLINE_S = 0.2
PATIENT = BreakerTerms(failures=1 << 30)
"""A breaker that never opens."""


async def store_pages(store: RecordStore, numbers: range, *, size: int = 4096) -> None:
    done = await asyncio.gather(
        *(
            store.store(
                describe(number, size=size), payload(number, size=size), ttl_s=60, deadline_ns=within(5.0)
            )
            for number in numbers
        )
    )
    assert done == [STORED] * len(numbers)


async def timed(call: Callable[[], Awaitable[object]]) -> tuple[object, float]:
    """What came of it, and the seconds that it took; those for which our threads had no processor are not its own."""
    waited_s, began = run_queue_s(), time.monotonic()
    ended = await call()
    return ended, time.monotonic() - began - max(0.0, run_queue_s() - waited_s)


async def working(store: RedisRecordStore) -> None:
    """Wait until pages are served again, without a restart of anything."""
    for _ in range(400):
        if isinstance(await load(store, 0, seconds=0.5), LoadedRecord):
            return
        await until_next_turn()
    raise AssertionError(f"it does not heal: {store.describe()}")


async def until_next_turn() -> None:
    """A look-up is made every 20 ms or so."""
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 0.02)


def breaker(store: RedisRecordStore) -> str:
    return store.describe().servers[0].breaker


@pytest.mark.asyncio
async def test_c17_no_late_reply_reaches_anybody_else(shared_redis: RedisServer) -> None:
    """1,000 loads with a deadline of 1 ms behind a delay of 100 ms, among others that have the time to wait."""
    with FaultRelay(("127.0.0.1", shared_redis.port)) as relay:
        async with opened(relay.url, breaker=PATIENT, connections=8) as store:
            await store_pages(store, range(50))
            relay.set(TO_CLIENT, delay_s=0.1)
            found = {"loaded": 0, MissReason.DEADLINE: 0}
            for wave in range(10):
                loads = [load(store, (wave + turn) % 50, seconds=0.001) for turn in range(100)]
                loads += [load(store, turn, seconds=5.0) for turn in range(wave, 50, 10)]
                for end in await asyncio.gather(*loads):
                    if isinstance(end, LoadedRecord):
                        found["loaded"] += 1
                    else:
                        found[end] = found.get(end, 0) + 1
            relay.set(TO_CLIENT, delay_s=0.0)
            assert found[MissReason.DEADLINE] >= 990
            assert isinstance(await load(store, 7), LoadedRecord)
            assert store.statistics()["corrupt"] == 0


@pytest.mark.asyncio
async def test_c18_a_stopped_server_costs_nobody_more_than_their_deadline_and_heals(
    servers: RedisServers,
) -> None:
    server = servers.start()
    async with opened(server.tcp_url) as store:
        await store_pages(store, range(40))
        server.freeze()
        for turn in range(6):
            end, took = await timed(partial(load, store, turn, seconds=DEADLINE_S))
            assert end in (MissReason.DEADLINE, MissReason.L3_UNAVAILABLE)
            assert took <= at_most(DEADLINE_S)
            probed, took = await timed(
                lambda: store.probe([name(number) for number in range(40)], deadline_ns=within(DEADLINE_S))
            )
            assert set(probed) <= {MissReason.DEADLINE, MissReason.L3_UNAVAILABLE}  # type: ignore[call-overload]
            assert took <= at_most(DEADLINE_S)
        assert breaker(store) in ("open", "half_open")
        waits = []
        for turn in range(200):
            end, took = await timed(partial(load, store, turn % 40, seconds=DEADLINE_S))
            assert end is MissReason.L3_UNAVAILABLE
            waits.append(took)
        assert statistics.median(waits) < 0.02, "while the breaker is open the answer comes at once"
        assert await put(store, 1) == Refused(RefuseReason.UNREACHABLE)
        server.thaw()
        await working(store)
        assert breaker(store) == "closed"
        assert store.statistics()["breaker_opened"] == 1


@pytest.mark.asyncio
async def test_c18_many_look_ups_at_once_of_a_stopped_server_end_in_time(servers: RedisServers) -> None:
    server = servers.start()
    async with opened(server.url) as store:
        await store_pages(store, range(64))
        server.freeze()
        deadline_ns = within(DEADLINE_S)
        ends, took = await timed(
            lambda: asyncio.gather(
                *(store.load(name(number), place(), deadline_ns=deadline_ns) for number in range(64))
            )
        )
        assert took <= at_most(DEADLINE_S)
        assert set(ends) <= {MissReason.DEADLINE, MissReason.L3_UNAVAILABLE}  # type: ignore[call-overload]
        assert breaker(store) == "open"
        server.thaw()
        await working(store)


@pytest.mark.asyncio
async def test_c34_a_killed_server_is_told_at_once_and_used_again_when_it_is_back(
    servers: RedisServers,
) -> None:
    server = servers.start()
    async with opened(server.tcp_url) as store:
        await store_pages(store, range(1))
        server.kill()
        await until(lambda: breaker(store) == "open", what="the breaker", seconds=5.0)
        end, took = await timed(lambda: load(store, 0, seconds=5.0))
        assert end is MissReason.L3_UNAVAILABLE
        assert took < 0.02
        assert "refused" in store.describe().servers[0].last_error.lower()
        server.start()
        await until(lambda: breaker(store) == "closed", what="its healing", seconds=5.0)
        assert await load(store, 0) is MissReason.ABSENT
        assert await put(store, 0) is STORED


@pytest.mark.asyncio
async def test_a_server_that_is_not_there_at_first_is_found_when_it_comes(servers: RedisServers) -> None:
    server = servers.start()
    server.kill()
    async with opened(server.url) as store:
        assert await load(store, 0, seconds=1.0) is MissReason.L3_UNAVAILABLE
        server.start()
        await until(lambda: breaker(store) == "closed", what="it", seconds=5.0)
        assert await put(store, 0) is STORED


@pytest.mark.asyncio
async def test_connections_that_are_cut_cost_no_request(shared_redis: RedisServer) -> None:
    with FaultRelay(("127.0.0.1", shared_redis.port)) as relay:
        async with opened(relay.url) as store:
            await store_pages(store, range(50))
            for _ in range(5):
                loads = [load(store, number) for number in range(50)]
                ends = asyncio.gather(*loads)
                await asyncio.sleep(0)
                relay.cut_all()
                assert all(isinstance(end, LoadedRecord) for end in await ends)
                assert await put(store, 1) is STORED
            assert store.statistics()["breaker_opened"] == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("at", [7, 8, 12, 60, 300, 2000, 4300])
async def test_bytes_that_are_damaged_on_their_way_are_no_hit(shared_redis: RedisServer, at: int) -> None:
    """One byte of what each new connection brings, counted from its beginning: of a reply's frame, a header, a payload."""
    around = Around(lambda key: shared_redis.client)
    with FaultRelay(("127.0.0.1", shared_redis.port)) as relay:
        async with opened(relay.url, connections=1) as store:
            await store_pages(store, range(1))
            relay.set(TO_CLIENT, flip_at=at)
            relay.cut_all()
            end = await load(store, 0, seconds=0.5)
            assert isinstance(end, MissReason)
            if end is MissReason.CORRUPT:
                await until(lambda: around.read(name(0)) is None, what="its removal")
            relay.set(TO_CLIENT, flip_at=None)
            relay.cut_all()
            await until_stored(store)
            assert isinstance(await load(store, 0), LoadedRecord)


@pytest.mark.asyncio
async def test_c19_primary_and_replica_swap_roles_under_load(servers: RedisServers) -> None:
    first = servers.start()
    second = servers.start_replica(first)
    async with opened(f"{first.tcp_url},{second.tcp_url}") as store:
        outcomes: list[PutOutcome] = []
        ended = asyncio.Event()

        async def write() -> None:
            while not ended.is_set():
                outcomes.append(await put(store, len(outcomes) % 50, seconds=5.0))

        writers = [asyncio.create_task(write()) for _ in range(4)]
        for old, new in ((first, second), (second, first)):
            before = len(outcomes)
            await until(lambda before=before: len(outcomes) > before + 50)  # type: ignore[misc]
            await asyncio.to_thread(new.promote)
            await asyncio.to_thread(old.follow, new)
            before = len(outcomes)
            await until(lambda before=before: len(outcomes) > before + 50)  # type: ignore[misc]
        ended.set()
        await asyncio.gather(*writers)
        assert set(outcomes) == {STORED}
        assert first.client.dbsize() > 0
        assert isinstance(await load(store, 1), LoadedRecord)


@pytest.mark.asyncio
async def test_c19_a_primary_that_dies_is_replaced_by_the_other_candidate(servers: RedisServers) -> None:
    first = servers.start()
    second = servers.start_replica(first)
    async with opened(f"{first.tcp_url},{second.tcp_url}") as store:
        await store_pages(store, range(10))
        first.wait_for_replicas(1)
        first.client.wait(1, 1000)
        await asyncio.to_thread(first.kill)
        await asyncio.to_thread(second.promote)
        await working(store)
        await until_stored(store)
        assert second.client.dbsize() >= 10


@pytest.mark.asyncio
async def test_c19_a_name_that_stands_for_another_server_now_is_looked_up_again(
    servers: RedisServers,
) -> None:
    """One URL, behind which a failover happens: connections of before lead to what is a replica now."""
    first = servers.start()
    second = servers.start_replica(first)
    with FaultRelay(("127.0.0.1", first.port)) as relay:
        async with opened(relay.url) as store:
            await store_pages(store, range(5))
            await until(
                lambda: store.describe().servers[0].connections == L3_CONNECTIONS_PER_SHARD_DEFAULT,
                what="all that lead to the old one",
            )
            relay.call(lambda: setattr(relay, "_target", ("127.0.0.1", second.port)))
            await asyncio.to_thread(second.promote)
            await asyncio.to_thread(first.follow, second)
            assert await put(store, 7) is STORED
            assert second.client.exists(KEYS.key(name(7)))
            assert isinstance(await load(store, 7), LoadedRecord)
            assert store.statistics()["breaker_opened"] == 0


async def until_stored(store: RedisRecordStore) -> None:
    for _ in range(100):
        if await put(store, 0, seconds=0.5) is STORED:
            return
        await until_next_turn()
    raise AssertionError(f"no page can be stored: {store.describe()}")


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1, 2])
async def test_replicas_without_their_primary_are_told_and_used_once_promoted(
    servers: RedisServers, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("cache_l3.shard.L3_LOOK_S", 0.02)
    primary = servers.start()
    replicas = [servers.start_replica(primary) for _ in range(count)]
    async with opened(",".join(replica.tcp_url for replica in replicas)) as store:

        def all_are_known() -> bool:
            pictures = store.describe().servers
            return len(pictures) == count and all(
                "is a replica: name its primary" in one.last_error for one in pictures
            )

        for number in range(count):
            await put(store, number, seconds=0.5)
        await until(all_are_known, what="the word")
        assert {(one.breaker, one.writes) for one in store.describe().servers} == {("open", "refused")}
        end, took = await timed(lambda: load(store, 0))
        assert (end, took < 0.02) == (MissReason.L3_UNAVAILABLE, True)
        assert await put(store, 1) == Refused(RefuseReason.UNREACHABLE)
        await asyncio.to_thread(replicas[-1].promote)
        await until_stored(store)
        assert isinstance(await load(store, 0), LoadedRecord)
        assert [one.writes for one in store.describe().servers] == ["yes"], (
            "nobody has to know of replicas beside it"
        )


@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [False, True])
async def test_pages_that_are_larger_than_the_server_takes_are_refused_once_and_harm_nobody(
    servers: RedisServers, tmp_path: Path, tls: bool
) -> None:
    guard = Guard(certificates=Certificates.make(tmp_path)) if tls else None
    server = servers.start(guard=guard, proto_max_bulk_len=str(1 << 20))
    async with opened(server.tcp_url) as store:
        await store_pages(store, range(40))
        sent_before = store.statistics()["path_sets"]
        end, took = await timed(lambda: put(store, 100, size=2 << 20))
        assert end == Refused(RefuseReason.TOO_LARGE)
        assert took < 2.0, "not at its deadline"
        assert "proto-max-bulk-len" in store.describe().servers[0].last_error
        assert "smaller pages" in store.describe().servers[0].last_error
        assert store.statistics()["path_sets"] == sent_before + 1
        large = [put(store, 200 + number, size=2 << 20) for number in range(20)]
        loads = [load(store, number % 40) for number in range(200)]
        small = [put(store, number) for number in range(40)]
        assert set(await asyncio.gather(*large)) == {Refused(RefuseReason.TOO_LARGE)}
        assert all(isinstance(end, LoadedRecord) for end in await asyncio.gather(*loads))
        assert set(await asyncio.gather(*small)) == {STORED}
        assert store.statistics()["path_sets"] == sent_before + 1 + 40, "its size is known by now"
        assert (breaker(store), store.statistics()["breaker_opened"]) == ("closed", 0)
        assert store.describe().servers[0].writes == "yes", "it takes others"


@pytest.mark.asyncio
@pytest.mark.parametrize("tls", [False, True])
async def test_others_on_the_connection_of_a_page_that_is_too_large_are_served(
    servers: RedisServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr("cache_l3.capacity._KNOWN_NS", 0)
    guard = Guard(certificates=Certificates.make(tmp_path)) if tls else None
    server = servers.start(guard=guard, proto_max_bulk_len=str(1 << 20))
    async with opened(server.tcp_url, connections=2) as store:
        await store_pages(store, range(40))
        for turn in range(5):
            loads = [load(store, number) for number in range(40)]
            large = [put(store, 200 + number, size=(1 << 20) + 1) for number in range(4)]
            small = [put(store, number) for number in range(20)]
            assert set(await asyncio.gather(*large)) == {Refused(RefuseReason.TOO_LARGE)}, turn
            assert all(isinstance(end, LoadedRecord) for end in await asyncio.gather(*loads))
            assert set(await asyncio.gather(*small)) == {STORED}
        assert (breaker(store), store.statistics()["breaker_opened"]) == ("closed", 0)


@pytest.mark.asyncio
async def test_pages_stop_at_the_reserve_of_a_server_that_evicts_nothing_and_go_on_below(
    servers: RedisServers,
) -> None:
    server = servers.start(maxmemory="40mb", maxmemory_policy="noeviction")
    async with opened(server.url) as store:
        await until(lambda: store.describe().servers[0].writes == "yes", what="its memory")
        outcomes = [await put(store, number, size=1 << 20) for number in range(40)]
        stored = outcomes.count(STORED)
        assert outcomes == [STORED] * stored + [Refused(RefuseReason.FULL)] * (40 - stored)
        assert 15 < stored < 30
        assert int(server.info("memory")["used_memory"]) < 36 << 20, "8 MiB of 40 stay free, or nearly"
        assert breaker(store) == "closed"
        assert store.describe().servers[0].writes == "full"
        assert store.statistics()["store_refused_full"] == 40 - stored
        assert await store.remove([name(1)], deadline_ns=within(5.0)) == 1, "what is there is there"
        server.client.flushall()
        await until(lambda: store.describe().servers[0].writes == "yes", what="room")
        assert await put(store, 1) is STORED


@pytest.mark.asyncio
async def test_a_server_that_refuses_for_want_of_memory_is_full_and_not_down(servers: RedisServers) -> None:
    server = servers.start(maxmemory="1mb", maxmemory_policy="volatile-lru")
    async with opened(server.url) as store:
        await until(lambda: store.describe().servers[0].writes == "yes", what="its memory")
        server.config(maxmemory="1000", maxmemory_policy="noeviction")
        assert await put(store, 1) == Refused(RefuseReason.FULL)
        assert store.describe().servers[0].writes == "full"
        assert await load(store, 1) is MissReason.ABSENT
        assert (breaker(store), store.statistics()["breaker_opened"]) == ("closed", 0)


@pytest.mark.asyncio
async def test_a_server_that_may_evict_everything_takes_pages_unless_the_log_is_there(
    servers: RedisServers,
) -> None:
    server = servers.start(maxmemory="16mb", maxmemory_policy="allkeys-lru")
    for holds_log, expected in ((False, STORED), (True, Refused(RefuseReason.FULL))):
        async with opened(server.url, holds_log=holds_log) as store:
            await until(lambda store=store: store.describe().servers[0].writes != "unknown")  # type: ignore[misc]
            outcomes = [await put(store, number, size=1 << 20) for number in range(20)]
            assert outcomes[-1] == expected


@pytest.mark.asyncio
async def test_uploads_that_stall_end_at_their_deadline(shared_redis: RedisServer) -> None:
    with FaultRelay(("127.0.0.1", shared_redis.port)) as relay:
        async with opened(relay.url) as store:
            await store_pages(store, range(1))
            with relay.stalled(TO_SERVER):
                size = 8 << 20
                page, data = describe(9, size=size), payload(9, size=size)
                end, took = await timed(
                    lambda: store.store(page, data, ttl_s=60, deadline_ns=within(DEADLINE_S))
                )
                assert end in (Refused(RefuseReason.DEADLINE), Refused(RefuseReason.UNREACHABLE))
                assert took <= at_most(DEADLINE_S)
            await working(store)
