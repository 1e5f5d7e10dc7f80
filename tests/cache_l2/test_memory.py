"""Does the arena fit: every kind of limit is seen, and the error says how much would fit and what to raise."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cache_l2.memory import (
    ArenaSizes,
    MemoryProbe,
    arena_sizes,
    check_arena_fits,
    default_pages_max,
    default_segment_bytes,
)
from kv_types.errors import ArenaTooLargeError, ConfigError
from kv_types.limits import ARENA_BYTES_MIN, ARENA_PAGES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN

MIB = 1 << 20
NO_LIMIT = resource.RLIM_INFINITY


def sizes(arena_bytes: int) -> ArenaSizes:
    return arena_sizes(arena_bytes, index_bytes_per_page=208, fixed_index_bytes=MIB)


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.limits: dict[int, int] = {}
        self.write(self.proc / "meminfo", f"MemTotal: 99 kB\nMemAvailable: {1024 * 1024} kB\n")
        self.cgroups.mkdir()

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, path: str, **figures: str) -> None:
        for name, text in figures.items():
            self.write(self.cgroups / path / name.replace("__", "."), text)

    def probe(self) -> MemoryProbe:
        return MemoryProbe(
            proc=self.proc, cgroup_root=self.cgroups,
            limits=lambda kind: (self.limits.get(kind, NO_LIMIT), NO_LIMIT),
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refusal(machine: Machine, arena_bytes: int = 256 * MIB) -> str:
    with pytest.raises(ArenaTooLargeError) as caught:
        check_arena_fits(sizes(arena_bytes), machine.probe())
    return str(caught.value)


def test_an_arena_within_every_limit_is_accepted(machine: Machine) -> None:
    check_arena_fits(sizes(256 * MIB), machine.probe())


def test_c25_more_than_the_machine_has_left(machine: Machine) -> None:
    text = refusal(machine, 2048 * MIB)
    assert "MemAvailable" in text
    assert "1,024.0 MiB" in text


def test_c25_cgroup_v2_counts_reclaimable_cache_and_every_ancestor(machine: Machine) -> None:
    machine.write(machine.proc / "self/cgroup", "0::/outer/inner\n")
    machine.group("outer/inner", memory__max="max\n", memory__current="1\n")
    machine.group(
        "outer", memory__max=str(300 * MIB), memory__current=str(100 * MIB), memory__stat="inactive_file 0\n"
    )
    assert "outer/memory.max" in refusal(machine)
    machine.group("outer", memory__stat=f"anon 5\ninactive_file {100 * MIB}\n")
    check_arena_fits(sizes(256 * MIB), machine.probe())


def test_c25_cgroup_v1_of_a_container_whose_path_is_not_mounted(machine: Machine) -> None:
    machine.write(machine.proc / "self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n")
    machine.group("memory", memory__limit_in_bytes=str(200 * MIB), memory__usage_in_bytes=str(MIB))
    assert "memory/memory.limit_in_bytes" in refusal(machine)


def test_cgroup_v1_without_a_limit_is_no_limit(machine: Machine) -> None:
    machine.write(machine.proc / "self/cgroup", "4:memory:/\n")
    machine.group("memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="1")
    check_arena_fits(sizes(256 * MIB), machine.probe())


def test_a_cgroup_path_cannot_lead_outside(machine: Machine) -> None:
    machine.write(machine.proc / "self/cgroup", "0::/../../etc\n")
    check_arena_fits(sizes(256 * MIB), machine.probe())


def test_strict_overcommit_is_a_limit(machine: Machine) -> None:
    machine.write(machine.proc / "sys/vm/overcommit_memory", "2\n")
    machine.write(
        machine.proc / "meminfo",
        "MemAvailable: 1048576 kB\nCommitLimit: 307200 kB\nCommitted_AS: 204800 kB\n",
    )
    assert "CommitLimit" in refusal(machine)


def test_c25_address_space_is_needed_for_both_mappings(machine: Machine) -> None:
    machine.write(machine.proc / "self/status", "Name:\tx\nVmSize:\t   102400 kB\n")
    machine.limits[resource.RLIMIT_AS] = 500 * MIB
    assert "RLIMIT_AS" in refusal(machine)
    machine.limits[resource.RLIMIT_AS] = 800 * MIB
    check_arena_fits(sizes(256 * MIB), machine.probe())


def test_a_file_size_limit_would_be_a_signal_later(machine: Machine) -> None:
    machine.limits[resource.RLIMIT_FSIZE] = 255 * MIB
    assert "RLIMIT_FSIZE" in refusal(machine)


@example(available_mib=34, arena_mib=2)
@given(available_mib=st.integers(1, 4000), arena_mib=st.integers(1, 8000))
def test_what_is_advised_would_fit(
    tmp_path_factory: pytest.TempPathFactory, available_mib: int, arena_mib: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.write(machine.proc / "meminfo", f"MemAvailable: {available_mib * 1024} kB\n")
    try:
        check_arena_fits(sizes(arena_mib * MIB), machine.probe())
    except ArenaTooLargeError as error:
        text = str(error)
        if "no arena fits" in text:
            assert available_mib * MIB < sizes(ARENA_BYTES_MIN).needed_bytes
            return
        advised = float(text.split("at most ")[1].split(" MiB", maxsplit=1)[0].replace(",", ""))
        check_arena_fits(sizes(int(advised * MIB)), machine.probe())
    else:
        assert arena_mib <= available_mib


def test_c25_the_real_limit_of_a_real_process_is_seen() -> None:
    code = (
        "import resource, sys\n"
        "from cache_l2.memory import arena_sizes, check_arena_fits\n"
        "from kv_types.errors import ArenaTooLargeError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try:\n"
        "    check_arena_fits(arena_sizes(1 << 30, index_bytes_per_page=208, fixed_index_bytes=1))\n"
        "except ArenaTooLargeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert "RLIMIT_AS" in done.stdout
    assert "MiB" in done.stdout


@given(arena_bytes=st.integers(ARENA_BYTES_MIN, 1 << 45))
def test_chosen_sizes_are_valid_and_cut_the_arena_evenly(arena_bytes: int) -> None:
    segment, pages = default_segment_bytes(arena_bytes), default_pages_max(arena_bytes)
    assert SEGMENT_BYTES_MIN <= segment <= SEGMENT_BYTES_MAX
    assert segment & (segment - 1) == 0
    assert 1 <= pages <= ARENA_PAGES_MAX
    made = sizes(arena_bytes)
    assert made.arena_bytes % made.segment_bytes == 0
    assert arena_bytes - made.arena_bytes < segment
    assert made.needed_bytes > made.total_bytes > made.arena_bytes


@pytest.mark.parametrize(
    ("arena_bytes", "segment_bytes", "pages_max", "named"),
    [
        (ARENA_BYTES_MIN - 1, 0, 0, "arena_bytes"),
        (ARENA_BYTES_MIN, 5000, 0, "segment_bytes"),
        (ARENA_BYTES_MIN, 2 * ARENA_BYTES_MIN, 0, "whole arena"),
        (ARENA_BYTES_MIN, SEGMENT_BYTES_MAX * 2, 0, "segment_bytes"),
        (ARENA_BYTES_MIN, 0, ARENA_PAGES_MAX + 1, "pages_max"),
        (ARENA_BYTES_MIN, 0, -1, "pages_max"),
    ],
)
def test_bad_sizes_name_the_setting(arena_bytes: int, segment_bytes: int, pages_max: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        arena_sizes(
            arena_bytes,
            segment_bytes=segment_bytes,
            pages_max=pages_max,
            index_bytes_per_page=1,
            fixed_index_bytes=1,
        )
