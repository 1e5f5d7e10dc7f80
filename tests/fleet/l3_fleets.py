"""Fleets with an L3, faults one after the other, and what must hold when all of it is over and nobody works any more."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import psutil

from kv_types.clock import BoottimeClock
from tests.fleet.faults import Fault
from tests.fleet.fleet import LEASE_S, Fleet, Load, fleet_of
from tests.fleet.purges import Purge
from tests.fleet.purging import purging, wait_s
from tests.support.daemon import read_status
from tests.support.fault_relay import FaultRelay
from tests.support.polling import wait_until
from tests.support.redis_cluster import redis_cluster
from tests.support.redis_servers import RedisServer

DEADLINES_MS = (20.0, 50.0, 250.0)
LOAD = Load(units=(8,), deadlines_ms=DEADLINES_MS, per_s=40.0)
HEAL_S_MAX = 15.0
"""From a fault's end to hits, and to pages of others, on every node: a window to settle, a breaker's pause, a crowded machine."""
OPENED_LATER_MAX = 16
"""What a sidecar may open after it has begun to serve: connections to servers that it did not need until then."""
CONNECTIONS_OF_TESTS = 4
"""What the tests themselves may have open at a server."""

SOAK_S = float(os.environ.get("STRATAKV_SOAK_S", "0"))
"""How long faults go on after each has happened once."""

_CLOCK = BoottimeClock()


@contextlib.contextmanager
def fleet_on_a_pair(load: Load = LOAD, **changed: Any) -> Iterator[Fleet]:
    """Log and pages on one server with one replica; the sidecars know both."""
    with fleet_of(load=load, l3=lambda fleet: f"{fleet.primary.url},{fleet.replica.url}", **changed) as fleet:
        yield fleet


@contextlib.contextmanager
def fleet_on_a_cluster(load: Load = LOAD, **changed: Any) -> Iterator[Fleet]:
    """Pages, compressed, on three primaries with a replica each; the log on a pair of its own."""
    flags = ("--l3-codec", "zstd")
    with (
        redis_cluster() as cluster,
        fleet_of(load=load, l3=lambda _: cluster.urls, flags=flags, **changed) as fleet,
    ):
        fleet.cluster = cluster
        yield fleet


@contextlib.contextmanager
def fleet_on_one_cluster(load: Load = LOAD, **changed: Any) -> Iterator[Fleet]:
    """Pages and the log on three primaries with a replica each."""
    with redis_cluster() as cluster:

        def urls(_: Fleet) -> str:
            return cluster.urls

        with fleet_of(load=load, l3=urls, log=urls, **changed) as fleet:
            fleet.cluster = cluster
            yield fleet


@contextlib.contextmanager
def fleet_on_a_line(load: Load = LOAD, **changed: Any) -> Iterator[Fleet]:
    """Pages on a server of their own, at the end of a line that can be bad."""
    with contextlib.ExitStack() as held:

        def url(fleet: Fleet) -> str:
            pages = fleet.servers.start(maxmemory=str(64 << 20), maxmemory_policy="allkeys-lru")
            fleet.line = held.enter_context(FaultRelay(("127.0.0.1", pages.port)))
            return fleet.line.url

        yield held.enter_context(fleet_of(load=load, l3=url, **changed))


def heal(fleet: Fleet, fault: str) -> None:
    """Nobody is restarted: hits come back, pages come from other nodes, and invalidations are confirmed again."""
    local_s = fleet.await_hits(timeout_s=HEAL_S_MAX)
    shared_s = fleet.await_l3_hits(timeout_s=HEAL_S_MAX)
    done = fleet.purge(Purge(tenant=0, chain=0))
    assert done.is_confirmed, f"after {fault}: {done}"
    print(f"{fault}: hits everywhere {local_s:.2f} s after its end, pages of others {shared_s:.2f} s later")


def suffer(fleet: Fleet, of_l3: Sequence[Fault], of_nodes: Sequence[Fault]) -> None:
    """Each fault of L3 once, half of them while a node has one too, and more for STRATAKV_SOAK_S; the seed is printed."""
    seed = int(os.environ.get("STRATAKV_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"STRATAKV_SOAK_SEED={seed}")
    draw = fleet.draw = random.Random(seed)
    end_ns = _CLOCK.now_ns() + int(SOAK_S * 1e9)
    deck = draw.sample(of_l3, len(of_l3))
    with purging(fleet, timeout_s=2.0, seed=seed):
        while deck or _CLOCK.now_ns() < end_ns:
            fault = deck.pop() if deck else draw.choice(of_l3)
            other = draw.choice(of_nodes) if draw.random() < 0.5 else None
            with fault(fleet):
                wait_s(draw.random() * LEASE_S)
                if other is not None:
                    with other(fleet):
                        wait_s(draw.random() * LEASE_S)
            heal(fleet, " and ".join(one.__name__ for one in (fault, other) if one is not None))


def status_of(fleet: Fleet, number: int) -> dict[str, Any]:
    """What a sidecar says of itself."""
    return read_status(fleet.sidecars[number].runtime)


def wind_up(fleet: Fleet, *, never_killed: Sequence[int]) -> None:
    """End all workers, then all sidecars: nothing may be left of either, and what was counted agrees exactly.

    `never_killed`: sidecars that lived all the time, as did their workers; the counts of a life that was killed are lost.
    """
    for worker in fleet.workers:
        assert worker.stop() == 0, worker.output()
    for number in range(len(fleet.sidecars)):
        wait_until(partial(_is_idle, fleet, number), timeout_s=20.0, what=f"sidecar {number} to be idle")
    opened = fleet.descriptors()
    for number in never_killed:
        _compare_counts(fleet, number)
        assert opened[number] <= fleet.descriptors_at_first[number] + OPENED_LATER_MAX, (
            opened,
            fleet.descriptors_at_first,
        )
    servers = [*fleet.servers.running, *(fleet.cluster.nodes if fleet.cluster is not None else ())]
    children = [child for one in fleet.sidecars for child in psutil.Process(one.pid).children(recursive=True)]
    for sidecar in fleet.sidecars:
        assert sidecar.terminate() == 0, sidecar.output()[-3000:]
    assert [child for child in children if child.is_running()] == []
    for server in servers:
        wait_until(partial(_is_left_alone, server), what="every connection to end")


def _is_left_alone(server: RedisServer) -> bool:
    """Whether nobody but the tests, and replicas, has connections to it."""
    told = server.info("clients")
    return int(told["connected_clients"]) <= CONNECTIONS_OF_TESTS


def _is_idle(fleet: Fleet, number: int) -> bool:
    arena = status_of(fleet, number)["arena"]
    return all(arena[name] == 0 for name in _HELD) and arena["clients_attached"] == 1


def _compare_counts(fleet: Fleet, number: int) -> None:
    """What a sidecar counted is what its workers did, page for page."""
    status = status_of(fleet, number)
    counted = {name: sum(int(one[name]) for one in status["namespaces"]) for name in _COUNTED}
    missed = sum(sum(map(int, one["missed_pages"].values())) for one in status["namespaces"])
    found = counted["l1_pages"] + counted["l2_pages"] + counted["l3_pages"]
    assert counted["requested_pages"] == found + missed, status["namespaces"]
    names = {worker.name for worker in fleet.workers if worker.sidecar == number}
    accounts = [account for account in fleet.accounts() if account.worker in names]
    for name in ("l2_pages", "l3_pages"):
        of_workers = sum(account.client[name] for account in accounts)
        assert counted[name] == of_workers, (
            f"{name}: sidecar {number} has {counted[name]}, its workers {of_workers}"
        )
    assert counted["l3_pages"] > 0, "nothing came from L3"


_HELD = (
    "leases", "leased_bytes", "reservations", "reserved_bytes", "entries_reserved", "entries_quarantined",
    "entries_hidden_leased", "clients_orphaned",
)  # fmt: skip
_COUNTED = ("requested_pages", "l1_pages", "l2_pages", "l3_pages")
