"""What can happen to the servers that hold a fleet's pages: faults that begin and end with a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from invalidation.redis.script import script_keys
from tests.fleet.faults import (
    Fault,
    old_dump_loaded,
    redis_flushed,
    redis_full,
    redis_killed,
    redis_stopped,
    replica_stopped,
    roles_swapped,
)
from tests.fleet.fleet import Fleet
from tests.support.fault_relay import TO_CLIENT, TO_SERVER, Direction, FaultRelay
from tests.support.redis_cluster import SLOTS, ClusterNode, RedisCluster, SlotMove, slot_of

_LEFT_BYTES = 2 << 20
_SLOTS_AT_ONCE = 6


@contextlib.contextmanager
def pages_evicted(fleet: Fleet) -> Iterator[None]:
    """Little memory is left; the server drops pages, which have a time to live, and keeps the log, which has none."""
    with fleet.primary.squeezed(policy="volatile-lru", left_bytes=_LEFT_BYTES):
        yield


@contextlib.contextmanager
def roles_swapped_at_once(fleet: Fleet) -> Iterator[None]:
    """Replica and primary change places, and no second primary is left behind."""
    fleet.primary.swap_roles(fleet.replica)
    fleet.primary, fleet.replica = fleet.replica, fleet.primary
    yield


FAULTS_OF_A_PAIR: tuple[Fault, ...] = (
    redis_killed, redis_stopped, redis_flushed, old_dump_loaded, redis_full, replica_stopped, roles_swapped,
    pages_evicted, roles_swapped_at_once,
)  # fmt: skip


def _cluster(fleet: Fleet) -> RedisCluster:
    assert fleet.cluster is not None, "this fleet has no cluster"
    return fleet.cluster


def _a_primary(fleet: Fleet) -> ClusterNode:
    return fleet.draw.choice(_cluster(fleet).primaries)


@contextlib.contextmanager
def node_killed(fleet: Fleet) -> Iterator[None]:
    """A primary dies and is replaced; it comes back empty, as a replica."""
    cluster, node = _cluster(fleet), _a_primary(fleet)
    cluster.kill(node)
    cluster.wait_for_failover(node)
    yield
    cluster.restart(node)
    cluster.wait_ok()


@contextlib.contextmanager
def node_restarted(fleet: Fleet) -> Iterator[None]:
    """A primary dies and is back before anybody has noticed, without its pages."""
    cluster, node = _cluster(fleet), _a_primary(fleet)
    cluster.kill(node)
    cluster.restart(node)
    yield
    cluster.wait_ok()


@contextlib.contextmanager
def old_pages_loaded(fleet: Fleet) -> Iterator[None]:
    """A primary comes back with the pages of some time ago; what was invalidated within the block is among them."""
    cluster, node = _cluster(fleet), _a_primary(fleet)
    node.save()
    yield
    node.restart()
    cluster.wait_ok()
    (node.directory / "dump.rdb").unlink(missing_ok=True)


@contextlib.contextmanager
def node_stopped(fleet: Fleet) -> Iterator[None]:
    """A primary stands still for the block, for which the others may or may not replace it."""
    cluster, node = _cluster(fleet), _a_primary(fleet)
    cluster.stop(node)
    yield
    cluster.cont(node)
    cluster.wait_ok()


@contextlib.contextmanager
def node_stopped_and_replaced(fleet: Fleet) -> Iterator[None]:
    """A primary stands still, is replaced, and goes on as if it were one."""
    cluster, node = _cluster(fleet), _a_primary(fleet)
    cluster.stop(node)
    cluster.wait_for_failover(node)
    yield
    cluster.cont(node)
    cluster.wait_ok()


@contextlib.contextmanager
def replica_killed(fleet: Fleet) -> Iterator[None]:
    cluster = _cluster(fleet)
    node = cluster.replicas_of(_a_primary(fleet))[0]
    cluster.kill(node)
    yield
    cluster.restart(node)
    cluster.wait_ok()


@contextlib.contextmanager
def failed_over(fleet: Fleet) -> Iterator[None]:
    """A replica takes its primary's place, in good order or without asking anybody."""
    cluster = _cluster(fleet)
    cluster.failover(_a_primary(fleet), how=fleet.draw.choice(("", "FORCE", "TAKEOVER")))
    yield
    cluster.wait_ok()


@contextlib.contextmanager
def cluster_flushed(fleet: Fleet) -> Iterator[None]:
    _cluster(fleet).flush()
    yield


@contextlib.contextmanager
def cluster_full(fleet: Fleet) -> Iterator[None]:
    """No primary takes one byte more."""
    with contextlib.ExitStack() as held:
        for node in _cluster(fleet).primaries:
            held.enter_context(node.squeezed(policy="noeviction"))
        yield


