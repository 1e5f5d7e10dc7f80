"""The administrator's verbs in a fleet of two sidecars on a real Redis: silence, replicas, flushes, a log that is away."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kv_types.outcomes import STORED
from kv_wire.channel import open_channel
from tests.kv_types.samples import namespace
from tests.support.daemon import Daemon
from tests.support.node_command import Node
from tests.support.pages_put import Chain
from tests.support.polling import wait_until
from tests.support.processes import wait_until_stopped
from tests.support.redis_servers import RedisServer, RedisServers, redis_servers
from tests.support.remote_store import RemoteStore

FLAGS = ("--freshness-lease", "1500ms", "--pause-bound", "300ms", "--copy-kernel", "memcpy")
"""Short, for silence is waited for, and long against what a loaded machine may hold a sidecar up."""
OURS = Chain(namespace(model="ours", page_tokens=2), (1, 2, 3, 4))
OTHER = Chain(namespace(model="other", page_tokens=2), (5, 6))


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="skv-") as scratch:
        yield Path(scratch)


@dataclass(frozen=True, slots=True)
class Fleet:
    servers: RedisServers
    redis: RedisServer
    one: Node
    two: Node

    def fill(self) -> None:
        """Pages on both nodes; waits until both serve."""
        for node in (self.one, self.two):
            serving(node)
            for chain in (OURS, OTHER):
                outcomes = chain.put(node.store)
                assert set(outcomes) == {STORED}, outcomes
                assert chain.resident(node.store) == len(outcomes)

    def member(self, node: Node) -> str:
        (own,) = (member["id"] for member in node.run("members")["members"] if member["is_self"])
        return str(own)


def serving(node: Node) -> None:
    wait_until(lambda: node.store.status().freshness_remaining_ms > 0, what="a confirmed log")


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        servers = stack.enter_context(redis_servers())
        redis = servers.start()
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skv-")))
        daemons = [stack.enter_context(sidecar(scratch / name, redis)) for name in ("a", "b")]
        nodes = [
            Node(daemon.wait_ready(), RemoteStore(stack.enter_context(open_channel(daemon.grpc_address))))
            for daemon in daemons
        ]
        yield Fleet(servers, redis, *nodes)


def sidecar(directory: Path, redis: RedisServer) -> Daemon:
    return Daemon(directory, "--l3-url", redis.url, *FLAGS)


@pytest.fixture(autouse=True)
def empty(fleet: Fleet) -> None:
    """Every test begins with a fleet that agrees, and without pages."""
    assert fleet.one.run("invalidate", "--all", "--yes", "--wait=drained")["confirmed"]
    assert fleet.one.pages() == fleet.two.pages() == 0


def test_c15_a_fence_holds_on_every_node_and_leaves_what_does_not_match(fleet: Fleet) -> None:
    fleet.fill()
    told = fleet.one.run("invalidate", "--model", "ours", "--yes")
    assert [chain.resident(node.store) for node in (fleet.one, fleet.two) for chain in (OURS, OTHER)] == [
        0,
        1,
        0,
        1,
    ]
    assert told["gone"] == []
    assert fleet.two.run("invalidate", "--all", "--yes", "--wait=drained")["confirmed"]
    assert fleet.one.log() == fleet.two.log()
    namespaces = {one["model"] for one in fleet.two.run("namespaces")["namespaces"]}
    assert {"ours", "other"} <= namespaces
    fleet.fill()


def test_a_silent_node_is_given_up_by_hidden_and_never_by_drained(fleet: Fleet) -> None:
    fleet.fill()
    silent = fleet.member(fleet.two)
    fleet.two.daemon.send(signal.SIGSTOP)
    wait_until_stopped(fleet.two.daemon.pid)
    try:
        told = fleet.one.run("invalidate", "--model", "ours", "--yes")
        assert [member["id"] for member in told["gone"]] == [silent]
        drained = fleet.one.run(
            "invalidate", "--all", "--yes", "--wait=drained", "--timeout", "300ms", code=3
        )
        assert [member["id"] for member in drained["missing"]] == [silent]
        assert drained["reason"] == "members"
    finally:
        fleet.two.daemon.send(signal.SIGCONT)
    assert fleet.one.run("invalidate", "--all", "--yes", "--wait=drained")["confirmed"]
    assert OURS.resident(fleet.two.store) == 0


def test_c38_what_was_killed_holds_up_drained_until_somebody_says_that_nothing_is_left(
    fleet: Fleet, short: Path
) -> None:
    with sidecar(short / "c", fleet.redis) as third:
        third.wait_ready()
        before = {member["id"] for member in fleet.one.run("members")["members"]}
        dead = before - {fleet.member(fleet.one), fleet.member(fleet.two)}
        third.kill()
        told = fleet.one.run("invalidate", "--all", "--yes")
        assert {member["id"] for member in told["gone"]} == dead
        drained = ("invalidate", "--all", "--yes", "--wait=drained")
        missed = fleet.one.run(*drained, "--timeout", "300ms", code=3)
        assert {member["id"] for member in missed["missing"]} == dead
    with sidecar(short / "c", fleet.redis) as next_life:
        next_life.wait_ready()
        assert fleet.one.run(*drained, "--timeout", "300ms", code=3)["missing"], (
            "another life speaks for itself alone"
        )
        assert fleet.two.run("members", "--forget-gone") == {
            "forgotten": sorted(dead),
            "reasons": {},
            "stayed": [],
        }
        assert fleet.one.run(*drained)["confirmed"]


def test_the_configured_replicas_must_answer(fleet: Fleet) -> None:
    fleet.fill()
    assert "0 of" in fleet.one.fails("replicas", "set", "1", code=2)
    assert fleet.one.run("members")["replicas"] == 0
    replica = fleet.servers.start_replica(fleet.redis)
    serving(fleet.one)
    fleet.one.run("replicas", "set", "1")
    assert fleet.one.run("invalidate", "--all", "--yes")["confirmed"]
    replica.kill()
    told = fleet.one.run("invalidate", "--all", "--yes", "--timeout", "1s", code=3)
    assert told["reason"] == "replication"
    assert "replication not confirmed" in told["why"]
    assert fleet.one.run("members")["confirmed"] is False
    fleet.one.run("replicas", "set", "0")
    again = fleet.one.run("invalidate", "--all", "--yes", "--request-id", told["request_id"])
    assert again["confirmed"]


def test_a_flushed_redis_is_a_new_log_that_fences_wait_for(fleet: Fleet) -> None:
    fleet.fill()
    before = fleet.one.run("invalidate", "--model", "ours", "--yes")["appended"][0]
    fleet.redis.client.flushall()
    told = fleet.one.run("invalidate", "--model", "ours", "--yes")
    assert told["confirmed"]
    assert told["appended"][0]["incarnation"] != before["incarnation"]
    assert OTHER.resident(fleet.two.store) == 0, "what a lost log may have selected is gone"
    fleet.fill()


def test_a_log_that_is_away_before_anything_was_appended_is_exit_1(fleet: Fleet) -> None:
    before = fleet.one.log()
    fleet.redis.freeze()
    try:
        said = fleet.one.fails("invalidate", "--all", "--yes", "--timeout", "500ms", code=1)
    finally:
        fleet.redis.thaw()
    assert "nothing was appended" in said
    wait_until(lambda: fleet.one.run("members")["confirmed"], what="the log")
    assert fleet.one.log() == before


def test_a_log_is_waited_for_as_long_as_the_setting_says(short: Path) -> None:
    flags = (
        "--log-deadline",
        "5s",
        "--freshness-lease",
        "20s",
        "--pause-bound",
        "0",
        "--copy-kernel",
        "memcpy",
    )
    with (
        redis_servers() as servers,
        Daemon(short / "a", "--l3-url", (redis := servers.start()).url, *flags) as daemon,
    ):
        daemon.wait_ready()
        with open_channel(daemon.grpc_address) as channel:
            node = Node(daemon, RemoteStore(channel))
            serving(node)
            for words in (("members",), ("invalidate", "--all", "--yes", "--no-wait")):
                redis.client.client_pause(1500)
                node.run(*words)


def test_a_log_that_dies_during_the_wait_is_exit_3_and_the_request_can_be_repeated(fleet: Fleet) -> None:
    before = len(fleet.one.log())
    fleet.two.daemon.send(signal.SIGSTOP)  # waited for: time enough to take the log away
    wait_until_stopped(fleet.two.daemon.pid)

    def take_the_log_away() -> None:
        stream = "stratakv:{default}:log:stream"
        wait_until(lambda: int(fleet.redis.client.xlen(stream)) > before, what="the record")
        fleet.redis.freeze()

    taking = threading.Thread(target=take_the_log_away)
    taking.start()
    try:
        told = fleet.one.run("invalidate", "--all", "--yes", "--timeout", "1s", code=3)
    finally:
        taking.join()
        fleet.redis.thaw()
        fleet.two.daemon.send(signal.SIGCONT)
    assert told["reason"] == "log"
    assert len(told["appended"]) == 1
    assert fleet.one.run("invalidate", "--all", "--yes", "--request-id", told["request_id"])["confirmed"]
    assert len(fleet.one.log()) == before + 1
