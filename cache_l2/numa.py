"""On which NUMA nodes an arena's memory lies: decided from what there is, and said to the kernel while it is committed.

The policy is that of the thread which commits, so it holds for files of huge pages as well, whose own policies the
kernel does not follow (Documentation/admin-guide/mm/numa_memory_policy.rst); memory that is committed stays where it is.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import structlog

from cache_l2 import _native
from cache_l2.memory_probe import Nodes
from kv_types.errors import ConfigError

AUTO, INTERLEAVE, NONE = "auto", "interleave", "none"

_KERNELS_OWN = 0
"""The mode of who has said nothing."""
_NOT_ALLOWED = (errno.EPERM, errno.ENOSYS, errno.EACCES)

_log = structlog.get_logger("stratakv.arena")


class Policy(IntEnum):
    """Modes of set_mempolicy(2)."""

    PREFER = 1
    BIND = 2
    INTERLEAVE = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy and the nodes it names."""

    policy: Policy
    nodes: tuple[int, ...]

    @property
    def bound_node(self) -> int | None:
        """The one node that all memory has to come from."""
        return self.nodes[0] if self.policy is Policy.BIND else None

    def __str__(self) -> str:
        names = ", ".join(map(str, self.nodes))
        match self.policy:
            case Policy.PREFER:
                return f"node {names}, else others"
            case Policy.BIND:
                return f"node {names}"
            case Policy.INTERLEAVE:
                return f"interleaved over nodes {names}"


@dataclass(frozen=True, slots=True)
class Placed:
    """What came of it."""

    told: str = ""
    note: str = ""


def placement_of(asked: str, nodes: Nodes) -> Placement | None:
    """What `asked` (auto, interleave, none, or a node's number) means here; None: the kernel decides, page by page.

    auto: on a machine of several nodes, that of the processors this process may run on if it is one, else interleaved,
    since workers of all nodes read the arena. Raises ConfigError for a node that has no memory this process may use.
    """
    if asked == NONE or (asked == AUTO and len(nodes.memory) < 2):
        return None
    if asked == AUTO and len(nodes.processors) == 1 and nodes.processors[0] in nodes.memory:
        return Placement(Policy.PREFER, nodes.processors)
    if asked in (AUTO, INTERLEAVE):
        return Placement(Policy.INTERLEAVE, nodes.memory)
    if not asked.isdecimal() or int(asked) not in nodes.memory:
        there = ", ".join(map(str, nodes.memory)) or "none"
        raise ConfigError(
            f"numa_node is {asked}; the nodes with memory that this process may use: {there}. Name one of them, "
            f"or {AUTO}, {INTERLEAVE} or {NONE}"
        )
    return Placement(Policy.BIND, (int(asked),))


@contextlib.contextmanager
def placed(placement: Placement | None, *, is_asked_for: bool = True) -> Iterator[Placed]:
    """Have the memory that this thread commits in the block placed; where that is not allowed, say so once and go on.

    What nobody has asked for is no warning, and does not undo what whoever started this process has said.
    """
    if placement is None:
        yield Placed()
        return
    try:
        mode, nodes = _native.placement_policy()
        if mode != _KERNELS_OWN and not is_asked_for:
            yield Placed(told="as this process was told to (numactl)")
            return
        _native.set_placement_policy(placement.policy, _mask(placement.nodes))
    except OSError as error:
        note = _not_placed(placement, error)
        (_log.warning if is_asked_for else _log.info)("memory is not placed", reason=note)
        yield Placed(note=note)
        return
    try:
        yield Placed(told=str(placement))
    finally:
        _native.set_placement_policy(mode, nodes)


def _not_placed(placement: Placement, error: OSError) -> str:
    why = "this container or kernel does not allow it" if error.errno in _NOT_ALLOWED else str(error)
    remedy = (
        "give it the capability SYS_NICE, or a seccomp profile that allows set_mempolicy and get_mempolicy"
    )
    return f"memory is not placed on {placement}: {why}; {remedy}, or say --numa-node none"


def _mask(nodes: tuple[int, ...]) -> bytes:
    bits = sum(1 << node for node in nodes)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
