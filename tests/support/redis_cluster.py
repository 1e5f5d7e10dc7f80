"""A real Redis Cluster for tests: formed in seconds; nodes die, stop and fail over, slots move, memory fills up."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError

from tests.support.polling import wait_until
from tests.support.redis_guard import Guard
from tests.support.redis_servers import RedisServer, free_port

SLOTS = 16384
BUS_PORT_AFTER = 10_000
"""A node's bus listens so many ports above its clients' port."""

_KEYS_A_STEP = 16
_MIGRATE_MS = 5000
_PORT_MAX = 65_535


class ClusterNode(RedisServer):
    """One node; its port is one whose bus port is free too."""

    def __init__(
        self, directory: Path, *, node_timeout_ms: int, binary: Path | None, guard: Guard, **options: str
    ) -> None:
        cluster = {
            "cluster-enabled": "yes", "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout_ms), "cluster-replica-validity-factor": "0",
            "cluster-migration-barrier": "100",
        }  # fmt: skip
        if guard.certificates is not None:
            cluster["tls-cluster"] = "yes"
        super().__init__(directory, binary=binary, guard=guard, **(cluster | options))
        self.id = ""

    def free_port(self) -> int:
        for _ in range(1000):
            port = free_port()
            if port + BUS_PORT_AFTER <= _PORT_MAX and _is_free(port + BUS_PORT_AFTER):
                return port
        raise AssertionError("no two ports at the distance of a cluster's bus are free")

    def cluster(self, *words: object) -> Any:
        """CLUSTER … on this node."""
        return self.command("CLUSTER", *words)

    def facts(self) -> dict[str, str]:
        """CLUSTER INFO."""
        told = self.command("CLUSTER INFO")
        return {str(name): str(value) for name, value in told.items()}

    @property
    def is_primary(self) -> bool:
        """Whether it takes itself for one."""
        return bool(self.info("replication")["role"] == "master")


class SlotMove:
    """A slot on its way from one primary to another: asked at the first, keys that have gone already answer ASK."""

    def __init__(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        self.slot = slot
        self.source = source
        self.target = target

    def begin(self) -> None:
        """IMPORTING there, MIGRATING here: from now on the slot is open."""
        self.target.cluster("SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.cluster("SETSLOT", self.slot, "MIGRATING", self.target.id)

    def keys(self, count: int = _KEYS_A_STEP) -> int:
        """Move up to so many keys; returns how many have moved."""
        keys = self.source.cluster("GETKEYSINSLOT", self.slot, count)
        if keys:
            auth = ("AUTH", self.source.guard.admin_password) if self.source.guard.user is not None else ()
            self.source.command(
                "MIGRATE", "127.0.0.1", self.target.port, "", 0, _MIGRATE_MS, *auth, "KEYS", *keys
            )
        return len(keys)

    def end(self, others: Sequence[ClusterNode] = ()) -> None:
        """Move what is left, and give the slot to its new primary; `others` learn of it at once."""
        while self.keys():
            pass
        for node in (self.target, self.source, *others):
            self.assign(node)

    def assign(self, node: ClusterNode) -> None:
        """Tell a primary that the slot is the target's."""
        node.cluster("SETSLOT", self.slot, "NODE", self.target.id)


