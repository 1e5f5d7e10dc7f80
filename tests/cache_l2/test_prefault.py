"""Pre-faulting beside everything else: it ends by itself, with its reader, and never in a forked child."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from cache_l2._native import Reader
from tests.support.native_arena import NativeArena, chain
from tests.support.polling import wait_until

MIB = 1 << 20


def large(mib: int) -> NativeArena:
    return NativeArena(slots=mib, page_bytes=MIB, segment_bytes=MIB)


def mapped_in_bytes(name: str, size_bytes: int) -> int:
    """Bytes of the memory files of that name and size that this process has mapped in."""
    found, matches = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            low, high = (int(part, 16) for part in words[0].split("-"))
            matches = f"/memfd:{name}" in line and high - low == size_bytes
        elif matches and words[0] == "Rss:":
            found += int(words[1]) * 1024
    return found


def test_an_attach_does_not_wait_and_all_is_mapped_in_soon_after() -> None:
    world = large(97)
    wait_until(lambda: world.reader.prefault_ended, what="the pre-faulting")
    assert mapped_in_bytes("stratakv-data", 97 * MIB) == 97 * MIB
    read_only = world.attach(world.arena.open_row(1), writable=False)
    wait_until(lambda: read_only.prefault_ended, what="the pre-faulting of what is only read")
    assert mapped_in_bytes("stratakv-data", 97 * MIB) == 2 * 97 * MIB


def test_what_is_mapped_in_is_written_without_a_fault() -> None:
    world = large(64)
    wait_until(lambda: world.reader.prefault_ended, what="the pre-faulting")
    keys = chain("written", 48)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    reserved = world.reserve(keys)
    page = bytes(MIB)
    world.reader.fill([one.offset for one in reserved], [page] * len(keys), page_bytes=MIB)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 48 * 256 // 4, "each small page of what was written would have been one"


def test_a_reader_ends_in_the_midst_of_it() -> None:
    world = large(256)
    wait_until(lambda: world.reader.prefault_ended, what="the pre-faulting")
    threads = set(Path("/proc/self/task").iterdir())
    for _ in range(8):
        row = world.arena.open_row(1)
        world.attach(row).close()
        world.arena.end_row(row)
    assert set(Path("/proc/self/task").iterdir()) <= threads
    assert mapped_in_bytes("stratakv-data", 256 * MIB) == 256 * MIB
    world.put(chain("kept", 2))


def test_a_child_that_is_forked_in_the_midst_of_it_lets_go() -> None:
    world = large(256)
    reader = world.attach(world.arena.open_row(1))
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # who waits for a thread that isn't there waits for ever
        reader.close()
        world.reader.close()
        del reader, world
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    wait_until(lambda: reader.prefault_ended, what="the parent's pre-faulting")


def test_without_the_wish_nothing_is_mapped_in() -> None:
    world = NativeArena(slots=61, page_bytes=MIB, segment_bytes=MIB)
    world.reader.close()
    control, clients, data = world.arena.duplicate_descriptors(writable=True)
    row = world.arena.open_row(1)
    reader = Reader(
        control_fd=control,
        clients_fd=clients,
        data_fd=data,
        row=row,
        life=world.life,
        writable=True,
        prefault=False,
    )
    assert reader.prefault_ended
    assert mapped_in_bytes("stratakv-data", 61 * MIB) == 0
