"""Huge pages: what the machine offers is read right, too few are a clear error, and what lies in them keeps every promise."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_l2.arena_start import ArenaConfig, check_room, create_arena, map_own
from cache_l2.huge_pages import HugePages, mapped_bytes, transparent_note
from cache_l2.memory import arena_sizes, check_arena_fits
from cache_l2.memory_probe import HUGE_PAGE_BYTES
from kv_types.errors import ArenaTooLargeError
from kv_types.ids import LifeId
from tests.cache_l2.machines import Machine
from tests.support.huge_pages import available, need_transparent, set_apart
from tests.support.native_arena import NativeArena, chain, payload
from tests.support.polling import wait_until

MIB = 1 << 20
LIFE = LifeId(b"life" * 4)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def config(asked: HugePages, arena_bytes: int = 64 * MIB) -> ArenaConfig:
    return ArenaConfig(arena_bytes=arena_bytes, client_rows=4, leases_per_client=256, huge_pages=asked)


def test_a_pool_tells_what_could_be_had_and_what_to_set(machine: Machine) -> None:
    assert machine.probe().huge_page_pool() is None
    machine.pool(nr_hugepages=100, free_hugepages=90, resv_hugepages=20)
    pool = machine.probe().huge_page_pool()
    assert pool is not None
    assert (pool.pages, pool.available) == (100, 70)
    assert "vm.nr_hugepages=105)" in pool.remedy(75)
    machine.pool(nr_hugepages=100, free_hugepages=90, nr_overcommit_hugepages=50, surplus_hugepages=10)
    pool = machine.probe().huge_page_pool()
    assert pool is not None
    assert pool.available == 130
    machine.memory(Hugepagesize=1024 * 1024)
    pool = machine.probe().huge_page_pool()
    assert pool is not None
    assert "echo 101 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages" in pool.remedy(131)


@pytest.mark.parametrize(
    ("common", "own", "offered"),
    [
        (
            "always within_size advise [never] deny force",
            "always [inherit] within_size advise never",
            "never",
        ),
        (
            "always within_size [advise] never deny force",
            "always [inherit] within_size advise never",
            "advise",
        ),
        (
            "always within_size advise [never] deny force",
            "[always] inherit within_size advise never",
            "always",
        ),
        ("always within_size advise never [deny] force", "[always] inherit within_size advise never", "deny"),
        ("[always] within_size advise never deny force", None, "always"),
        (None, None, ""),
    ],
)
def test_what_shared_memory_is_offered(
    machine: Machine, common: str | None, own: str | None, offered: str
) -> None:
    folder = machine.sys / "kernel/mm/transparent_hugepage"
    for file, text in ((folder / "shmem_enabled", common), (folder / "hugepages-2048kB/shmem_enabled", own)):
        if text is not None:
            machine.write(file, f"{text}\n")
    assert machine.probe().shared_huge_pages() == offered
    assert bool(transparent_note(offered)) == (offered in ("never", "deny", ""))


def test_c25_too_few_explicit_huge_pages_are_told_with_the_number_to_set(machine: Machine) -> None:
    sizes = arena_sizes(256 * MIB, index_bytes_per_page=208, fixed_index_bytes=MIB)
    with pytest.raises(ArenaTooLargeError, match=r"no huge pages of 2\.0 MiB"):
        check_arena_fits(sizes, machine.probe(), in_huge_pages=True)
    machine.pool(nr_hugepages=120, free_hugepages=100)
    with pytest.raises(ArenaTooLargeError) as caught:
        check_arena_fits(sizes, machine.probe(), in_huge_pages=True)
    told = str(caught.value)
    assert f"needs {sizes.huge_pages} huge pages" in told
    assert f"vm.nr_hugepages={sizes.huge_pages + 20})" in told
    fitting = float(told.split("at most ")[1].split(" MiB", maxsplit=1)[0])
    assert 100 < fitting < 200
    check_arena_fits(sizes.resized(int(fitting * MIB)), machine.probe(), in_huge_pages=True)
    machine.pool(nr_hugepages=sizes.huge_pages, free_hugepages=sizes.huge_pages)
    check_arena_fits(sizes, machine.probe(), in_huge_pages=True)


def test_huge_pages_are_no_memory_that_is_available(machine: Machine) -> None:
    machine.memory(MemAvailable=1024)
    machine.pool(nr_hugepages=300, free_hugepages=300)
    check_arena_fits(
        arena_sizes(256 * MIB, index_bytes_per_page=208, fixed_index_bytes=MIB),
        machine.probe(),
        in_huge_pages=True,
    )


@pytest.mark.parametrize("version", [1, 2])
def test_c25_a_cgroup_limits_huge_pages_apart(machine: Machine, version: int) -> None:
    machine.pool(nr_hugepages=500, free_hugepages=500)
    if version == 1:
        machine.write(machine.proc / "self/cgroup", "4:hugetlb:/a\n")
        machine.write(machine.cgroups / "hugetlb/a/hugetlb.2MB.limit_in_bytes", str(200 * MIB))
        machine.write(machine.cgroups / "hugetlb/a/hugetlb.2MB.usage_in_bytes", "0")
    else:
        machine.write(machine.proc / "self/cgroup", "0::/a\n")
        machine.write(machine.cgroups / "a/hugetlb.2MB.max", str(200 * MIB))
        machine.write(machine.cgroups / "a/hugetlb.2MB.current", "0")
    sizes = arena_sizes(256 * MIB, index_bytes_per_page=208, fixed_index_bytes=MIB)
    with pytest.raises(ArenaTooLargeError, match=r"hugetlb\.2MB"):
        check_arena_fits(sizes, machine.probe(), in_huge_pages=True)


def test_try_goes_on_without_and_says_why(machine: Machine) -> None:
    machine.pool(nr_hugepages=2, free_hugepages=2)
    assert "vm.nr_hugepages=" in str(check_room(config(HugePages.TRY), machine.probe()))
    with pytest.raises(ArenaTooLargeError, match="huge pages"):
        check_room(config(HugePages.EXPLICIT), machine.probe())
    machine.memory(MemAvailable=1024)
    with pytest.raises(ArenaTooLargeError, match="MemAvailable"):
        check_room(config(HugePages.TRY), machine.probe())
    machine.pool(nr_hugepages=64, free_hugepages=64)
    assert check_room(config(HugePages.TRY), machine.probe()) is None


def test_c25_huge_pages_that_another_took_meanwhile_are_a_clear_error_and_never_a_signal() -> None:
    """What the look before promised is not there when they are taken."""
    code = (
        "import os\n"
        "from cache_l2.arena_start import ArenaConfig, create_arena\n"
        "from cache_l2.huge_pages import HugePages\n"
        "from cache_l2.memory_probe import HugePagePool, MemoryProbe\n"
        "from kv_types.errors import ArenaTooLargeError\n"
        "class Hopeful(MemoryProbe):\n"
        "    def huge_page_pool(self): return HugePagePool(1 << 20, 1 << 20, True)\n"
        "for asked in (HugePages.EXPLICIT, HugePages.TRY):\n"
        "    config = ArenaConfig(arena_bytes=256 << 20, huge_pages=asked)\n"
        "    if asked is HugePages.EXPLICIT: config = ArenaConfig(arena_bytes=64 << 30, huge_pages=asked)\n"
        "    try:\n"
        "        arena, memory = create_arena(config, bytes(16), probe=Hopeful())\n"
        "        print('made', memory.in_huge_pages or bool(memory.note))\n"
        "    except ArenaTooLargeError as error:\n"
        "        print('refused:', error)\n"
    )
    # for a moment it takes all there are, of which another test may have been told that they are its own
    with set_apart(0):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
    refused, made = (line for line in done.stdout.splitlines() if line.startswith(("refused", "made")))
    assert "huge pages" in refused
    assert "--huge-pages transparent" in refused
    assert made == "made True"


def test_a_process_tells_how_much_of_its_arenas_lies_in_huge_pages(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "7f10-7f20 r--s 00000000 00:01 5  /memfd:stratakv-data (deleted)\n"
        "Size: 4096 kB\nRss: 4096 kB\nShmemPmdMapped: 2048 kB\nPrivate_Hugetlb: 0 kB\nVmFlags: rd sh\n"
        "7f20-7f30 rw-s 00000000 00:11 6  /memfd:stratakv-control (deleted)\n"
        "Size: 2048 kB\nRss: 0 kB\nShmemPmdMapped: 0 kB\nShared_Hugetlb: 2048 kB\nPrivate_Hugetlb: 0 kB\n"
        "7f30-7f40 rw-p 00000000 00:00 0\n"
        "Rss: 64 kB\nAnonHugePages: 0 kB\nPrivate_Hugetlb: 8 kB\n"
    )
    assert mapped_bytes(smaps) == (4096 * 1024, 6144 * 1024)


@pytest.fixture
def pool() -> Iterator[int]:
    """Huge pages that no other test uses meanwhile."""
    with set_apart(24) as there:
        yield there


def explicit_world() -> NativeArena:
    return NativeArena(slots=300, page_bytes=65_536, segment_bytes=65_536, huge_pages=2)


def test_pages_in_explicit_huge_pages_are_pages_like_others(pool: int) -> None:
    before = pool
    world = explicit_world()
    assert available() <= before - 10
    keys = chain("huge", 250)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    assert [bytes(page) for page in lease] == [payload(key, world.page_bytes) for key in keys]
    lease.release()
    wait_until(lambda: world.reader.prefault_ended, what="the pre-faulting")
    huge, mapped = mapped_bytes()
    assert huge == mapped >= 20 * MIB
    del lease
    world.reader.close()
    world.arena.close()
    wait_until(lambda: available() == before, what="the pool to have them back")


@pytest.mark.usefixtures("pool")
def test_nobody_gets_to_write_to_the_index_in_explicit_huge_pages() -> None:
    world = explicit_world()
    files = world.arena.duplicate_descriptors(writable=False)
    own = world.arena.duplicate_descriptors(writable=True)
    for descriptor in (files[0], files[2], own[0]):
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, HUGE_PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for descriptor in (*files, *own):
        for size in (0, HUGE_PAGE_BYTES, 1 << 30):
            if os.fstat(descriptor).st_size != size:
                with pytest.raises(OSError, match=r"Operation not permitted|Invalid argument"):
                    os.ftruncate(descriptor, size)
    reopened = os.open(f"/proc/self/fd/{files[0]}", os.O_RDONLY)
    for descriptor in (reopened, *files, *own):
        assert os.fstat(descriptor).st_size % HUGE_PAGE_BYTES == 0
        os.close(descriptor)


@pytest.mark.usefixtures("pool")
def test_explicit_huge_pages_are_not_inherited() -> None:
    world = explicit_world()
    child = os.fork()
    if child == 0:
        with Path("/proc/self/maps").open() as maps:
            os._exit(any("/memfd:stratakv" in line for line in maps))
    assert os.waitpid(child, 0)[1] == 0
    world.arena.check_invariants()


def test_the_kernel_gives_transparent_huge_pages_where_it_offers_them() -> None:
    need_transparent()
    arena, memory = create_arena(config(HugePages.TRANSPARENT, 128 * MIB), LIFE)
    assert memory.note == ""
    row = arena.open_row(1)
    reader = map_own(arena, row, LIFE, prefault=True)
    wait_until(lambda: reader.prefault_ended, what="the pre-faulting")
    assert mapped_bytes()[0] > 0
    reader.close()
    arena.close()


def test_committing_through_a_mapping_commits_everything() -> None:
    """As it is done where only mappings that ask get huge pages, whether or not there are any."""
    world = NativeArena(commit_through_mapping=True)
    file = world.arena.duplicate_descriptors(writable=False)[2]
    assert os.fstat(file).st_blocks * 512 >= world.arena.geometry["data_bytes"]
    os.close(file)
    world.put(chain("one", 3))


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="huge_pages"):
        NativeArena(huge_pages=3)
