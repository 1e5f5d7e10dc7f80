"""The native arena between real processes: reading, dying, forking, and what a client cannot do to the others."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kv_types.outcomes import MissReason, PutStatus, RefuseReason
from tests.support.descriptors import descriptors_since, open_descriptors
from tests.support.native_arena import PAGE, NativeArena, chain, now_ns, payload
from tests.support.polling import wait_until
from tests.support.shared_files import nothing_new_in_shared_memory

ROOT = Path(__file__).resolve().parents[2]
STORED = (PutStatus.STORED, RefuseReason.NONE)


def start(
    world: NativeArena,
    row: int,
    do: str,
    chains: Sequence[Sequence[bytes]],
    *,
    writable: bool = False,
    **extra: int,
) -> subprocess.Popen[str]:
    descriptors = world.arena.duplicate_descriptors(writable=writable)
    job = {
        "fds": descriptors, "row": row, "life": world.life.hex(), "writable": writable, "do": do,
        "chains": [[key.hex() for key in one] for one in chains], **extra,
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.native_worker", json.dumps(job)],
        cwd=ROOT, pass_fds=descriptors, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for descriptor in descriptors:
        os.close(descriptor)
    return child


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if not line:
        assert child.stderr is not None
        pytest.fail(f"the worker ended: {child.stderr.read()}")
    return line


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate(timeout=10)


def test_another_process_reads_the_same_pages() -> None:
    world = NativeArena()
    whole, part, none = chain("whole", 6), chain("part", 6), chain("none", 2)
    world.put(whole)
    world.put(part[:2])
    row = world.arena.open_row(1)
    child = start(world, row, "read", [whole, part, none])
    answers = [json.loads(line_of(child)) for _ in range(3)]
    assert answers == [[6, MissReason.NONE, True], [2, MissReason.ABSENT, True], [0, MissReason.ABSENT, True]]
    child.communicate(timeout=10)
    assert child.returncode == 0
    counts = world.counts(row)
    assert (counts["requested"], counts["l2"], counts["miss_1"]) == (14, 8, 6)
    assert world.arena.row_statistics(row)["leases"] == 0


def test_c10_leases_end_with_a_killed_process() -> None:
    world = NativeArena(slots=256, leases_per_row=16_384)
    chains = [chain(f"c{i}", 1) for i in range(250)]
    for one in chains:
        world.put(one)
    row = world.arena.open_row(1)
    child = start(world, row, "hoard", chains, look_ups=10_000)
    assert line_of(child) == "10000"
    assert world.arena.statistics()["leased_bytes"] == 250 * PAGE
    assert world.arena.row_statistics(row)["leases"] == 10_000
    new = chain("new", 20)
    assert [status for status, _ in world.put(new)].count(PutStatus.STORED) == 6, (
        "only what nobody leases can go"
    )
    world.hide(chains[0][0])
    kill(child)
    assert world.arena.statistics()["entries_hidden_leased"] == 1, "a death alone ends nothing"
    world.arena.end_row(row)
    statistics = world.arena.statistics()
    assert (statistics["leased_bytes"], statistics["entries_hidden_leased"]) == (0, 0)
    assert world.put(new) == [(PutStatus.KNOWN, RefuseReason.NONE)] * 6 + [STORED] * 14
    world.arena.check_invariants()


def test_c31_a_writer_that_dies_in_the_middle_never_makes_a_hit() -> None:
    world = NativeArena()
    keys = chain("a", 1)
    row = world.arena.open_row(1)
    answer = world.reserve(keys, row=row)[0]
    child = start(world, row, "torn", [], writable=True, offset=answer.offset)
    line_of(child)
    assert world.reader.match(keys[0], namespace=1) == (0, MissReason.ABSENT)
    world.arena.orphan_row(row)
    kill(child)
    assert world.put(keys) == [STORED]
    found = world.arena.find(keys[0])
    assert found is not None
    assert found["data_offset"] != answer.offset, (
        "the dead writer's place is not reused while it may still write"
    )
    world.arena.end_row(row)
    with world.reader.lease(0, keys[0], namespace=1) as lease:
        assert bytes(lease[0]) == payload(keys[0])


def test_readers_killed_at_random_harm_nobody() -> None:
    """A writer under pressure, three readers of which one is killed and replaced again and again."""
    seed = int(os.environ.get("STRATAKV_TEST_SEED", "20240607"))
    rng = random.Random(seed)
    world = NativeArena(slots=256, rows=8)
    chains = [chain(f"{root}/{leaf}", 24) for root in "abcdef" for leaf in "uvwxyz"]
    children: list[tuple[int, subprocess.Popen[str]]] = []

    def spawn() -> None:
        row = world.arena.open_row(1)
        children.append((row, start(world, row, "stamp", chains, seed=rng.randrange(1 << 30))))
        line_of(children[-1][1])

    for _ in range(3):
        spawn()
    deadline = time.monotonic() + 6
    kills = 0
    while time.monotonic() < deadline or kills < 3:
        for _ in range(60):
            keys = rng.choice(chains)[: rng.randint(1, 24)]
            world.put(keys)
            if rng.random() < 0.2:
                world.hide(rng.choice(keys))
                world.arena.publish_event(incarnation=bytes(16), revision=1, kind=1, payload=b"")
            world.arena.expire(now_ns())
        world.arena.check_invariants()
        row, child = children.pop(0)
        assert child.poll() is None, child.communicate()[1]
        os.kill(child.pid, signal.SIGKILL)
        child.communicate(timeout=10)
        world.arena.end_row(row)
        kills += 1
        spawn()
    for row, child in children:
        assert child.poll() is None, child.communicate()[1]
        kill(child)
        world.arena.end_row(row)
    world.arena.expire(now_ns())
    statistics = world.arena.statistics()
    assert (statistics["leased_bytes"], statistics["entries_hidden_leased"]) == (0, 0)
    assert statistics["evictions_capacity"] > 0
    world.arena.check_invariants()


def test_readers_that_are_killed_leave_whole_notes_or_none() -> None:
    world = NativeArena(learns=True)
    keys = chain("a", 6)
    world.put(keys)
    for seed in range(3):
        row = world.arena.open_row(1)
        child = start(world, row, "stamp", [keys], seed=seed)
        line_of(child)
        wait_until(lambda: world.arena.read_notes(notes_max=100, now_ns=now_ns()) > 0, what="a note")
        kill(child)
        world.arena.end_row(row)
        world.arena.check_invariants()
    figures = world.arena.statistics()
    assert figures["policy_requests"] == figures["notes_read"] >= 3


def test_a_forked_child_is_told_to_attach_again() -> None:
    world = NativeArena()
    keys = chain("a", 2)
    world.put(keys)
    lease = world.reader.lease(0, b"".join(keys), namespace=1)
    child = os.fork()
    if child == 0:
        complaints = 0
        for call in (lambda: world.reader.match(keys[0], namespace=1), world.arena.statistics):
            try:
                call()
            except ValueError as error:
                complaints += "fork" in str(error)
        lease.release()
        world.reader.close()
        world.arena.close()
        os._exit(complaints)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert world.arena.row_statistics(world.row)["leases"] == 2, (
        "the child has ended none of the parent's leases"
    )
    assert not world.reader.closed
    assert bytes(lease[1]) == payload(keys[1])
    lease.release()


def test_what_clients_may_not_map_or_change() -> None:
    world = NativeArena()
    control, clients, data = world.arena.duplicate_descriptors(writable=False)
    writable = world.arena.duplicate_descriptors(writable=True)
    size = world.arena.geometry
    for descriptor in (control, data, writable[0]):
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for descriptor in (control, clients, data, *writable):
        with pytest.raises((PermissionError, OSError)):
            os.ftruncate(descriptor, 4096)
    assert os.fstat(data).st_size == size["data_bytes"]
    reopened = os.open(f"/proc/self/fd/{control}", os.O_RDONLY)
    os.close(reopened)
    mapped = mmap.mmap(writable[2], 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    mapped.close()
    for descriptor in (control, clients, data, *writable):
        os.close(descriptor)


def test_garbage_in_a_clients_row_harms_only_itself() -> None:
    """Clients write their rows: hazards, high-water marks and access times may hold anything."""
    world = NativeArena(slots=256, rows=4)
    singles = [chain(f"s{i}", 1) for i in range(256)]
    for one in singles:
        world.put(one)
    row = world.arena.open_row(1)
    descriptors = world.arena.duplicate_descriptors(writable=False)
    size = world.arena.geometry["clients_bytes"]
    entries_bytes = -(-world.entries * 16 // 4096) * 4096
    stride = (size - entries_bytes) // world.rows
    with mmap.mmap(descriptors[1], size) as clients:
        rng = random.Random(7)
        clients[row * stride : (row + 1) * stride] = rng.randbytes(stride)
        clients[size - entries_bytes :] = rng.randbytes(entries_bytes)
    for descriptor in descriptors:
        os.close(descriptor)
    world.arena.statistics()
    world.arena.row_statistics(row)
    world.arena.expire(now_ns())
    for number in range(300):
        world.put(chain(f"new{number}", 1))
        world.arena.check_invariants()
    world.arena.end_row(row)
    assert world.arena.open_row(2) == row
    assert world.counts(row)["requested"] == 0
    assert world.put(chain("last", 3)) == [STORED] * 3


def test_nothing_is_left_in_the_file_system() -> None:
    with nothing_new_in_shared_memory(ours={os.getpid()}):
        world = NativeArena()
        world.put(chain("a", 1))
    names = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
    world.arena.close()
    world.reader.close()
    assert any("stratakv-data" in name for name in names)


def test_closing_gives_descriptors_and_maps_back() -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("stratakv-")

    descriptors, mapped = open_descriptors(), maps()
    world = NativeArena()
    assert descriptors_since(descriptors)
    assert maps() > mapped
    world.reader.close()
    world.arena.close()
    assert not descriptors_since(descriptors)
    assert maps() == mapped
