"""Which server has a key: redirections, candidates that take turns, a Cluster's table that is read within bounds."""

from __future__ import annotations

import asyncio
import itertools
from unittest.mock import Mock

import pytest

from cache_l3.address import parse_address, parse_servers
from cache_l3.topology import Candidates, Cluster, open_topology, redirect_target
from tests.support.record_stores import until
from tests.support.scripted_redis import ScriptedRedis, scripted_redis

SOURCE = parse_address("rediss://u:p@h:7?ssl_ca_certs=/c")


@pytest.mark.parametrize(
    ("redirect", "slot", "label"),
    [
        ("MOVED 3999 127.0.0.1:6381", 3999, "rediss://127.0.0.1:6381"),
        ("ASK 0 other:1", 0, "rediss://other:1"),
        ("MOVED 5 :6382", 5, "rediss://h:6382"),
        ("MOVED 16383 2001:db8::1:6379", 16383, "rediss://2001:db8::1:6379"),
    ],
)
def test_redirections_lead_to_a_server_of_the_same_kind(redirect: str, slot: int, label: str) -> None:
    found = redirect_target(redirect, SOURCE)
    assert found is not None
    assert (found[0], found[1].label) == (slot, label)
    assert found[1].options["password"] == "p"
    assert found[1].is_encrypted


@pytest.mark.parametrize(
    "redirect", ["", "MOVED", "MOVED 5", "MOVED x h:1", "MOVED 5 h", "MOVED 5 h:x", "MOVED ¹ h:1", "GO 5 h:1", "MOVED 5 h:1 more"]
)  # fmt: skip
def test_what_is_no_redirection_leads_nowhere(redirect: str) -> None:
    assert redirect_target(redirect, SOURCE) is None


def test_candidates_take_turns_when_the_present_one_is_suspect_and_not_otherwise() -> None:
    servers = parse_servers("redis://a,redis://b,redis://c")
    topology = Candidates(servers)
    a, b, c = servers.addresses
    assert topology.server_of(b"any") == a
    topology.suspect(b)
    assert topology.server_of(b"any") == a
    topology.suspect(a)
    topology.suspect(a)
    assert topology.server_of(b"any") == b
    topology.suspect(b)
    topology.suspect(c)
    assert topology.server_of(b"any") == a
    assert topology.servers() == [a, b, c]


def test_one_candidate_stays_the_one() -> None:
    servers = parse_servers("unix:///s")
    topology = open_topology(servers, on_change=lambda: None)
    topology.suspect(servers.addresses[0])
    assert topology.server_of(b"any") == servers.addresses[0]
    assert topology.known.is_set()


def slots(server: ScriptedRedis, *ranges: tuple[int, int, int]) -> bytes:
    """CLUSTER SLOTS's answer: (first, last, port) of each range."""
    rows = [b"*3\r\n:%d\r\n:%d\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$2\r\nid\r\n" % one for one in ranges]
    return b"*%d\r\n" % len(rows) + b"".join(rows)


@pytest.mark.asyncio
async def test_a_slot_that_nobody_has_yet_is_looked_for_again_soon() -> None:
    """A sidecar may start while its Cluster is being formed; nobody else would ask for the table in the next half minute."""
    async with scripted_redis() as server:
        served = (0, 12_000, server.port)
        server.answer = lambda words: slots(server, served) if words[0] == b"CLUSTER" else None
        cluster = Cluster(parse_servers(f"redis+cluster://127.0.0.1:{server.port}"), on_change=lambda: None)
        await cluster.start()
        await cluster.known.wait()
        assert cluster.server_of(b"foo") is None, "its slot is 12182"
        served = (0, 16_383, server.port)
        await until(lambda: cluster.server_of(b"foo") is not None, what="the slot's server")
        await cluster.close()


@pytest.mark.asyncio
async def test_the_table_is_read_at_once_when_asked_for_but_not_more_often_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apart_s = 0.05
    monkeypatch.setattr("cache_l3.topology.L3_REFRESH_S_MIN", apart_s)
    async with scripted_redis() as server:
        server.answer = lambda words: (
            slots(server, (0, 16383, server.port)) if words[0] == b"CLUSTER" else None
        )
        changes: list[float] = []
        loop = asyncio.get_running_loop()
        servers = parse_servers(f"redis+cluster://127.0.0.1:{server.port}")
        topology = Cluster(servers, on_change=lambda: changes.append(loop.time()))
        await topology.start()
        await until(topology.known.is_set, what="the table")
        address = topology.server_of(b"key")
        assert address is not None
        assert address.label == f"redis://127.0.0.1:{server.port}"

        def read_while_suspect() -> bool:
            topology.suspect(address)
            return len(changes) >= 8

        await until(read_while_suspect, what="readings")
        assert all(later - earlier >= 0.9 * apart_s for earlier, later in itertools.pairwise(changes))
        await topology.close()


@pytest.mark.asyncio
async def test_moved_changes_one_slot_and_slots_that_nobody_has_are_nobody_s() -> None:
    async with scripted_redis() as server:
        table = slots(server, (0, 99, server.port), (200, 16383, server.port))
        server.answer = lambda words: table if words[0] == b"CLUSTER" else None
        servers = parse_servers(f"redis+cluster://127.0.0.1:{server.port}")
        topology = Cluster(servers, on_change=lambda: None)
        assert topology.server_of(b"{a}") is None, "nothing is known yet"
        await topology.start()
        await until(topology.known.is_set, what="the table")
        source = servers.addresses[0]
        moved = topology.moved("MOVED 12182 127.0.0.1:77", source)
        assert moved is not None
        assert moved.label == "redis://127.0.0.1:77"
        assert topology.server_of(b"foo") == moved  # slot 12182
        assert topology.server_of(b"bar") != moved  # slot 5061
        assert topology.moved("MOVED 150 127.0.0.1:78", source) is not None, "a slot that the table lacks"
        assert topology.moved("MOVED nonsense", source) is None
        await topology.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply", [b"-ERR This instance has cluster support disabled\r\n", b"*0\r\n", b"?\r\n", b":1\r\n"]
)
async def test_a_table_that_can_not_be_read_is_a_trouble_and_no_table(reply: bytes) -> None:
    async with scripted_redis() as server:
        server.answer = lambda words: reply if words[0] == b"CLUSTER" else None
        topology = Cluster(parse_servers(f"redis+cluster://127.0.0.1:{server.port}"), on_change=lambda: None)
        await topology.start()
        await until(topology.known.is_set, what="the attempt")
        assert topology.server_of(b"key") is None
        assert topology.servers() == []
        assert f"127.0.0.1:{server.port}" in topology.trouble
        assert ("it is no Cluster" in topology.trouble) == (b"cluster support" in reply)
        server.answer = lambda words: (
            slots(server, (0, 16383, server.port)) if words[0] == b"CLUSTER" else None
        )
        await until(
            lambda: topology.server_of(b"key") is not None and not topology.trouble, what="its healing"
        )
        await topology.close()


@pytest.mark.asyncio
async def test_moved_is_followed_though_another_table_comes_at_the_same_time() -> None:
    """The thread that reads the tables puts one in place that lacks the slot, between a look at it and its change."""
    servers = parse_servers("redis+cluster://127.0.0.1:1")
    topology = Cluster(servers, on_change=lambda: None)
    topology._manager = Mock(slots_cache={5: []}, move_slot=Mock(side_effect=KeyError(5)))
    found = topology.moved("MOVED 5 127.0.0.1:2", servers.addresses[0])
    assert found is not None
    assert found.label == "redis://127.0.0.1:2"
    await topology.close()
