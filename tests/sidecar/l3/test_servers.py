"""Kinds of servers that sidecars can share pages through, and ends of sidecars whose server says nothing."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kv_types.outcomes import Hit, Tier
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_guard import Certificates, Guard
from tests.support.redis_servers import RedisServers, redis_servers
from tests.support.sharing_nodes import IMPATIENT, sharing_nodes
from tests.support.spaces import fresh_chain

DOCUMENT = Path(__file__).parents[3] / "docs" / "l3.md"
PAGE_BYTES = 64 * 1024
PAGES = 24


@pytest.fixture
def servers() -> Iterator[RedisServers]:
    with redis_servers() as made:
        yield made


def check_sharing(l3_url: str, servers: RedisServers, *flags: str) -> None:
    """What one node stores another loads, and writes nothing that is there."""
    with sharing_nodes(2, l3_url, servers.start(), *flags, page_bytes=PAGE_BYTES) as (writer, reader):
        keys = fresh_chain(PAGES)
        writer.put(keys)
        writer.wait_stored(PAGES)
        assert reader.get(keys) == Hit(PAGES, Tier.L2)
        assert reader.store.statistics()["l3_pages"] == PAGES
        for node in (writer, reader):
            told = node.l3()
            assert {server.breaker for server in told.servers} == {"closed"}
            assert told.records["corrupt"] == 0
            assert not told.trouble


def test_over_tls_with_a_user_who_may_do_what_the_document_says(
    servers: RedisServers, tmp_path: Path
) -> None:
    rule = re.search(r"`ACL SETUSER stratakv on >… (.*?)`", DOCUMENT.read_text(encoding="utf-8"))
    assert rule is not None
    guard = Guard(certificates=Certificates.make(tmp_path / "tls"), user="stratakv", may=rule[1])
    server = servers.start(guard=guard)
    check_sharing(server.tcp_url, servers)


def test_over_tcp_compressed(servers: RedisServers) -> None:
    check_sharing(servers.start().tcp_url, servers, "--l3-codec", "zstd")


def test_on_a_cluster_whose_pages_lie_everywhere(servers: RedisServers) -> None:
    with redis_cluster(replicas=0) as cluster:
        first, *rest = (f"127.0.0.1:{node.port}" for node in cluster.primaries)
        check_sharing(f"redis+cluster://{','.join([first, *rest])}", servers)
        assert all(node.client.dbsize() for node in cluster.primaries)


def test_a_sidecar_ends_in_time_though_its_server_hangs(servers: RedisServers) -> None:
    server, log = servers.start(), servers.start()
    with sharing_nodes(1, server.url, log, "--drain-time", "2s", patience=IMPATIENT) as (node,):
        server.freeze()
        try:
            node.put(fresh_chain(100))
            began = time.monotonic()
            node.daemon.send(signal.SIGTERM)
            assert node.daemon.wait_end() == 0
            assert time.monotonic() - began < 10
            assert node.daemon.line("pages were not stored in L3 before the end")["pages"] > 0
        finally:
            server.thaw()