class RedisCluster:
    """Nodes of one cluster; those that were its first primaries come first."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self.nodes = tuple(nodes)

    @property
    def urls(self) -> str:
        """A URL that names every node."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return self.nodes[0].guard.url(hosts, kind="+cluster")

    # --- who is who ---

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.is_running]

    @property
    def primaries(self) -> list[ClusterNode]:
        """Running nodes that take themselves for primaries with slots. No node may be stopped."""
        served = {node_id for node_id, *_ in self._map(self.running[0])}
        return [node for node in self.running if node.id in served and node.is_primary]

    def replicas_of(self, primary: ClusterNode) -> list[ClusterNode]:
        """Running replicas of a primary."""
        found = []
        for node in self.running:
            told = node.info("replication")
            if told["role"] == "slave" and int(told["master_port"]) == primary.port:
                found.append(node)
        return found

    def owner(self, slot: int) -> ClusterNode:
        """The primary of a slot, as a running node sees it."""
        owner = self._owner_as_told_by(self.running[0], slot)
        if owner is None:
            raise AssertionError(f"nobody serves slot {slot}")
        return next(node for node in self.nodes if node.id == owner)

    def _owner_as_told_by(self, node: ClusterNode, slot: int) -> str | None:
        return next((owner for owner, first, last, _ in self._map(node) if first <= slot <= last), None)

    def owner_of(self, key: bytes | str) -> ClusterNode:
        """The primary of a key."""
        return self.owner(slot_of(key))

    def _map(self, node: ClusterNode) -> list[tuple[str, int, int, int]]:
        """(primary's id, first slot, last slot, replicas) of each range, as one node sees it."""
        told = node.client.connection_pool.get_connection()
        try:
            told.send_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            ranges = told.read_response()
        finally:
            node.client.connection_pool.release(told)
        return [
            (bytes(primary[2]).decode(), int(first), int(last), len(replicas))
            for first, last, primary, *replicas in ranges
        ]

    # --- verbs ---

    def kill(self, node: ClusterNode) -> None:
        """SIGKILL."""
        node.kill()

    def restart(self, node: ClusterNode) -> None:
        """Start a killed node again, empty; it finds the others by the file that it left."""
        node.start()

    def stop(self, node: ClusterNode) -> None:
        """SIGSTOP."""
        node.freeze()

    def cont(self, node: ClusterNode) -> None:
        """SIGCONT."""
        node.thaw()

    def failover(self, node: ClusterNode, *, how: str = "") -> ClusterNode:
        """Have a replica of this primary take its place, and wait for it; returns the new primary.

        `how`: "" in good order, "FORCE" without the old primary's consent, "TAKEOVER" without anybody's.
        """
        replica = self.replicas_of(node)[0]
        replica.cluster("FAILOVER", *([how] if how else []))
        wait_until(lambda: replica.is_primary, what="a failover")
        return replica

    def wait_for_failover(self, dead: ClusterNode, *, timeout_s: float = 20.0) -> None:
        """Wait until what a killed or stopped primary served has another primary, and every other node says so."""
        others = [node for node in self.nodes if node.is_running and node is not dead]
        wait_until(
            lambda: all(
                dead.id not in {owner for owner, *_ in self._map(node)}
                and node.facts()["cluster_state"] == "ok"
                for node in others
            ),
            timeout_s=timeout_s,
            what="a failover of the cluster's own",
        )

    @contextlib.contextmanager
    def moving(self, slot: int, target: ClusterNode) -> Iterator[SlotMove]:
        """Open a slot's way to another primary for the length of the block; then all of it has moved, and every node knows.

        A message of the former primary, still on its way, takes the slot back where its epoch is the newer one; then each of the
        two may hold the other for the owner, for good. So the target gets the newest epoch, and all are told until they agree.
        """
        move = SlotMove(slot, self.owner(slot), target)
        move.begin()
        yield move
        move.end([node for node in self.primaries if node not in (move.source, target)])
        wait_until(lambda: self._agree_on(move), timeout_s=20.0, what=f"slot {slot} to have its new primary")

    def _agree_on(self, move: SlotMove) -> bool:
        wrong = [node for node in self.running if self._owner_as_told_by(node, move.slot) != move.target.id]
        if wrong:
            move.target.cluster("BUMPEPOCH")
        for node in wrong:
            if node.is_primary:
                move.assign(node)
        return not wrong

    def move_slot(self, slot: int, target: ClusterNode) -> None:
        """Move a slot at one go."""
        with self.moving(slot, target):
            pass

    def flush(self) -> None:
        """FLUSHALL on every primary."""
        for node in self.primaries:
            node.client.flushall()

    def config(self, **settings: str) -> None:
        """CONFIG SET on every running node, with _ for -."""
        for node in self.running:
            node.config(**settings)

    def all_keys(self, pattern: str = "*") -> list[bytes]:
        """Keys of every primary, sorted."""
        return sorted(
            key for node in self.primaries for key in node.client.scan_iter(match=pattern, count=1000)
        )

    def wait_ok(self, *, timeout_s: float = 20.0) -> None:
        """Wait until every running node agrees: who serves which slots, that all are served, and every replica is in sync.

        Raises AssertionError, which tells what each node says.
        """
        wait_until(
            lambda: self._is_whole(list(map(self._picture, self.running))),
            timeout_s=timeout_s,
            what=lambda: "\n".join(["a whole cluster", *map(str, map(self._picture, self.running))]) + "\n",
        )

    def _picture(self, node: ClusterNode) -> _Picture:
        facts, told = node.facts(), node.info("replication")
        return _Picture(
            node.id, facts["cluster_state"], int(facts["cluster_known_nodes"]), frozenset(self._map(node)),
            is_primary=told["role"] == "master", is_in_sync=told.get("master_link_status", "up") == "up",
        )  # fmt: skip

    def _is_whole(self, pictures: Sequence[_Picture]) -> bool:
        """Right after a failover each of two nodes may take itself for the primary, content as far as it knows."""
        slots = pictures[0].slots
        owners = {owner for owner, *_ in slots}
        return sum(last - first + 1 for _, first, last, _ in slots) == SLOTS and all(
            one.state == "ok"
            and one.known_nodes == len(self.nodes)
            and one.slots == slots
            and one.is_primary == (one.node_id in owners)
            and one.is_in_sync
            for one in pictures
        )


