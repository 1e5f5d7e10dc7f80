"""Cases that happened to users of caches in Redis, on two real nodes that share pages through it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from kv_types.ids import KEY_BYTES
from kv_types.outcomes import MissReason, Stored
from tests.fleet.two_nodes import Fetched, TwoNodes, fetch, split, two_nodes
from tests.support.fault_relay import TO_CLIENT, TO_SERVER
from tests.support.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def nodes_of_module() -> Iterator[TwoNodes]:
    with two_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(nodes_of_module: TwoNodes) -> TwoNodes:
    """Both nodes, sharing when a test begins."""
    with nodes_of_module.stations() as (first, second):
        nodes_of_module.heals(first, second)
    return nodes_of_module


def test_what_one_node_computed_comes_to_the_other_once(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        keys = nodes.share(first, 12)
        assert nodes.records().lives_s(keys[:KEY_BYTES]) > 0
        got = fetch(second, keys, deadline_s=2.0)
        assert (got.l2, got.l3, got.reason) == (0, 12, MissReason.NONE)
        again = fetch(second, keys, deadline_s=2.0)
        assert (again.l2, again.l3) == (12, 0)
        longer = nodes.fresh_chain(first, 3)
        assert fetch(second, longer, deadline_s=0.5).reason is MissReason.ABSENT


def test_c09_any_part_that_is_deleted_or_evicted_is_a_miss_of_whole_pages(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        records = nodes.records()
        for hole in (0, 5, 11):
            keys = nodes.share(first, 12)
            nodes.pages.client.delete(records.name(split(keys)[hole]))
            got = fetch(second, keys, deadline_s=2.0)
            assert (got.pages, got.reason) == (hole, MissReason.ABSENT)
        overload(nodes, policy="allkeys-lru")
        overload(nodes, policy="volatile-ttl")


def overload(nodes: TwoNodes, *, policy: str) -> None:
    """Ten times as much as the server may keep is stored, and fetched: whole pages or none."""
    with nodes.stations() as (first, second):
        nodes.pages.client.flushall()
        room = 3 << 20
        with nodes.pages.squeezed(policy=policy, left_bytes=room):
            chains = [nodes.fresh_chain(first, 8) for _ in range(10 * room // (8 * first.page_bytes))]
            got: list[Fetched] = []
            for number, keys in enumerate(chains):
                assert all(isinstance(one, Stored) for one in first.compute(keys))
                got.append(fetch(second, chains[number // 2], deadline_s=0.5))
            wait_until(lambda: nodes.pages.info("stats")["evicted_keys"] > 0, what="evictions")
            last = nodes.share(first, 8)
            assert fetch(second, last, deadline_s=2.0).pages == 8
            assert {one.reason for one in got} <= {MissReason.NONE, MissReason.ABSENT, MissReason.DEADLINE}
            assert nodes.records().check_all() * first.page_bytes < 3 * room, (
                "no parts are left of what was dropped"
            )


def test_c17_look_ups_that_come_too_late_leave_nothing_to_the_next(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        chains = [nodes.share(first, 1 + number % 3) for number in range(40)]
        fetch(
            second, nodes.fresh_chain(first, 1), deadline_s=1.0
        )  # what is done once, at the first call, is done
        nodes.relay.set(TO_CLIENT, delay_s=0.1)
        deadlines_s = [
            1.0 if number % 50 == 0 else (0.001, 0.003, 0.015)[number % 3] for number in range(1000)
        ]
        got = [
            fetch(second, chains[number % len(chains)], deadline_s=deadline_s)
            for number, deadline_s in enumerate(deadlines_s)
        ]
        nodes.relay.set(TO_CLIENT, delay_s=0.0)
        late = {MissReason.DEADLINE, MissReason.L3_UNAVAILABLE, MissReason.OVERLOADED}
        assert {one.reason for one in got if not one.pages} <= late
        assert sum(one.reason is MissReason.DEADLINE for one in got) > 100
        wait_until(
            lambda: all(fetch(second, keys, deadline_s=1.0).reason is MissReason.NONE for keys in chains),
            timeout_s=15.0, what="all chains on the other node",
        )  # fmt: skip


def test_c18_a_stopped_redis_costs_a_deadline_then_nothing_and_heals(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        chains = [nodes.share(first, 4) for _ in range(12)]
        nodes.pages.freeze()
        try:
            slow = [fetch(second, keys, deadline_s=0.2) for keys in chains]
            assert not any(one.pages for one in slow)
            reasons = {one.reason for one in slow}
            assert reasons <= {MissReason.DEADLINE, MissReason.L3_UNAVAILABLE}
            wait_until(
                lambda: fetch(second, chains[0], deadline_s=0.2).reason is MissReason.L3_UNAVAILABLE,
                what="the breaker to open",
            )
            shed = [fetch(second, chains[0], deadline_s=2.0) for _ in range(30)]
            took_s = statistics.median(one.took_s for one in shed)
            assert took_s < 1.0, f"{took_s:.3f} s: an open breaker answers at once"
            stored = first.compute(nodes.fresh_chain(first, 4))
            assert all(isinstance(one, Stored) for one in stored), "what is local goes on"
        finally:
            nodes.pages.thaw()
        wait_until(
            lambda: all(fetch(second, keys, deadline_s=0.5).reason is MissReason.NONE for keys in chains),
            timeout_s=15.0, what="the breaker to close",
        )  # fmt: skip
        nodes.heals(first, second)


def test_c34_a_stopped_then_killed_redis_keeps_nobody_waiting(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        keys = nodes.share(first, 6)
        nodes.pages.freeze()
        for _ in range(5):
            assert fetch(second, keys, deadline_s=0.1).pages == 0
        nodes.pages.kill()
        for _ in range(5):
            got = fetch(second, keys, deadline_s=0.1)
            assert (got.pages, got.reason in (MissReason.DEADLINE, MissReason.L3_UNAVAILABLE)) == (0, True)
        assert first.served(keys) == (6, 6), "what is in memory is served as ever"
        nodes.pages.start()
        nodes.heals(first, second)
        with nodes.stations() as (_, other):
            assert fetch(other, nodes.share(first, 3), deadline_s=2.0).l3 == 3


def test_a_redis_that_hangs_up_trickles_or_refuses_is_no_ones_burden(nodes: TwoNodes) -> None:
    with nodes.stations() as (first, second):
        relay = nodes.relay
        for rules in ({"cut_after": 40_000}, {"bytes_per_s": 20_000.0}, {"hold_after": 30_000}):
            keys = nodes.share(first, 6)
            relay.set(TO_CLIENT, **rules)
            relay.set(TO_SERVER, **rules)
            for _ in range(4):
                fetch(second, keys, deadline_s=0.1)
                first.compute(nodes.fresh_chain(first, 2))
            for direction in (TO_CLIENT, TO_SERVER):
                relay.set(direction, cut_after=None, bytes_per_s=None, hold_after=None)
            nodes.heals(first, second)
        relay.refuse()
        relay.cut_all()
        for _ in range(4):
            fetch(second, nodes.fresh_chain(first, 3), deadline_s=0.1)
        relay.refuse(False)
        nodes.heals(first, second)
