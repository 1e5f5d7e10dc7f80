"""A Redis Cluster of one's own for a measurement: primaries without replicas, on this machine, ended by their process ids."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from benchmarks.own_redis import OwnRedis, own_redis

FORMING_S_MAX = 30.0
_POLL_S = 0.05
_OPTIONS = (
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "15000",
    "--cluster-require-full-coverage",
    "yes",
)


@contextlib.contextmanager
def own_cluster(primaries: int) -> Iterator[list[OwnRedis]]:
    """Run one; raises RuntimeError when it does not form."""
    with contextlib.ExitStack() as running:
        nodes = [
            running.enter_context(own_redis(options=_OPTIONS, is_cluster_node=True)) for _ in range(primaries)
        ]
        for number, node in enumerate(nodes):
            _command(node, "CLUSTER", "ADDSLOTS", *_slots(number, primaries))
        for node in nodes[1:]:
            _command(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port)
        _wait(nodes)
        yield nodes


def _command(node: OwnRedis, *words: object) -> Any:
    return node.client.execute_command(*words)  # type: ignore[no-untyped-call]


def _slots(number: int, primaries: int) -> range:
    edges = [at * REDIS_CLUSTER_HASH_SLOTS // primaries for at in (number, number + 1)]
    return range(*edges)


def primary_of(key: bytes, primaries: int) -> int:
    """The number of the node that has a key."""
    slot = key_slot(key)
    return next(number for number in range(primaries) if slot in _slots(number, primaries))


def _wait(nodes: Sequence[OwnRedis]) -> None:
    deadline = time.monotonic() + FORMING_S_MAX
    while time.monotonic() < deadline:
        with contextlib.suppress(RedisError):
            if all(_is_formed(node, len(nodes)) for node in nodes):
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"a cluster of {len(nodes)} did not form within {FORMING_S_MAX} s")


def _is_formed(node: OwnRedis, primaries: int) -> bool:
    told = _command(node, "CLUSTER INFO")
    return bool(told["cluster_state"] == "ok" and int(told["cluster_size"]) == primaries)
