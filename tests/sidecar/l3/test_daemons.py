"""Real sidecars that share pages through real Redis servers, as callers over gRPC see it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from urllib.request import urlopen

import pytest

from kv_types.ids import PageKey
from kv_types.outcomes import Hit, LookUpOutcome, Miss, MissReason, Tier
from kv_types.page_keys import pack_keys
from kv_wire.gen import cache_pb2
from tests.support.daemon import run_command
from tests.support.polling import wait_until
from tests.support.redis_servers import RedisServers, redis_servers
from tests.support.sharing_nodes import IMPATIENT, LOAD_S, SharingNode, sharing_nodes
from tests.support.spaces import fresh_chain

HEALS_S = 40.0


@pytest.fixture
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


@pytest.fixture(scope="module")
def pair() -> Iterator[list[SharingNode]]:
    """A writer and a reader on one server that nobody harms."""
    with redis_servers() as made:
        server = made.start()
        with sharing_nodes(2, server.url, server) as nodes:
            yield nodes


def timed_get(node: SharingNode, keys: Sequence[PageKey]) -> tuple[LookUpOutcome, float]:
    began = time.monotonic()
    outcome = node.get(keys)
    return outcome, time.monotonic() - began


def test_c29_ten_look_ups_over_all_tiers_are_accounted_for_exactly(pair: list[SharingNode]) -> None:
    writer, reader = pair
    before = reader.store.statistics()
    first, second, absent = fresh_chain(6), fresh_chain(8), fresh_chain(4)
    writer.put(first)
    writer.put(second)
    writer.wait_idle()
    reader.put(second[:3])
    reader.wait_idle()
    script = [
        # chain, pages that the caller has, then those of L2, of L3, and missed
        (first[:4], 0, 0, 4, 0),
        (first, 2, 2, 2, 0),
        (first, 0, 6, 0, 0),
        (second, 0, 3, 5, 0),
        (second, 8 - 1, 1, 0, 0),
        (first + absent[:2], 0, 6, 0, 2),
        (absent, 0, 0, 0, 4),
        (absent[:1], 0, 0, 0, 1),
        (second[:5] + absent[1:2], 1, 4, 0, 1),
        (second, 4, 4, 0, 0),
    ]
    for chain, start, l2, l3, missed in script:
        outcome = reader.get(chain, start=start)
        assert (outcome.pages if isinstance(outcome, Hit) else 0) == l2 + l3
        assert len(chain) == start + l2 + l3 + missed
    after = reader.store.statistics()
    told = {name: count - before.get(name, 0) for name, count in after.items()}
    assert told["requested_pages"] == sum(len(chain) for chain, *_ in script)
    assert told["l1_pages"] == sum(start for _, start, *_ in script)
    assert told["l2_pages"] == sum(l2 for _, _, l2, _, _ in script)
    assert told["l3_pages"] == sum(l3 for _, _, _, l3, _ in script)
    assert told["missed_pages_absent"] == sum(missed for *_, missed in script)


def test_a_prefetch_brings_what_the_node_lacks_and_says_what_is_pending(pair: list[SharingNode]) -> None:
    writer, reader = pair
    keys = fresh_chain(10)
    writer.put(keys)
    writer.wait_idle()
    reader.put(keys[:4])
    request = cache_pb2.LookUpRequest(
        namespace_id=reader.space.id, rows=[cache_pb2.Chain(keys=pack_keys(keys))], prefetch=True
    )
    (row,) = reader.store.calls.look_up(request, timeout=10).rows
    assert (row.pages, row.pending_pages) == (4, 6)
    assert [(part.tier, part.pages) for part in row.tiers] == [(2, 4)]

    def staged() -> bool:
        return reader.store.look_up(reader.space.id, keys) == Hit(10, Tier.L2)

    wait_until(staged, what="the prefetch")
    (again,) = reader.store.calls.look_up(request, timeout=10).rows
    assert (again.pages, again.pending_pages) == (10, 0)
    assert reader.get(keys) == Hit(10, Tier.L2)


def test_c18_c34_a_stopped_server_costs_no_look_up_more_than_its_time_and_the_breaker_closes_again(
    servers: RedisServers,
) -> None:
    server, log = servers.start(), servers.start()
    with sharing_nodes(2, server.url, log, patience=IMPATIENT) as (writer, reader):
        chains = [fresh_chain(3) for _ in range(20)]
        for keys in chains:
            writer.put(keys)
        writer.wait_stored(60)
        assert reader.get(chains[0]) == Hit(3, Tier.L2)
        reader.store.status()
        server.freeze()
        try:
            most = LOAD_S + max(0.2 * LOAD_S, 0.02)
            slow = 0
            for keys in chains[1:15]:
                outcome, took_s = timed_get(reader, keys)
                assert isinstance(outcome, Miss)
                assert outcome.reason in (MissReason.DEADLINE, MissReason.L3_UNAVAILABLE)
                assert took_s < most + 0.25, "0.25 s for a busy machine, two processes and gRPC"
                slow += took_s > LOAD_S / 2
            assert slow < 10, "once the breaker is open it answers at once"
            assert {one.breaker for one in reader.l3().servers} & {"open", "half_open"}
            assert reader.get(chains[0]) == Hit(3, Tier.L2), "what is here is served"
            wait_until(
                lambda: "a server of L3 is given up for a while" in reader.daemon.output,
                what="a line in the log",
            )
        finally:
            server.thaw()
        wait_until(
            lambda: reader.get(chains[15]) == Hit(3, Tier.L2),
            timeout_s=HEALS_S,
            what="L3 after the server goes on",
        )
        assert [one.breaker for one in reader.l3().servers] == ["closed"]


def test_c34_a_killed_server_keeps_nobody_waiting_and_all_heals_by_itself(servers: RedisServers) -> None:
    server, log = servers.start(), servers.start()
    with sharing_nodes(2, server.url, log, patience=IMPATIENT) as (writer, reader):
        keys = fresh_chain(5)
        writer.put(keys)
        writer.wait_stored(5)
        server.kill()
        outcome, took_s = timed_get(reader, keys)
        assert isinstance(outcome, Miss)
        assert took_s < LOAD_S + 0.35
        other = fresh_chain(4)
        writer.put(other)  # stored here as ever
        server.start()
        wait_until(
            lambda: reader.get(other) == Hit(4, Tier.L2),
            timeout_s=HEALS_S,
            what="pages that waited for the server",
        )
        assert reader.get(keys) == Miss(MissReason.ABSENT), "it came back empty"


def test_a_server_that_is_down_at_start_keeps_nothing_from_starting(servers: RedisServers) -> None:
    server, log = servers.start(), servers.start()
    server.kill()
    with sharing_nodes(1, server.url, log) as (node,):
        keys = fresh_chain(3)
        node.put(keys)
        assert node.get(keys) == Hit(3, Tier.L2)
        status = node.l3()
        assert status.why_off == ""
        assert [one.breaker for one in status.servers] != []
        server.start()
        wait_until(lambda: node.l3().stores.get("stored", 0) == 3, timeout_s=HEALS_S, what="the pages in L3")


def test_c09_whatever_redis_evicts_under_ten_times_its_capacity_whole_pages_miss_and_nothing_fails(
    servers: RedisServers,
) -> None:
    size = 64 * 1024
    server, log = servers.start(), servers.start()
    room = int(server.info("memory")["used_memory"]) + 6 * 1024 * 1024
    server.config(maxmemory_policy="volatile-lru", maxmemory=str(room))
    with sharing_nodes(2, server.url, log, page_bytes=size, arenas={0: "96MiB", 1: "16MiB"}) as (
        writer,
        reader,
    ):
        chains = [fresh_chain(12) for _ in range(80)]  # 60 MiB
        for keys in chains:
            writer.put(keys)
        writer.wait_stored(12 * 80)
        assert server.info("stats")["evicted_keys"] > 500
        server.client.delete(*list(server.client.scan_iter("*:page:*"))[:10])
        hits = 0
        for keys in chains:
            outcome = reader.get(keys)  # checks every byte
            hits += outcome.pages if isinstance(outcome, Hit) else 0
            if isinstance(outcome, Hit) and outcome.pages < 12:
                assert outcome.ended_by is MissReason.ABSENT
            elif not isinstance(outcome, Hit):
                assert outcome == Miss(MissReason.ABSENT)
        assert hits > 0
        told = reader.store.statistics()
        assert told["requested_pages"] == 12 * 80
        assert told["l3_pages"] == hits
        assert told["missed_pages_absent"] == 12 * 80 - hits
        assert reader.l3().records["corrupt"] == 0


def test_what_was_stored_just_before_the_end_is_in_l3_still(servers: RedisServers) -> None:
    server = servers.start()
    with sharing_nodes(2, server.url, server) as (writer, reader):
        keys = fresh_chain(200)
        writer.put(keys)
        assert writer.daemon.stop() == 0
        assert reader.get(keys) == Hit(200, Tier.L2)


def test_status_and_metrics_tell_of_l3(pair: list[SharingNode]) -> None:
    node, _ = pair
    keys = fresh_chain(3)
    node.put(keys)
    node.wait_idle()
    shown = run_command("status", "--runtime-dir", str(node.daemon.runtime_dir)).stdout
    assert "L3, in pages" in shown
    assert "closed" in shown
    address = node.store.status().metrics_address
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "stratakv_l3_enabled 1.0" in text
    assert "stratakv_l3_stored_pages_total " in text
    assert 'stratakv_l3_server_available{server="' in text