@dataclass(frozen=True, slots=True)
class _Picture:
    """What one node says of its cluster and of itself."""

    node_id: str
    state: str
    known_nodes: int
    slots: frozenset[tuple[str, int, int, int]]
    is_primary: bool
    is_in_sync: bool


def slot_of(key: bytes | str) -> int:
    """The hash slot of a key."""
    return int(key_slot(key.encode() if isinstance(key, str) else key))


def key_of_slot(slot: int, *, prefix: str = "filler") -> str:
    """A key that lies in a slot, by its hash tag."""
    number = next(number for number in range(50 * SLOTS) if slot_of(f"{{{number}}}") == slot)
    return f"{prefix}:{{{number}}}"


@contextlib.contextmanager
def redis_cluster(
    *,
    primaries: int = 3,
    replicas: int = 1,
    node_timeout_ms: int = 1000,
    binary: Path | None = None,
    guard: Guard | None = None,
    **options: str,
) -> Iterator[RedisCluster]:
    """A cluster of primaries with `replicas` each, all well; options are those of redis.conf, with _ for -."""
    written = {name.replace("_", "-"): value for name, value in options.items()}
    with tempfile.TemporaryDirectory(prefix="skv-cluster-") as scratch:
        nodes = [
            ClusterNode(
                Path(scratch) / str(number), node_timeout_ms=node_timeout_ms, binary=binary,
                guard=guard or Guard(), **written,
            )
            for number in range(primaries * (1 + replicas))
        ]  # fmt: skip
        try:
            yield _form(nodes, primaries)
        finally:
            for node in nodes:
                node.kill()


def _form(nodes: Sequence[ClusterNode], primaries: int) -> RedisCluster:
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_up()
    bounds = [SLOTS * number // primaries for number in range(primaries + 1)]
    for number, node in enumerate(nodes):
        node.id = node.cluster("MYID").decode()
        node.cluster("SET-CONFIG-EPOCH", number + 1)
        if number < primaries:
            node.cluster("ADDSLOTS", *range(bounds[number], bounds[number + 1]))
    for number, node in enumerate(nodes):
        for other in nodes[:number]:
            node.cluster("MEET", "127.0.0.1", other.port)
    cluster = RedisCluster(nodes)
    followers = list(enumerate(nodes[primaries:]))
    for number, node in followers:
        primary = nodes[number % primaries]
        wait_until(_accepted(node, primary), what="a replica's primary to be known")
    cluster.wait_ok()
    wait_until(
        lambda: all(sum(count for *_, count in cluster._map(node)) == len(followers) for node in nodes),
        what="every node to know every replica",
    )
    return cluster


def _accepted(node: ClusterNode, primary: ClusterNode) -> Callable[[], bool]:
    def attempt() -> bool:
        try:
            node.cluster("REPLICATE", primary.id)
        except RedisError:
            return False
        return True

    return attempt


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