@contextlib.contextmanager
def cluster_evicts(fleet: Fleet) -> Iterator[None]:
    """Primaries drop what they like to."""
    with contextlib.ExitStack() as held:
        for node in _cluster(fleet).primaries:
            held.enter_context(node.squeezed(policy="allkeys-lru", left_bytes=_LEFT_BYTES))
        yield


@contextlib.contextmanager
def slots_moved(fleet: Fleet) -> Iterator[None]:
    """Slots with pages in them are on their way to another primary for the block, some of their pages there already."""
    cluster = _cluster(fleet)
    slots = sorted({slot_of(key) for key in cluster.all_keys()}) or list(range(SLOTS))
    with contextlib.ExitStack() as held:
        for slot in fleet.draw.sample(slots, min(len(slots), _SLOTS_AT_ONCE)):
            owner = cluster.owner(slot)
            target = fleet.draw.choice([node for node in cluster.primaries if node is not owner])
            move: SlotMove = held.enter_context(cluster.moving(slot, target))
            if fleet.draw.random() < 0.5:
                move.keys()
        yield


@contextlib.contextmanager
def slot_of_the_log_moved(fleet: Fleet) -> Iterator[None]:
    """The log's slot is on its way to another primary for the block, and no call of the log gets through."""
    cluster, slot = _cluster(fleet), slot_of(script_keys("default")[0])
    owner = cluster.owner(slot)
    with cluster.moving(
        slot, fleet.draw.choice([node for node in cluster.primaries if node is not owner])
    ) as move:
        move.keys(fleet.draw.randrange(10))
        yield


FAULTS_OF_A_CLUSTER: tuple[Fault, ...] = (
    node_killed, node_restarted, old_pages_loaded, node_stopped, node_stopped_and_replaced, replica_killed,
    failed_over, cluster_flushed, cluster_full, cluster_evicts, slots_moved,
)  # fmt: skip


FAULTS_OF_A_CLUSTER_WITH_THE_LOG: tuple[Fault, ...] = (
    node_killed, node_restarted, node_stopped, node_stopped_and_replaced, replica_killed, failed_over, cluster_flushed,
    cluster_full, slots_moved, slot_of_the_log_moved,
)  # fmt: skip
"""None that makes a server evict whatever it likes: such a one is refused for the log."""


def _line(fleet: Fleet) -> FaultRelay:
    assert fleet.line is not None, "this fleet has no line"
    return fleet.line


@contextlib.contextmanager
def _bad(fleet: Fleet, directions: Sequence[Direction], **rules: float) -> Iterator[None]:
    """Rules for every connection, and none of them afterwards."""
    line = _line(fleet)
    for direction in directions:
        line.set(direction, **rules)
    yield
    for direction in directions:
        line.set(direction, **dict.fromkeys(rules) | ({"delay_s": 0.0} if "delay_s" in rules else {}))


@contextlib.contextmanager
def line_stalls(fleet: Fleet) -> Iterator[None]:
    """Nothing passes one way, or the other; all of it comes afterwards."""
    with _bad(fleet, [fleet.draw.choice((TO_CLIENT, TO_SERVER))], hold_after=0):
        yield


@contextlib.contextmanager
def line_is_slow(fleet: Fleet) -> Iterator[None]:
    """A page takes longer than any deadline."""
    with _bad(fleet, (TO_CLIENT, TO_SERVER), bytes_per_s=50_000.0):
        yield


@contextlib.contextmanager
def line_is_long(fleet: Fleet) -> Iterator[None]:
    """Answers take longer than the shorter deadlines."""
    with _bad(fleet, (TO_CLIENT,), delay_s=0.1):
        yield


@contextlib.contextmanager
def line_breaks(fleet: Fleet) -> Iterator[None]:
    """Connections end in the middle of whatever passes, again and again."""
    with _bad(fleet, (TO_CLIENT, TO_SERVER), cut_after=fleet.draw.randrange(1000, 200_000)):
        yield


@contextlib.contextmanager
def line_flips(fleet: Fleet) -> Iterator[None]:
    """On every connection, one bit is turned over."""
    _line(fleet).cut_all()
    with _bad(fleet, (TO_CLIENT, TO_SERVER), flip_at=fleet.draw.randrange(500, 100_000)):
        yield
    _line(fleet).cut_all()


@contextlib.contextmanager
def line_is_dead(fleet: Fleet) -> Iterator[None]:
    """Nobody answers."""
    _line(fleet).refuse()
    _line(fleet).cut_all()
    yield
    _line(fleet).refuse(False)


FAULTS_OF_A_LINE: tuple[Fault, ...] = (
    line_stalls, line_is_slow, line_is_long, line_breaks, line_flips, line_is_dead,
)  # fmt: skip
