"""NUMA nodes: what is asked for becomes a policy of those that are there, and is put back; where it is not allowed, one word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cache_l2 import _native, numa
from cache_l2.arena_start import ArenaConfig, create_arena
from cache_l2.memory import arena_sizes, check_arena_fits
from cache_l2.memory_probe import MemoryProbe, Nodes
from cache_l2.numa import Placement, Policy, placement_of
from kv_types.errors import ArenaTooLargeError, ConfigError
from kv_types.ids import new_life_id
from tests.cache_l2.machines import Machine

MIB = 1 << 20
TWO = Nodes(memory=(0, 1), processors=(0, 1))
FIRST_OF_TWO = Nodes(memory=(0, 1), processors=(0,))
ONE = Nodes(memory=(0,), processors=(0,))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("asked", "nodes", "placement"),
    [
        ("none", TWO, None),
        ("auto", ONE, None),
        ("auto", TWO, Placement(Policy.INTERLEAVE, (0, 1))),
        ("auto", FIRST_OF_TWO, Placement(Policy.PREFER, (0,))),
        ("auto", Nodes(memory=(0, 2), processors=(1,)), Placement(Policy.INTERLEAVE, (0, 2))),
        ("interleave", FIRST_OF_TWO, Placement(Policy.INTERLEAVE, (0, 1))),
        ("interleave", ONE, Placement(Policy.INTERLEAVE, (0,))),
        ("1", TWO, Placement(Policy.BIND, (1,))),
        ("0", ONE, Placement(Policy.BIND, (0,))),
    ],
)
def test_what_is_asked_for_becomes_a_policy(asked: str, nodes: Nodes, placement: Placement | None) -> None:
    assert placement_of(asked, nodes) == placement


@pytest.mark.parametrize("asked", ["2", "99999999999999999999", "-1", "first", ""])
def test_a_node_that_is_not_there_is_told_with_those_that_are(asked: str) -> None:
    with pytest.raises(ConfigError, match=r"may use: 0, 1\."):
        placement_of(asked, TWO)


def test_the_nodes_of_a_machine_are_read(machine: Machine) -> None:
    assert machine.probe().nodes() == Nodes(memory=(0,), processors=())
    machine.nodes("0-1,3", node0="0-3", node1="4-7", node2="8-11", node3="")
    machine.write(machine.proc / "self/status", "Cpus_allowed_list:\t5,8-9\nMems_allowed_list:\t0-1\n")
    assert machine.probe().nodes() == Nodes(memory=(0, 1), processors=(1, 2))


def test_this_machine_has_a_node_that_memory_can_be_bound_to() -> None:
    nodes = MemoryProbe().nodes()
    assert nodes.memory
    assert set(nodes.processors) <= set(range(1024))
    left = MemoryProbe().node_memory(nodes.memory[0])
    assert left is None or left.available_bytes > MIB


def test_c25_an_arena_bound_to_a_node_has_to_fit_there(machine: Machine) -> None:
    folder = machine.sys / "devices/system/node/node1"
    machine.write(
        folder / "meminfo",
        "Node 1 MemTotal: 999999 kB\nNode 1 MemFree: 102400 kB\nNode 1 SReclaimable: 1024 kB\n",
    )
    sizes = arena_sizes(256 * MIB, index_bytes_per_page=208, fixed_index_bytes=MIB)
    check_arena_fits(sizes, machine.probe())
    with pytest.raises(ArenaTooLargeError, match=r"NUMA node 1 leaves 101\.0 MiB.*--numa-node interleave"):
        check_arena_fits(sizes, machine.probe(), node=1)


@pytest.fixture
def _policies() -> None:
    """Skip where this machine lets nobody place memory."""
    try:
        _native.set_placement_policy(*_native.placement_policy())
    except OSError as error:
        pytest.skip(f"needs set_mempolicy: {error}")


@pytest.mark.usefixtures("_policies")
@pytest.mark.parametrize("asked", ["0", "interleave"])
def test_memory_is_placed_while_it_is_committed_and_not_after(asked: str) -> None:
    before = _native.placement_policy()
    placement = placement_of(asked, MemoryProbe().nodes())
    assert placement is not None
    with numa.placed(placement) as placed:
        assert placed.note == ""
        assert placed.told == str(placement)
        assert _native.placement_policy()[0] == placement.policy
    assert _native.placement_policy() == before
    arena, memory = create_arena(ArenaConfig(arena_bytes=4 * MIB, numa_node=asked), new_life_id())
    assert memory.placement == str(placement)
    assert _native.placement_policy() == before
    arena.close()


@pytest.mark.usefixtures("_policies")
def test_what_numactl_has_said_is_left_alone_by_auto() -> None:
    before = _native.placement_policy()
    _native.set_placement_policy(Policy.BIND, b"\x01")
    try:
        bound = _native.placement_policy()
        with numa.placed(Placement(Policy.INTERLEAVE, (0,)), is_asked_for=False) as placed:
            assert "numactl" in placed.told
            assert _native.placement_policy() == bound
        with numa.placed(Placement(Policy.INTERLEAVE, (0,))):
            assert _native.placement_policy()[0] == Policy.INTERLEAVE
        assert _native.placement_policy() == bound
    finally:
        _native.set_placement_policy(*before)


@pytest.mark.usefixtures("_policies")
def test_a_policy_is_put_back_after_a_failure() -> None:
    before = _native.placement_policy()
    with pytest.raises(ZeroDivisionError), numa.placed(Placement(Policy.BIND, (0,))):
        raise ZeroDivisionError
    assert _native.placement_policy() == before


@pytest.mark.parametrize(("is_asked_for", "level"), [(True, "warning"), (False, "info")])
def test_what_the_kernel_refuses_is_said_once_and_no_failure(is_asked_for: bool, level: str) -> None:
    placement = Placement(Policy.BIND, (900,))
    with capture_logs() as lines, numa.placed(placement, is_asked_for=is_asked_for) as placed:
        assert placed.told == ""
        assert "not placed on node 900" in placed.note
    assert [line["log_level"] for line in lines] == [level]


def test_a_container_that_forbids_it_gets_its_arena_all_the_same() -> None:
    """Under a filter such as Docker's, set_mempolicy and get_mempolicy answer EPERM."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forbidden_policy"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert "made: ''" in done.stdout
    assert "this container or kernel does not allow it" in done.stdout
    assert "SYS_NICE" in done.stdout
