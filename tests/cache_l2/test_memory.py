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
    arena_sizes,
    auto_arena_size,
    check_arena_fits,
    default_pages_max,
    default_segment_bytes,
)
from kv_types.errors import ArenaTooLargeError, ConfigError
from kv_types.limits import (
    ARENA_BYTES_MIN,
    ARENA_PAGES_MAX,
    AUTO_ARENA_BYTES_MIN,
    AUTO_HEADROOM_BYTES,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
)
from tests.cache_l2.machines import Machine

MIB = 1 << 20


def sizes(arena_bytes: int) -> ArenaSizes:
    return arena_sizes(arena_bytes, index_bytes_per_page=208, fixed_index_bytes=MIB)


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


def test_auto_takes_its_share_of_what_the_tightest_limit_leaves(machine: Machine) -> None:
    machine.memory(MemAvailable=8192 * 1024)
    chosen = auto_arena_size(machine.probe(), share=0.5, sizes=sizes)
    assert "MemAvailable" in chosen.bound.source
    assert 3950 * MIB < chosen.arena_bytes < 4096 * MIB
    assert sizes(chosen.arena_bytes).needed_bytes <= 4096 * MIB
    machine.write(machine.proc / "self/cgroup", "0::/outer/inner\n")
    machine.group("outer", memory__max=str(2048 * MIB), memory__current="0")
    machine.group("outer/inner", memory__max=str(6144 * MIB), memory__current="0")
    chosen = auto_arena_size(machine.probe(), share=0.25, sizes=sizes)
    assert "outer/memory.max" in chosen.bound.source
    assert 450 * MIB < chosen.arena_bytes < 512 * MIB


def test_auto_leaves_others_room_however_large_its_share(machine: Machine) -> None:
    machine.memory(MemAvailable=1024 * 1024)
    chosen = auto_arena_size(machine.probe(), share=0.95, sizes=sizes)
    assert sizes(chosen.arena_bytes).needed_bytes <= 1024 * MIB - AUTO_HEADROOM_BYTES


@pytest.mark.parametrize(("kind", "need"), [(resource.RLIMIT_AS, "mapped"), (resource.RLIMIT_FSIZE, "file")])
def test_auto_keeps_within_the_limits_of_the_process(machine: Machine, kind: int, need: str) -> None:
    machine.memory(MemAvailable=8192 * 1024)
    machine.write(machine.proc / "self/status", "VmSize: 0 kB\n")
    machine.limits[kind] = 1000 * MIB
    chosen = auto_arena_size(machine.probe(), share=0.5, sizes=sizes)
    assert "RLIMIT" in chosen.bound.source
    made = sizes(chosen.arena_bytes)
    assert 900 * MIB < {"mapped": made.mapped_bytes, "file": made.largest_file_bytes}[need] <= 1000 * MIB


def test_auto_does_not_start_with_next_to_nothing(machine: Machine) -> None:
    machine.memory(MemAvailable=600 * 1024)
    with pytest.raises(
        ArenaTooLargeError, match=r"arena_size is auto.*MemAvailable.*600\.0 MiB.*64\.0 MiB.*name a size"
    ):
        auto_arena_size(machine.probe(), share=0.5, sizes=sizes)


def test_auto_of_a_machine_that_tells_nothing_is_refused(machine: Machine) -> None:
    machine.write(machine.proc / "meminfo", "")
    with pytest.raises(ConfigError, match="name a size"):
        auto_arena_size(machine.probe(), share=0.5, sizes=sizes)


def test_auto_takes_all_huge_pages_that_are_set_apart(machine: Machine) -> None:
    machine.pool(nr_hugepages=1024, free_hugepages=1000)
    chosen = auto_arena_size(machine.probe(), share=0.5, sizes=sizes, in_huge_pages=True)
    assert "pool" in chosen.bound.source
    assert 990 <= sizes(chosen.arena_bytes).huge_pages <= 1000
    machine.pool(nr_hugepages=24, free_hugepages=10)
    with pytest.raises(ArenaTooLargeError, match=r"vm\.nr_hugepages="):
        auto_arena_size(machine.probe(), share=0.5, sizes=sizes, in_huge_pages=True)


@given(available_mib=st.integers(1, 1 << 20), limit_mib=st.integers(1, 1 << 20), share=st.floats(0.01, 0.95))
def test_what_auto_chooses_fits_and_leaves_what_it_must(
    tmp_path_factory: pytest.TempPathFactory, available_mib: int, limit_mib: int, share: float
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.memory(MemAvailable=available_mib * 1024)
    machine.write(machine.proc / "self/cgroup", "0::/a\n")
    machine.group("a", memory__max=str(limit_mib * MIB), memory__current="0")
    least_mib = min(available_mib, limit_mib)
    try:
        chosen = auto_arena_size(machine.probe(), share=share, sizes=sizes)
    except ArenaTooLargeError:
        room = min(share * least_mib * MIB, least_mib * MIB - AUTO_HEADROOM_BYTES)
        assert sizes(AUTO_ARENA_BYTES_MIN).needed_bytes > room
        return
    check_arena_fits(sizes(chosen.arena_bytes), machine.probe())
    assert chosen.bound.available_bytes == least_mib * MIB
    needed = sizes(chosen.arena_bytes).needed_bytes
    assert needed <= min(share * least_mib * MIB, least_mib * MIB - AUTO_HEADROOM_BYTES)
    assert sizes(chosen.arena_bytes + 2 * sizes(chosen.arena_bytes).segment_bytes).needed_bytes > min(
        int(share * least_mib * MIB), least_mib * MIB - AUTO_HEADROOM_BYTES
    )
