"""An arena of another size by a restart: workers attach again by themselves and let go of the old one, or are named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cache_l2.memory_probe import Bound, MemoryProbe
from kv_types.errors import ArenaTooLargeError
from sidecar.arena_room import LeftArenas, left_arenas, with_room
from sidecar.config import Settings
from tests.support.daemon import ROOT, Daemon, clean_environment
from tests.support.huge_pages import available, set_apart
from tests.support.polling import wait_until
from tests.support.redis_servers import redis_servers

MIB = 2**20
PAGES = 24


class IdleWorker:
    """A worker in a process of its own, which looks up only when told to."""

    def __init__(self, runtime_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.idle_worker", str(runtime_dir)],
            cwd=ROOT, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._answer() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def arenas(self) -> list[int]:
        """Sizes of the arenas that it has mapped, in MiB."""
        sizes = []
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            if "/memfd:stratakv-data" in line:
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
                sizes.append((high - low) // MIB)
        return sizes

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker ended"
        return json.loads(line)


@contextmanager
def idle_worker(runtime_dir: Path) -> Iterator[IdleWorker]:
    worker = IdleWorker(runtime_dir)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.communicate(timeout=10)


def quick(runtime_dir: Path, arena: str, *flags: str) -> Daemon:
    return Daemon(runtime_dir, "--metrics-port", "off", "--copy-kernel", "memcpy", *flags, arena=arena)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_workers_that_never_look_up_move_to_the_new_arena_and_keep_nothing_of_the_old(
    runtime_dir: Path, end: signal.Signals
) -> None:
    with (
        quick(runtime_dir, "64MiB").wait_ready() as first,
        idle_worker(runtime_dir) as one,
        idle_worker(runtime_dir) as two,
    ):
        assert one.tell(f"store {PAGES}") == "stored"
        assert [one.arenas(), two.arenas()] == [[64], [64]]
        first.send(end)
        first.wait_end()
        wait_until(
            lambda: not {one.pid, two.pid} & set(left_arenas().pids),
            what="the end of all the old arena's files",
        )
        assert not one.arenas()
        assert not two.arenas()
        with quick(runtime_dir, "96MiB").wait_ready():
            wait_until(lambda: one.arenas() == two.arenas() == [96], what="the workers' return")
            assert two.tell(f"look {PAGES}") == [0, 0, True]
            assert two.tell(f"store {PAGES}") == "stored"
            assert one.tell(f"look {PAGES}") == [PAGES, 0, True]


def test_pages_come_back_from_l3_into_an_arena_of_another_size(runtime_dir: Path) -> None:
    with redis_servers() as servers:
        flags = ("--l3-url", servers.start().url)
        with quick(runtime_dir, "64MiB", *flags).wait_ready() as first, idle_worker(runtime_dir) as worker:
            assert worker.tell(f"store {PAGES}") == "stored"
            first.stop()  # draining stores what waits
            with quick(runtime_dir, "32MiB", *flags).wait_ready():
                wait_until(lambda: worker.arenas() == [32], what="the worker's return")
                found: list[Any] = []

                def all_are_there() -> bool:
                    found[:] = worker.tell(f"look {PAGES}")
                    return bool(found[0] + found[1] == PAGES)

                wait_until(all_are_there, timeout_s=20.0, what="pages from L3")
                assert found[2]


class OnlyRoomFor(MemoryProbe):
    """A machine that has room for so much and no more, of which the arenas that are left by sidecars take what they take."""

    def __init__(self, room_bytes: int, of: set[int]) -> None:
        super().__init__()
        self._room_bytes, self._of = room_bytes, of

    def bounds(self) -> Iterator[Bound]:
        left = left_arenas()
        taken = left.size_bytes if self._of & set(left.pids) else 0
        yield Bound(self._room_bytes - taken, "this small machine", "free memory")


def settings(runtime_dir: Path, arena_size: str) -> Settings:
    return Settings(runtime_dir=runtime_dir, arena_size=arena_size, client_rows=4)  # type: ignore[arg-type]


@contextmanager
def left_behind(runtime_dir: Path) -> Iterator[IdleWorker]:
    """A worker that leases pages of a sidecar that was killed."""
    with quick(runtime_dir, "64MiB").wait_ready() as first, idle_worker(runtime_dir) as worker:
        assert worker.tell(f"store {PAGES}") == "stored"
        assert worker.tell(f"hold {PAGES}") == PAGES
        first.kill()
        assert worker.arenas() == [64]
        yield worker


@pytest.mark.asyncio
async def test_c25_an_arena_for_which_an_old_one_leaves_no_room_waits_and_then_names_who_holds_it(
    runtime_dir: Path,
) -> None:
    with left_behind(runtime_dir) as worker:
        assert worker.pid in left_arenas().pids
        room = OnlyRoomFor(200 * MIB, {worker.pid})
        with capture_logs() as lines, pytest.raises(ArenaTooLargeError) as caught:
            await with_room(settings(runtime_dir, "128MiB"), probe=room, wait_s=0.5)
        assert "this small machine" in str(caught.value)
        assert f" {worker.pid}" in str(caught.value).split("Arenas of sidecars that are gone")[1]
        assert [line["event"] for line in lines] == ["waiting for clients to let go of arenas from before"]
        # What no release would make room for isn't waited for.
        with capture_logs() as lines, pytest.raises(ArenaTooLargeError) as caught:
            await with_room(settings(runtime_dir, "8GiB"), probe=room, wait_s=60.0)
        assert "gone" not in str(caught.value)
        assert not lines


@pytest.mark.asyncio
async def test_a_start_goes_on_as_soon_as_the_old_arena_is_released(runtime_dir: Path) -> None:
    with left_behind(runtime_dir) as worker:
        room = OnlyRoomFor(200 * MIB, {worker.pid})
        assert worker.process.stdin is not None
        worker.process.stdin.write("release\n")
        worker.process.stdin.flush()
        sized = await with_room(settings(runtime_dir, "128MiB"), probe=room, wait_s=30.0)
        assert sized.arena_bytes == 128 * MIB
        wait_until(lambda: not worker.arenas(), what="the old arena's end")


@pytest.mark.asyncio
async def test_auto_does_not_count_what_is_about_to_be_released_as_taken(runtime_dir: Path) -> None:
    with left_behind(runtime_dir) as worker:
        room = OnlyRoomFor(1024 * MIB, {worker.pid})
        with capture_logs() as lines:
            held = await with_room(settings(runtime_dir, "auto"), probe=room, wait_s=0.3)
        assert [line["log_level"] for line in lines] == ["info", "info", "warning"]
        assert worker.tell("release") == "released"
        with capture_logs() as lines:
            free = await with_room(settings(runtime_dir, "auto"), probe=room, wait_s=5.0)
        (chosen,) = (line for line in lines if line["event"] == "arena size chosen")
        assert chosen["decided_by"] == "this small machine"
        assert free.arena_bytes > held.arena_bytes


def test_arenas_that_are_served_are_not_left(runtime_dir: Path) -> None:
    with quick(runtime_dir, "64MiB").wait_ready() as daemon, idle_worker(runtime_dir) as worker:
        assert not {daemon.pid, worker.pid} & set(left_arenas().pids)


def test_mappings_are_told_apart(tmp_path: Path) -> None:
    def maps(pid: int, *lines: str) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "maps").write_text("".join(f"{line}\n" for line in lines))

    data, other = (
        "7f0000000000-7f0000100000 rw-s 00000000 00:01 11",
        "7f0000000000-7f0000300000 r--s 00000000 00:01 12",
    )
    maps(1, "7f1000000000-7f1000001000 r-xp 00000000 08:01 5 /usr/bin/python3.11")
    maps(
        2,
        f"{data} /memfd:stratakv-data (deleted)",
        "7f2-7f3 rw-s 00000000 00:01 9 /memfd:stratakv-control (deleted)",
    )
    maps(
        3,
        f"{data} /memfd:stratakv-data (deleted)",
        "7f2-7f3 r--s 00000000 00:01 9 /memfd:stratakv-control (deleted)",
    )
    (tmp_path / "4").mkdir()
    (tmp_path / "self").mkdir()
    assert left_arenas(tmp_path) == LeftArenas()
    maps(5, f"{other} /memfd:stratakv-data (deleted)")
    maps(
        6,
        f"{other} /memfd:stratakv-data (deleted)",
        "7f2-7f3 r--s 00000000 00:01 9 /memfd:stratakv-control (deleted)",
    )
    assert left_arenas(tmp_path) == LeftArenas(3 * MIB, (5, 6))
    assert "5, 6" in str(left_arenas(tmp_path))


def test_a_restart_in_explicit_huge_pages_gives_all_of_them_back(runtime_dir: Path) -> None:
    flags = ("--huge-pages", "explicit", "--client-rows", "8")
    with set_apart(60) as before:
        with quick(runtime_dir, "32MiB", *flags).wait_ready() as first, idle_worker(runtime_dir) as worker:
            assert first.line("arena ready")["huge_pages"] == "explicit"
            assert worker.tell("store 4") == "stored"
            first.kill()
            with quick(runtime_dir, "64MiB", *flags).wait_ready():
                wait_until(lambda: worker.arenas() == [64], what="the worker's return")
                assert worker.tell("store 4") == "stored"
                assert worker.tell("look 4") == [4, 0, True]
        wait_until(lambda: available() == before, what="the pool to have them back")
